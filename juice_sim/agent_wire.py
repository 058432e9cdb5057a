"""What agents send to the controller and read from it, as bytes.

Tolerant in reading: the controller may be a real one.
"""

from __future__ import annotations

import email.utils
import math
from typing import Annotated

import msgspec
from msgspec import Meta

from . import wire_types as w
from .core import agent as core
from .core.commands import RegisterAgent, UpdateAgent
from .core.model import AgentState, Gpu, SessionState


class _RecordGpu(msgspec.Struct, rename="camel"):
    index: int = 0
    vram_required: int = 0


class _RecordSession(msgspec.Struct, rename="camel"):
    id: str = ""
    state: str = ""
    gpus: list[_RecordGpu] | None = None


class _Record(msgspec.Struct, rename="camel"):
    id: Annotated[str, Meta(min_length=1)]
    state: str = "active"
    sessions: list[_RecordSession] | None = None


class SessionBody(w.Session):
    """A session as its agent shows it."""

    @classmethod
    def of(cls, session: core.LocalSession, address: str, pool_id: str, version: str) -> SessionBody:
        """From the agent's own record."""
        return cls(
            id=session.id,
            state=session.state.value,
            address=address,
            version=version,
            pool_id=pool_id,
            gpus=[w.SessionGpu(index=index, vram_required=size) for index, size in session.gpus],
            connections=[
                w.Connection(id=c.id, pid=c.pid, process_name=c.process_name, exit_code=c.exit_code)
                for c in session.connections.values()
            ],
        )


_record_decoder = msgspec.json.Decoder(_Record)
_STATES = {state.value: state for state in SessionState}
_AGENT_STATES = {state.value: state for state in AgentState}


def record_of(body: bytes) -> core.RecordRead:
    """The agent's record. Raises msgspec.MsgspecError. Sessions in states that nobody knows are left alone."""
    record = _record_decoder.decode(body)
    sessions = {
        session.id: core.RecordedSession(
            _STATES[session.state], tuple((gpu.index, gpu.vram_required) for gpu in session.gpus or ())
        )
        for session in record.sessions or ()
        if session.state in _STATES and session.state != SessionState.CLOSED.value
    }
    return core.RecordRead(sessions, _AGENT_STATES.get(record.state, AgentState.ACTIVE))


def gpu_object(gpu: Gpu) -> w.Gpu:
    """A GPU as v1 writes it, without metrics: what an agent registers and what a node type has."""
    return w.Gpu(
        index=gpu.index,
        uuid=gpu.uuid,
        name=gpu.name,
        vendor=gpu.vendor,
        model=gpu.model,
        vendor_id=gpu.vendor_id,
        device_id=gpu.device_id,
        sub_device_id=gpu.sub_device_id,
        driver=gpu.driver,
        vram=gpu.vram,
        pci_bus=gpu.pci_bus,
    )


def register_body(command: RegisterAgent) -> bytes:
    """The body of `POST /v1/register/agent`."""
    return msgspec.json.encode(
        w.AgentRegistration(
            hostname=command.hostname,
            address=command.address,
            version=command.version,
            pool_id=command.pool_id,
            gpus=[gpu_object(gpu) for gpu in command.gpus],
            labels=command.labels,
            taints=command.taints,
        )
    )


def report_body(command: UpdateAgent, metrics: list[w.GpuMetrics] | None) -> bytes:
    """The body of `PUT /v1/agent/{id}`; `State` with a capital, as the real agent spells it."""
    body: dict[str, object] = {"id": command.agent_id}
    if command.state is not None:
        body["state"] = command.state.value
    if command.sessions:
        body["sessions"] = {
            session_id: {
                "State": report.state.value,
                "connections": {
                    c.id: w.Connection(id=c.id, pid=c.pid, process_name=c.process_name, exit_code=c.exit_code)
                    for c in report.connections.values()
                },
            }
            for session_id, report in command.sessions.items()
        }
    if metrics is not None:
        body["gpus"] = metrics
    return msgspec.json.encode(body)


def retry_after_s(text: str | None, now: float) -> float | None:
    """Seconds of a Retry-After header, in seconds or as a date; None when there is none, or none that can be read."""
    if not text:
        return None
    try:
        seconds = float(text)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(text).timestamp() - now
        except (TypeError, ValueError, OverflowError):
            return None
    return max(0.0, seconds) if math.isfinite(seconds) else None
