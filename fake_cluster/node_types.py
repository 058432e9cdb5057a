"""From pools of GPUs to Ray node types: what a fake node carries so that an agent, and only that, is put on it.

A node of pool `test` with two A10 has the resources `GPU: 2`, `vram_gib: 44`, `juice_pool_test: 1` and the labels
`juice-pool: test`, `juice-gpu-model: A10`, `juice-gpus: 2`, `juice-vram-gib: 22` (of one GPU). `juice_pool_<name>` is
how many agents the node takes; an agent's actor asks for one of it and for its GPUs, so that an actor which finds no
place brings up a node of the right type. The labels tell, from the nodes alone, which agents belong there.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

GIB = 1 << 30
POOL_RESOURCE_PREFIX = "juice_pool_"
VRAM_RESOURCE = "vram_gib"
SLURM_RESOURCE = "slurm_node"
HEAD_RESOURCE = "juice_head"
"""On the head node only: what the controller asks for, so that it is never put on a node that may go."""

# Ray passes resources to a raylet as one comma-separated list, and checks labels as Kubernetes does.
_RESOURCE_NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_LABEL_VALUE = re.compile(r"[A-Za-z0-9](?:[-_.A-Za-z0-9]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class GpuPool:
    """One pool and its agents, all alike. `vram`: bytes of one GPU, None for what the model has.

    `agents` are there from the start; the pool may shrink to `min_agents` and grow to `max_agents` (None: `agents`).
    `agents_per_node` agents share one fake node (and one actor): 1 as on real machines, more when there are hundreds.
    """

    name: str
    agents: int = 1
    gpus: int = 1
    model: str = "A10"
    min_agents: int = 0
    max_agents: int | None = None
    vram: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Mapping[str, str] = field(default_factory=dict)
    agents_per_node: int = 1

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("a pool needs a name")
        for name in ("agents", "min_agents"):
            if getattr(self, name) < 0:
                raise ValueError(f"pool {self.name}: {name} must be 0 or more; got {getattr(self, name)}")
        for name in ("gpus", "agents_per_node"):
            if getattr(self, name) < 1:
                raise ValueError(f"pool {self.name}: {name} must be 1 or more; got {getattr(self, name)}")
        if self.may_grow_to < max(self.agents, self.min_agents):
            raise ValueError(
                f"pool {self.name}: max_agents is smaller than agents or min_agents; got {self.max_agents}, "
                f"accepted: {max(self.agents, self.min_agents)} or more"
            )

    @property
    def may_grow_to(self) -> int:
        """Most agents at a time."""
        return max(self.agents, self.min_agents) if self.max_agents is None else self.max_agents

    @property
    def node_type(self) -> str:
        """Name of the Ray node type."""
        return f"juice_{_plain(self.name)}"

    @property
    def pool_resource(self) -> str:
        """Name of the custom resource that only nodes of this pool have."""
        return POOL_RESOURCE_PREFIX + _plain(self.name)

    def nodes_for(self, agents: int) -> int:
        """How many nodes carry that many agents."""
        return math.ceil(agents / self.agents_per_node)

    def gpu_vram(self) -> int:
        """Bytes of VRAM of one GPU. Raises ValueError for a model that is not known."""
        if self.vram is not None:
            return self.vram
        from juice_sim.gpu_profiles import profile_named

        return profile_named(self.model).vram


def gpu_node_types(pools: Iterable[GpuPool], cpus_per_node: int = 1) -> dict[str, dict[str, Any]]:
    """Ray node types, one for each pool, as `available_node_types` takes them."""
    types: dict[str, dict[str, Any]] = {}
    for pool in pools:
        if pool.node_type in types:
            raise ValueError(f"two pools are named {pool.name!r}; names of pools are unique")
        vram = pool.gpu_vram()
        gpus = pool.gpus * pool.agents_per_node
        types[pool.node_type] = {
            "resources": {
                "CPU": cpus_per_node,
                "GPU": gpus,
                VRAM_RESOURCE: gpus * max(1, vram // GIB),
                pool.pool_resource: pool.agents_per_node,
            },
            "labels": {
                "juice-pool": label_value(pool.name),
                "juice-gpu-model": label_value(pool.model),
                "juice-gpus": str(pool.gpus),
                "juice-vram-gib": str(max(1, vram // GIB)),
            },
            "node_config": {},
            "min_workers": pool.nodes_for(pool.min_agents),
            "max_workers": pool.nodes_for(pool.may_grow_to),
        }
    return types


def slurm_node_types(nodes: int, cpus_per_node: int, name: str = "slurm_node") -> dict[str, dict[str, Any]]:
    """A Ray node type for the compute nodes of a simulated Slurm: CPUs only; jobs' scripts run there as Ray tasks."""
    if nodes < 0 or cpus_per_node < 1:
        raise ValueError(f"Slurm nodes: got {nodes} nodes of {cpus_per_node} CPUs; accepted: 0 or more of 1 or more")
    return {
        name: {
            "resources": {"CPU": cpus_per_node, SLURM_RESOURCE: 1},
            "labels": {"slurm-partition": "juice"},
            "node_config": {},
            "min_workers": 0,
            "max_workers": nodes,
        }
    }


def label_value(text: str) -> str:
    """`text` as Ray accepts it for a label's value: what does not fit is replaced, and made unique by a hash."""
    if _LABEL_VALUE.fullmatch(text):
        return text
    return _plain(text, allowed=r"[^-_.A-Za-z0-9]").strip("-_.") or "x"


def _plain(name: str, allowed: str = r"[^A-Za-z0-9_.-]") -> str:
    if _RESOURCE_NAME.fullmatch(name) and len(name) <= 50:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{re.sub(allowed, '_', name)[:40]}_{digest}"
