"""What a running Ray cluster says of itself: its nodes, what is pending, what the autoscaler complains about."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .process_tree import Process, command_line

DEAD = "DEAD"


@dataclass(frozen=True)
class NodeStatus:
    """One node. `state` is Ray's (RUNNING, IDLE, DRAINING, DEAD); `pid` that of its raylet, None when it is gone.
    `resources` in Ray's units (memory in bytes); `idle_s` seconds without work."""

    node_id: str
    node_type: str
    state: str
    pid: int | None
    is_head: bool
    resources: Mapping[str, float] = field(default_factory=dict)
    available: Mapping[str, float] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    idle_s: float = 0.0

    @property
    def alive(self) -> bool:
        """Ray counts on it and its raylet runs. (Ray itself takes seconds to notice that a raylet was killed.)"""
        return self.state != DEAD and self.pid is not None


@dataclass(frozen=True)
class ClusterStatus:
    """`pending`: nodes that were starting at the autoscaler's last pass, a second or two ago (type -> count);
    `demands`: what waits for resources ((resources, count))."""

    address: str
    nodes: tuple[NodeStatus, ...]
    pending: Mapping[str, int]
    demands: tuple[tuple[Mapping[str, float], int], ...]
    autoscaler_running: bool
    autoscaler_reported: bool
    log_dir: Path

    @property
    def workers(self) -> tuple[NodeStatus, ...]:
        """Living worker nodes."""
        return tuple(node for node in self.nodes if node.alive and not node.is_head)

    def count(self, node_type: str | None = None) -> int:
        """Number of living worker nodes, of one type or of all."""
        return sum(1 for node in self.workers if node_type is None or node.node_type == node_type)

    def __str__(self) -> str:
        counts = Counter(node.node_type for node in self.workers)
        lines = [f"Ray cluster at {self.address}: {len(self.workers)} worker nodes"]
        lines += [f"  {count} {node_type}" for node_type, count in sorted(counts.items())]
        lines += [f"  {count} {node_type} starting" for node_type, count in sorted(self.pending.items())]
        lines += [f"  demand: {count} x {dict(resources)}" for resources, count in self.demands]
        if not self.autoscaler_running:
            lines.append(f"  the autoscaler is not running; see {self.log_dir}/monitor.log")
        return "\n".join(lines)


def read_status(address: str, processes: Iterable[Process], log_dir: Path, timeout_s: float = 10.0) -> ClusterStatus:
    """Ask the GCS at `address`; `processes` are those of the cluster. Raises what Ray's GCS client raises."""
    from ray._raylet import GcsClient
    from ray.core.generated.autoscaler_pb2 import GetClusterStatusReply
    from ray.core.generated.autoscaler_pb2 import NodeStatus as RayNodeStatus

    client = GcsClient(address=address)
    reply = GetClusterStatusReply()
    reply.ParseFromString(client.get_cluster_status(timeout_s=timeout_s))
    raylets, monitor_running = _find(processes)
    nodes = []
    for node in reply.cluster_resource_state.node_states:
        node_id = node.node_id.hex()
        nodes.append(
            NodeStatus(
                node_id=node_id,
                node_type=node.ray_node_type_name,
                state=RayNodeStatus.Name(node.status),
                pid=raylets.get(node_id),
                is_head="node:__internal_head__" in node.total_resources,
                resources=dict(node.total_resources),
                available=dict(node.available_resources),
                labels=dict(node.labels),
                idle_s=node.idle_duration_ms / 1000,
            )
        )
    pending: Counter[str] = Counter()
    for request in reply.autoscaling_state.pending_instance_requests:
        pending[request.ray_node_type_name] += request.count
    for instance in reply.autoscaling_state.pending_instances:
        pending[instance.ray_node_type_name] += 1
    report = _v1_report(client, timeout_s)
    for node_type, count in report.get("pending_launches", {}).items():
        pending[node_type] += count
    demands = tuple(
        (dict(demand.request.resources_bundle), demand.count)
        for demand in reply.cluster_resource_state.pending_resource_requests
    )
    return ClusterStatus(
        address=address,
        nodes=tuple(nodes),
        pending=dict(pending),
        demands=demands,
        autoscaler_running=monitor_running,
        autoscaler_reported=bool(report) or reply.HasField("autoscaling_state"),
        log_dir=log_dir,
    )


def _find(processes: Iterable[Process]) -> tuple[dict[str, int], bool]:
    """Raylets by node id, and whether the autoscaler's monitor runs."""
    raylets: dict[str, int] = {}
    monitor = False
    for process in processes:
        words = command_line(process.pid)
        if words and words[0].endswith("/raylet"):
            for word in words:
                if word.startswith("--node_id="):
                    raylets[word.removeprefix("--node_id=")] = process.pid
        elif any(word.endswith(("autoscaler/_private/monitor.py", "autoscaler/v2/monitor.py")) for word in words[:4]):
            monitor = True
    return raylets, monitor


def _v1_report(client: Any, timeout_s: float) -> dict[str, Any]:
    """What the v1 autoscaler wrote into the key-value store after its last pass; v2 writes nothing there."""
    raw = client.internal_kv_get(b"__autoscaling_status", None, timeout=timeout_s)
    report: dict[str, Any] = json.loads(raw).get("autoscaler_report", {}) if raw else {}
    return report


def autoscaler_errors(log_dir: Path, lines: int = 25) -> str:
    """The end of what the monitor wrote, for an error message; standard error first, since crashes end up there."""
    parts = []
    for name in ("monitor.err", "monitor.log", "monitor.out", "gcs_server.err", "raylet.err"):
        path = log_dir / name
        text = path.read_text(errors="replace").splitlines() if path.exists() else []
        if text:
            parts.append(f"--- {name}\n" + "\n".join(text[-lines:]))
    return "\n".join(parts) or f"nothing was written to {log_dir}"
