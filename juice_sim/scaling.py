"""What a growing and shrinking set of agents should do next: a pure decision.

`plan` looks at the sessions that wait, at the kinds of nodes that could be started and at the nodes that are there, and
says how many to add and which to drain. `scaling_loop` carries it out. The rules:

- A session that has waited for `patience_s` is one that no present agent can serve now (the controller assigns at once
  what fits). It is first counted on nodes that are already starting, then on one that is draining and could stay, then
  on a new one of the smallest type that could serve it. Sessions are packed as the controller would place them, so that
  eight small slices ask for one GPU and not for eight.
- A node without sessions for `idle_after_s` is drained, longest idle first.
- There are never more nodes of a type than `max_nodes`, draining ones included; none is drained below `min_nodes`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from .core.capacity import Capacity
from .core.model import Agent, Gpu, NodeType, Requirements
from .core.placement import FirstFit, Need, fits_empty, need_of, place_on
from .core.selectors import accepts


@dataclass(frozen=True)
class Growable:
    """A type of node that can be started. `gpus`, `labels` and `taints` are those of each of its agents."""

    name: str
    pool_id: str
    gpus: tuple[Gpu, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Mapping[str, str] = field(default_factory=dict)
    agents_per_node: int = 1
    min_nodes: int = 0
    max_nodes: int = 1

    def as_node_type(self) -> NodeType:
        """As it is declared to the controller (`PUT /v1/node-types`)."""
        return NodeType(self.name, self.pool_id, self.gpus, dict(self.labels), dict(self.taints), self.max_nodes)

    @property
    def size(self) -> tuple[int, int, str]:
        """Order of types: the fewest GPUs first, then the least VRAM."""
        return len(self.gpus) * self.agents_per_node, sum(gpu.vram for gpu in self.gpus), self.name


class Phase(str, Enum):
    """Where a node is in its life."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True)
class NodeView:
    """One node. `idle_since`: time since when none of its agents has had a session, None while one has."""

    key: str
    type_name: str
    phase: Phase
    idle_since: float | None = None


@dataclass(frozen=True)
class Waiting:
    """One queued session; `since` is the time at which it was requested."""

    session_id: str
    requirements: Requirements
    since: float


@dataclass(frozen=True)
class Plan:
    """`add`: type -> number of nodes; `resume`: draining nodes that should stay; `drain`: nodes that should go;
    `hopeless`: sessions that nothing which may still start could serve."""

    add: Mapping[str, int]
    resume: tuple[str, ...] = ()
    drain: tuple[str, ...] = ()
    hopeless: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.add or self.resume or self.drain)


class _Offer:
    """The agents of one node, empty at first, that fill up with waiting sessions."""

    def __init__(self, kind: Growable) -> None:
        self.kind = kind
        self._agents = [
            Capacity(Agent(f"{kind.name}/{order}", "", "", "", kind.pool_id, kind.gpus), order)
            for order in range(kind.agents_per_node)
        ]

    def take(self, requirements: Requirements, need: Need) -> bool:
        """Count the session on one of the agents; False when none has room."""
        if not _accepted(self.kind, requirements):
            return False
        for capacity in self._agents:
            placement = place_on(_POLICY, capacity, need)
            if placement is not None:
                capacity.take(placement.grants)
                return True
        return False


_POLICY = FirstFit()


def _accepted(kind: Growable, requirements: Requirements) -> bool:
    return requirements.pool_id in ("", kind.pool_id) and accepts(requirements)(kind.labels, kind.taints)


def _could_serve(kind: Growable, requirements: Requirements, need: Need) -> bool:
    gpus = tuple((gpu.vram, gpu.pci_bus) for gpu in kind.gpus)
    return _accepted(kind, requirements) and fits_empty(gpus, need)


def plan(
    waiting: Iterable[Waiting],
    types: Sequence[Growable],
    nodes: Sequence[NodeView],
    now: float,
    *,
    patience_s: float = 1.0,
    idle_after_s: float = 30.0,
    granted_percent: int = 93,
) -> Plan:
    """What to do now. All times on one clock, seconds; `granted_percent` is the controller's rule for slices."""
    by_name = {kind.name: kind for kind in types}
    known = [node for node in nodes if node.type_name in by_name]
    total = Counter(node.type_name for node in known)
    staying = Counter(node.type_name for node in known if node.phase is not Phase.DRAINING)
    leaving = [node for node in known if node.phase is Phase.DRAINING]
    offers = [_Offer(by_name[node.type_name]) for node in known if node.phase is Phase.STARTING]
    add: Counter[str] = Counter()
    resume: list[str] = []
    hopeless: list[str] = []

    def stay(node: NodeView) -> _Offer:
        leaving.remove(node)
        resume.append(node.key)
        staying[node.type_name] += 1
        offers.append(_Offer(by_name[node.type_name]))
        return offers[-1]

    def start(kind: Growable) -> _Offer:
        add[kind.name] += 1
        total[kind.name] += 1
        staying[kind.name] += 1
        offers.append(_Offer(kind))
        return offers[-1]

    for kind in types:
        while staying[kind.name] < kind.min_nodes:
            draining = next((node for node in leaving if node.type_name == kind.name), None)
            if draining is not None:
                stay(draining)
            elif total[kind.name] < kind.max_nodes:
                start(kind)
            else:
                break

    for session in sorted(waiting, key=lambda each: (each.since, each.session_id)):
        if now - session.since < patience_s:
            continue
        requirements, need = session.requirements, need_of(session.requirements, granted_percent)
        if any(offer.take(requirements, need) for offer in offers):
            continue
        draining = next((n for n in leaving if _could_serve(by_name[n.type_name], requirements, need)), None)
        if draining is not None:
            stay(draining).take(requirements, need)
            continue
        suitable = sorted((kind for kind in types if _could_serve(kind, requirements, need)), key=lambda k: k.size)
        if not suitable:
            hopeless.append(session.session_id)
        elif (room := next((kind for kind in suitable if total[kind.name] < kind.max_nodes), None)) is not None:
            start(room).take(requirements, need)

    drain: list[str] = []
    idle = [node for node in known if node.phase is Phase.SERVING and node.idle_since is not None]
    for node in sorted(idle, key=lambda each: (each.idle_since or 0.0, each.key)):
        long_idle = now - (node.idle_since if node.idle_since is not None else now) >= idle_after_s
        if long_idle and not add[node.type_name] and staying[node.type_name] > by_name[node.type_name].min_nodes:
            staying[node.type_name] -= 1
            drain.append(node.key)
    return Plan({name: count for name, count in add.items() if count}, tuple(resume), tuple(drain), tuple(hopeless))
