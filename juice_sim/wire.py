"""JSON <-> commands and objects of the core. Decoding is strict and bounded; encoding is one place for every answer.

What is refused, always with 400 and a `Problem` that names the member: wrong types (no `"1"` for 1, no 1.0 for 1),
numbers out of range, NaN and Infinity (not JSON), a member given twice, nesting deeper than MAX_DEPTH, text that is
not UTF-8 or holds half a surrogate pair, and lists with two entries of one index.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any, TypeVar

import msgspec

from . import wire_types as w
from .core import model
from .core.commands import RegisterAgent, SessionReport, UpdateAgent
from .core.errors import Kind, Refused
from .wire_errors import not_acceptable, not_json

MAX_BODY = 1 << 20
MAX_DEPTH = 64

T = TypeVar("T")

_STRINGS = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))

_encoder = msgspec.json.Encoder()
encode = _encoder.encode


def decode(body: bytes, kind: type[T]) -> T:
    """The body of a request as `kind`. Raises Refused(INVALID)."""
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise Refused(Kind.INVALID, f"the body is not UTF-8 (byte {error.start})", accepted="JSON in UTF-8") from None
    if body.count(b"{") + body.count(b"[") > MAX_DEPTH and _depth_exceeds(body, MAX_DEPTH):
        raise Refused(Kind.INVALID, "the body is nested too deeply", accepted=f"at most {MAX_DEPTH} levels")
    try:
        value = json.loads(text, object_pairs_hook=_members, parse_constant=_no_constant)
    except RecursionError:
        raise Refused(Kind.INVALID, "the body is nested too deeply", accepted=f"at most {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise not_json(text, error) from None
    if "\\u" in text or "\\U" in text:
        _refuse_half_surrogates(value)
    if value is None:
        value = {}
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise not_acceptable(error, value, kind) from None


def _depth_exceeds(body: bytes, limit: int) -> bool:
    """Whether brackets nest deeper than `limit`. Each round removes the innermost level, at C speed."""
    brackets = _STRINGS.sub(b"", body).translate(None, _NOT_BRACKETS)
    for _ in range(limit):
        if not brackets:
            return False
        shorter = brackets.replace(b"[]", b"").replace(b"{}", b"")
        if len(shorter) == len(brackets):
            return False  # unbalanced: the parser will say so
        brackets = shorter
    return bool(brackets)


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = {}
    for name, value in pairs:
        if name in members:
            raise Refused(Kind.INVALID, "the member is given twice", field=name[:120], accepted="each member once")
        members[name] = value
    if None in members.values():
        return {name: value for name, value in members.items() if value is not None}
    return members


def _no_constant(text: str) -> Any:
    raise ValueError(f"{text} is not a JSON number")


def _refuse_half_surrogates(value: Any) -> None:
    try:
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeEncodeError:
        raise Refused(Kind.INVALID, "a string holds half a surrogate pair", accepted="Unicode text") from None


def iso(at: float | None) -> str | None:
    """Unix time as ISO 8601 in UTC with milliseconds."""
    if at is None:
        return None
    return datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="milliseconds").replace("+00:00", "Z")


# -- requests ---------------------------------------------------------------------------------------------------------


def gpus(entries: Iterable[w.Gpu], field: str = "gpus") -> tuple[model.Gpu, ...]:
    """The GPUs that an agent or a node type names. Refuses two of one index or one (non-empty) uuid."""
    result = []
    indexes: set[int] = set()
    uuids: set[str] = set()
    for position, gpu in enumerate(entries):
        if gpu.index in indexes:
            raise Refused(
                Kind.INVALID,
                "two GPUs have the same index",
                field=f"{field}[{position}].index",
                value=gpu.index,
                accepted="each index once",
            )
        if gpu.uuid and gpu.uuid in uuids:
            raise Refused(
                Kind.INVALID,
                "two GPUs have the same uuid",
                field=f"{field}[{position}].uuid",
                value=gpu.uuid,
                accepted="each uuid once",
            )
        indexes.add(gpu.index)
        uuids.add(gpu.uuid)
        result.append(
            model.Gpu(
                index=gpu.index,
                uuid=gpu.uuid,
                name=gpu.name,
                vram=gpu.vram,
                vendor=gpu.vendor,
                model=gpu.model,
                vendor_id=gpu.vendor_id,
                device_id=gpu.device_id,
                sub_device_id=gpu.sub_device_id,
                driver=gpu.driver,
                pci_bus=gpu.pci_bus,
            )
        )
    return tuple(result)


def requirements(body: w.SessionRequirements) -> model.Requirements:
    """What a session needs, from the body of its request."""
    return model.Requirements(
        gpus=tuple(model.GpuRequirement(gpu.vram_required, gpu.pci_bus) for gpu in body.gpus),
        pool_id=body.pool_id,
        version=body.version,
        match_labels=body.match_labels,
        tolerates=body.tolerates,
        label_selector=body.label_selector,
        strict=body.vram_strict,
    )


def register_agent(body: w.AgentRegistration, address: str) -> RegisterAgent:
    """The command of a registration; `address` is the one that clients can reach."""
    return RegisterAgent(
        hostname=body.hostname,
        address=address,
        pool_id=body.pool_id,
        gpus=gpus(body.gpus),
        version=body.version,
        labels=body.labels,
        taints=body.taints,
    )


def update_agent(agent_id: str, body: w.AgentUpdate) -> UpdateAgent:
    """The command of a heartbeat. Refuses a body whose id is not the path's (the real one: 400 too)."""
    if body.id != agent_id:
        raise Refused(Kind.INVALID, "the id is not that of the path", field="id", value=body.id, accepted=agent_id)
    sessions = {}
    for session_id, report in body.sessions.items():
        state = report.State or report.state
        if state is None:
            raise Refused(
                Kind.INVALID,
                "the session's state is missing",
                field=f"sessions.{session_id[:64]}.state",
                accepted="queued, assigned, active, canceling, closed",
            )
        sessions[session_id] = SessionReport(
            model.SessionState(state),
            {
                key: model.Connection(c.id or key, c.pid, c.process_name, c.exit_code)
                for key, c in report.connections.items()
            },
        )
    return UpdateAgent(agent_id, model.AgentState(body.state) if body.state else None, sessions)


# -- answers ----------------------------------------------------------------------------------------------------------


def session_object(session: model.Session) -> w.Session:
    """One session as v1 shows it."""
    return w.Session(
        id=session.id,
        state=session.state.value,
        address=session.address,
        version=session.version or session.requirements.version,
        pool_id=session.pool_id or session.requirements.pool_id,
        gpus=[w.SessionGpu(index=grant.index, vram_required=grant.vram) for grant in session.grants],
        connections=[_connection(c) for c in session.connections.values()],
    )


def session_details(session: model.Session) -> w.SessionDetails:
    """One session with its times, as `GET /v1/sessions` shows it."""
    return w.SessionDetails(
        id=session.id,
        state=session.state.value,
        address=session.address,
        version=session.version or session.requirements.version,
        pool_id=session.pool_id or session.requirements.pool_id,
        gpus=[w.SessionGpu(index=grant.index, vram_required=grant.vram) for grant in session.grants],
        connections=[_connection(c) for c in session.connections.values()],
        name=session.name,
        agent_id=session.agent_id,
        owner=session.owner,
        requested_at=iso(session.requested_at),
        assigned_at=iso(session.assigned_at),
        active_at=iso(session.active_at),
        closed_at=iso(session.closed_at),
        close_reason=session.close_reason,
    )


def _connection(c: model.Connection) -> w.Connection:
    return w.Connection(id=c.id, pid=c.pid, process_name=c.process_name, exit_code=c.exit_code)


def agent_object(
    agent: model.Agent, sessions: Iterable[model.Session], metrics: list[w.GpuMetrics] | None = None
) -> w.Agent:
    """One agent as v1 shows it; `metrics` are the latest it reported, in the order of its GPUs."""
    shown = []
    for position, gpu in enumerate(agent.gpus):
        entry = gpu_object(gpu)
        if metrics and position < len(metrics):
            entry.metrics = metrics[position]
        shown.append(entry)
    return w.Agent(
        id=agent.id,
        state=agent.state.value,
        hostname=agent.hostname,
        address=agent.address,
        version=agent.version,
        pool_id=agent.pool_id,
        gpus=shown,
        labels=agent.labels,
        taints=agent.taints,
        sessions=[session_object(session) for session in sessions],
    )


def gpu_object(gpu: model.Gpu) -> w.Gpu:
    """One GPU as v1 shows it."""
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


def token_object(token: model.Token) -> w.Token:
    """One token, without its secret (which nobody has any more)."""
    return w.Token(
        id=token.id,
        description=token.description,
        user_id=token.user_id,
        admin=token.is_admin,
        created_at=iso(token.created_at) or "",
        expires_at=iso(token.expires_at) or "",
    )


def node_type(body: w.NodeType, field: str) -> model.NodeType:
    """A node type from its JSON."""
    return model.NodeType(
        name=body.name,
        pool_id=body.pool_id,
        gpus=gpus(body.gpus, f"{field}.gpus"),
        labels=body.labels,
        taints=body.taints,
        max_workers=body.max_workers,
    )
