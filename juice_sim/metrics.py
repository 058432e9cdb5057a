"""`GET /metrics` of the controller: gauges by the names of the open-source one, made when they are asked for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric

from .core.model import Agent, AgentState, SessionState
from .rest_base import Api

PREFIX = "Juice_Controller_"
PERCENTILES = (100, 90, 75, 50, 25, 10)
GB = 10**9


class Collector:
    """Collects from one controller. VRAM in bytes, power in watts, utilisation in percent, `vramGBAvailable` in GB."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def collect(self) -> Iterator[Metric]:
        """All metrics."""
        reader = self._api.service.reader
        agents = reader.agents(states=tuple(AgentState))
        states = Counter(agent.state.value for agent in agents)
        yield _plain("agents", "agents that are not closed", sum(states.values()) - states["closed"])
        yield _labelled("agentsByStatus", "agents by state", "status", {s.value: states[s.value] for s in AgentState})
        sessions = Counter(session.state.value for session in reader.sessions(include_closed=True))
        yield _plain("sessions", "sessions that are not closed", sum(sessions.values()) - sessions["closed"])
        by_state = {s.value: sessions[s.value] for s in SessionState}
        yield _labelled("sessionsByStatus", "sessions by state; closed: of the last days", "status", by_state)
        yield from self._gpus([agent for agent in agents if agent.state is AgentState.ACTIVE])
        yield CounterMetricFamily(PREFIX + "events", "events that are durable", value=self._api.service.published_seq)
        fired = CounterMetricFamily(PREFIX + "faultsFired", "faults that were injected", labels=["name"])
        counts: Counter[str] = Counter()
        for position, rule in enumerate(self._api.faults.rules):
            counts[rule.name or str(position)] += rule.fired
        for name, count in counts.items():
            fired.add_metric([name], count)
        yield fired

    def _gpus(self, agents: list[Agent]) -> Iterator[Metric]:
        count: Counter[str] = Counter()
        vram: Counter[str] = Counter()
        used: Counter[str] = Counter()
        busy: Counter[str] = Counter()
        power: Counter[str] = Counter()
        free: dict[str, list[int]] = {}
        for agent in agents:
            use = self._api.service.reader.gpu_use(agent.id)
            reported = self._api.gpu_metrics.get(agent.id, [])
            for position, gpu in enumerate(agent.gpus):
                granted = use[gpu.index][0] if gpu.index in use else 0
                count[gpu.name] += 1
                vram[gpu.name] += gpu.vram
                used[gpu.name] += granted
                free.setdefault(gpu.name, []).append(gpu.vram - granted)
                if position < len(reported):
                    busy[gpu.name] += reported[position].utilization_gpu
                    power[gpu.name] += reported[position].power_draw
        total = sum(count.values())
        names = sorted(count)
        yield _plain("gpus", "GPUs of active agents", total)
        yield _labelled("gpusByGpuName", "the same by name", "gpu", count)
        yield _plain("vram", "VRAM of active agents, bytes", sum(vram.values()))
        yield _labelled("vramByGpuName", "the same by name of the GPU", "gpu", vram)
        yield _plain("vramUsed", "VRAM granted to sessions, bytes", sum(used.values()))
        yield _labelled("vramUsedByGpuName", "the same by name of the GPU", "gpu", {n: used[n] for n in names})
        available = GaugeMetricFamily(
            PREFIX + "vramGBAvailable", "free VRAM of a GPU, GB, by percentile", labels=["percentile"]
        )
        by_name = GaugeMetricFamily(
            PREFIX + "vramGBAvailableByGpuName", "the same by name of the GPU", labels=["gpu", "percentile"]
        )
        everything = sorted(size for sizes in free.values() for size in sizes)
        for percentile in PERCENTILES:
            available.add_metric([str(percentile)], _percentile(everything, percentile) / GB)
            for name in names:
                by_name.add_metric([name, str(percentile)], _percentile(sorted(free[name]), percentile) / GB)
        yield available
        yield by_name
        yield _plain("utilization", "mean utilisation of the GPUs, percent", sum(busy.values()) / total if total else 0)
        mean = {name: busy[name] / count[name] for name in names}
        yield _labelled("utilizationByGpuName", "the same by name of the GPU", "gpu", mean)
        yield _plain("powerDrawWatts", "power drawn by the GPUs, watts", sum(power.values()) / 1000)
        watts = {name: power[name] / 1000 for name in names}
        yield _labelled("powerDrawWattsByGpuName", "the same by name of the GPU", "gpu", watts)


def _percentile(sizes: list[int], percentile: int) -> int:
    """The largest size for `percentile` 100; of nothing 0."""
    return sizes[max(0, -(-len(sizes) * percentile // 100) - 1)] if sizes else 0


def _plain(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, value=value)


def _labelled(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for key in sorted(values):
        family.add_metric([key], values[key])
    return family


def render(api: Api) -> tuple[bytes, str]:
    """(text, content type) of all metrics now."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(Collector(api))
    return generate_latest(registry), CONTENT_TYPE_LATEST
