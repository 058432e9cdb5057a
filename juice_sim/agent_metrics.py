"""What simulated agents measure: the `gpus` of their reports, and `GET /metrics` by the documented names."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import GaugeMetricFamily, Metric

from . import wire_types as w
from .core.model import SessionState
from .gpu_profiles import UnknownModel, profile_named

if TYPE_CHECKING:
    from .agent_runtime import Agent

PREFIX = "juice_agent_"
MB = 10**6
IDLE_WATTS = 0.1  # of the power limit


def busy_gpus(agent: Agent) -> set[int]:
    """Indexes of the GPUs whose session has a running process."""
    return {index for session in agent.core.sessions.values() if session.running for index, _ in session.gpus}


def vram_in_use(agent: Agent) -> dict[int, int]:
    """Bytes in use per GPU index: what programs say that they use, or all that they may when they say nothing."""
    used: dict[int, int] = {}
    for session in agent.core.sessions.values():
        if session.running:
            accounts = agent.accounts_for(session.id)
            for position, (index, granted) in enumerate(session.gpus):
                used[index] = used.get(index, 0) + (session.used_on(position) if accounts else granted)
    return used


def session_gpus(agent: Agent, session_id: str) -> dict[str, Any]:
    """What a program of the session is told of its GPUs, in the session's order; `vram` is the session's share."""
    session = agent.core.sessions.get(session_id)
    if session is None:
        return {"gpus": [], "processes": []}
    by_index = {gpu.index: (gpu, values) for gpu, values in zip(agent.spec.gpus, measured(agent), strict=True)}
    gpus = []
    for position, (index, vram) in enumerate(session.gpus):
        gpu, values = by_index[index]
        gpus.append(
            {
                "index": index,
                "uuid": gpu.uuid,
                "name": gpu.name,
                "pciBus": gpu.pci_bus,
                "driver": gpu.driver,
                "vram": vram,
                "used": session.used_on(position),
                "utilizationGpu": values.utilization_gpu,
                "temperatureGpu": values.temperature_gpu,
                "powerDraw": values.power_draw,
                "powerLimit": values.power_limit,
            }
        )
    processes = [
        {"pid": connection.pid, "processName": connection.process_name, "gpu": max(position, 0), "used": used}
        for (connection_id, position), used in session.vram_used.items()
        for connection in [session.connections[connection_id]]
    ]
    return {"gpus": gpus, "processes": processes}


def measured(agent: Agent) -> list[w.GpuMetrics]:
    """One entry per GPU, in their order: a GPU with a running process is busy, any other idles."""
    in_use = vram_in_use(agent)
    busy = busy_gpus(agent)
    result = []
    for gpu in agent.spec.gpus:
        try:
            watts = profile_named(gpu.model or gpu.name).watts
        except UnknownModel:
            watts = 0
        works = gpu.index in busy
        used = min(in_use.get(gpu.index, 0), gpu.vram)
        result.append(
            w.GpuMetrics(
                clock_core=1500 if works else 300,
                clock_memory=5000 if works else 400,
                utilization_gpu=90 if works else 0,
                utilization_vram=round(100 * used / gpu.vram) if gpu.vram else 0,
                temperature_gpu=65 if works else 35,
                vram_used=used,
                power_draw=round(1000 * watts * (0.8 if works else IDLE_WATTS)),
                power_limit=1000 * watts,
                fan_speed=50 if works else 20,
            )
        )
    return result


class Collector:
    """Collects from the agents of one address. VRAM in MB, utilisation from 0 to 1."""

    def __init__(self, agents: Sequence[Agent]) -> None:
        self._agents = agents

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        labels = ["gpu_id", "gpu_name", "pool_id", "pool_name"]
        families = {
            name: GaugeMetricFamily(PREFIX + name, text, labels=labels)
            for name, text in (
                ("gpu_allocated", "1 when a session holds any of the GPU"),
                ("gpu_utilization", "utilisation of the GPU, 0 to 1"),
                ("gpu_vram_allocated", "VRAM that sessions hold, MB"),
                ("gpu_vram_available", "VRAM that is free, MB"),
                ("gpu_vram_total", "VRAM in all, MB"),
            )
        }
        count = GaugeMetricFamily(PREFIX + "gpu_count", "GPUs of the agent", labels=["pool_id", "pool_name"])
        counts: dict[tuple[str, str], int] = {}
        sessions = GaugeMetricFamily(PREFIX + "session", "sessions on the GPU", labels=[*labels, "user_id"])
        for agent in self._agents:
            pool = [agent.spec.pool_id, agent.spec.pool_name]
            counts[pool[0], pool[1]] = counts.get((pool[0], pool[1]), 0) + len(agent.spec.gpus)
            granted = agent.core.vram_granted()
            for gpu, values in zip(agent.spec.gpus, measured(agent), strict=True):
                where = [gpu.uuid, gpu.name, *pool]
                held = min(granted.get(gpu.index, 0), gpu.vram)
                families["gpu_allocated"].add_metric(where, 1 if held else 0)
                families["gpu_utilization"].add_metric(where, values.utilization_gpu / 100)
                families["gpu_vram_allocated"].add_metric(where, held / MB)
                families["gpu_vram_available"].add_metric(where, (gpu.vram - held) / MB)
                families["gpu_vram_total"].add_metric(where, gpu.vram / MB)
                here = sum(
                    1
                    for session in agent.core.sessions.values()
                    if session.state is not SessionState.CLOSED and gpu.index in {index for index, _ in session.gpus}
                )
                sessions.add_metric([*where, ""], here)  # the controller does not tell agents whose a session is
        for pool_labels, number in counts.items():
            count.add_metric(list(pool_labels), number)
        yield from families.values()
        yield count
        yield sessions


def render(agents: Iterable[Agent]) -> tuple[bytes, str]:
    """(text, content type)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(list(agents)))
    return generate_latest(registry), CONTENT_TYPE_LATEST
