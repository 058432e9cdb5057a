"""Placement: which agent and which of its GPUs a session gets.

A policy chooses among the agents of one view (`capacity.View`); what a choice must respect is the same for all:
all GPUs from one agent, whole GPUs shared with nobody, a slice from one GPU that has all of it or, when no GPU has and
the session is not strict, the largest rest that is at least 93 % of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from .capacity import Capacity, View
from .model import GpuGrant, Requirements
from .policies import SCORING, candidates


@dataclass(frozen=True)
class Need:
    """What a session needs of an agent's GPUs: either `count` whole ones, or one slice of `vram` bytes.

    `floor` is the least slice that is acceptable when nothing larger is free (equal to `vram` when strict). `buses`
    names the PCI bus of each GPU in the order asked for, "" for any.
    """

    count: int
    vram: int  # 0: whole GPUs
    floor: int
    buses: tuple[str, ...]

    @property
    def named(self) -> tuple[str, ...]:
        """The buses that are named, in order."""
        return tuple(bus for bus in self.buses if bus)


def need_of(requirements: Requirements, granted_percent: int) -> Need:
    """What the requirements ask of one agent."""
    vram = requirements.gpus[0].vram_required if len(requirements.gpus) == 1 else 0
    floor = vram if requirements.strict else -(-vram * granted_percent // 100)
    return Need(len(requirements.gpus), vram, floor, tuple(gpu.pci_bus for gpu in requirements.gpus))


@dataclass(frozen=True)
class Placement:
    """A choice: an agent and the grants on it, in the order of the requirements."""

    capacity: Capacity
    grants: tuple[GpuGrant, ...]


class Policy(Protocol):
    """How to choose. `by_size` asks for views that can also be searched for the tightest fit."""

    name: str
    by_size: bool

    def whole(self, view: View, need: Need) -> Capacity | None:
        """An agent with `need.count` idle GPUs (those named among them), or None."""

    def slice(self, view: View, need: Need) -> tuple[Capacity, int] | None:
        """An agent and the place of a GPU on it that has `need.vram` bytes free, or None."""

    def slice_on(self, capacity: Capacity, need: Need) -> int | None:
        """The same on a given agent: the place of a GPU, or None."""


class FirstFit:
    """The real controller's order: the first agent that registered, its first GPU that fits."""

    name = "first_fit"
    by_size = False

    def whole(self, view: View, need: Need) -> Capacity | None:
        return view.first_with_idle(need.count)

    def slice(self, view: View, need: Need) -> tuple[Capacity, int] | None:
        capacity = view.first_with_slice(need.vram)
        if capacity is None:
            return None
        place = self.slice_on(capacity, need)
        assert place is not None, "the index promised a GPU with room"
        return capacity, place

    def slice_on(self, capacity: Capacity, need: Need) -> int | None:
        return next((place for place in candidates(capacity, need) if capacity.free[place] >= need.vram), None)


class BestFit:
    """The least rest: a slice goes where it leaves least VRAM, whole GPUs to the agent with the fewest idle ones."""

    name = "best_fit"
    by_size = True

    def whole(self, view: View, need: Need) -> Capacity | None:
        return view.tightest_idle(need.count)

    def slice(self, view: View, need: Need) -> tuple[Capacity, int] | None:
        return view.tightest_slice(need.vram)

    def slice_on(self, capacity: Capacity, need: Need) -> int | None:
        fitting = [place for place in candidates(capacity, need) if capacity.free[place] >= need.vram]
        return min(fitting, key=capacity.free.__getitem__, default=None)


_INDEXED: tuple[Policy, ...] = (FirstFit(), BestFit())
POLICIES: dict[str, Policy] = {policy.name: policy for policy in (*_INDEXED, *SCORING)}


def policy_named(name: str) -> Policy:
    """The policy of that name. Raises ValueError that lists the known ones."""
    if name not in POLICIES:
        raise ValueError(f"placement policy {name!r} is unknown; accepted: {', '.join(sorted(POLICIES))}")
    return POLICIES[name]


def place(policy: Policy, view: View, need: Need) -> Placement | None:
    """Place a session on the best agent of the view, with all that it asks for; None when none has room now."""
    if not need.vram:
        capacity = policy.whole(view, need)
        return None if capacity is None else Placement(capacity, _whole_grants(capacity, need))
    found = policy.slice(view, need)
    if found is not None:
        return Placement(found[0], (_slice_grant(found[0], found[1], need.vram),))
    return None


def place_rest(view: View, need: Need) -> Placement | None:
    """Place a slice on the GPU with the largest rest when that is enough; for when no GPU anywhere has all of it."""
    rest = view.largest_slice
    if not need.vram or rest < need.floor:
        return None
    capacity = view.first_with_slice(rest)
    assert capacity is not None
    return _place_rest(capacity, need)


def place_on(policy: Policy, capacity: Capacity, need: Need) -> Placement | None:
    """Place a session on this agent, or None. The caller knows that no other agent could give all that is asked for."""
    largest, idle = capacity.offer(need.named)
    if not need.vram:
        return Placement(capacity, _whole_grants(capacity, need)) if idle >= need.count else None
    if largest >= need.vram:
        where = policy.slice_on(capacity, need)
        assert where is not None, "a GPU with room is on offer"
        return Placement(capacity, (_slice_grant(capacity, where, need.vram),))
    return _place_rest(capacity, need) if largest >= need.floor else None


def fits_empty(gpus: tuple[tuple[int, str], ...], need: Need) -> bool:
    """Whether an agent with these GPUs, (VRAM, bus) each, could serve the need when nothing else runs on it."""
    wanted = need.named
    if wanted:
        buses = [bus for _, bus in gpus]
        if len(set(wanted)) < len(wanted) or any(bus not in buses for bus in wanted):
            return False
    if not need.vram:
        return len(gpus) >= need.count
    return any(vram >= need.floor for vram, bus in gpus if not wanted or bus in wanted)


def _place_rest(capacity: Capacity, need: Need) -> Placement:
    where = max(candidates(capacity, need), key=capacity.free.__getitem__)
    return Placement(capacity, (_slice_grant(capacity, where, capacity.free[where]),))


def _slice_grant(capacity: Capacity, where: int, vram: int) -> GpuGrant:
    return GpuGrant(capacity.agent.gpus[where].index, vram, whole=False)


def _whole_grants(capacity: Capacity, need: Need) -> tuple[GpuGrant, ...]:
    taken = {capacity.at_bus[bus] for bus in need.buses if bus}
    others = (at for at, held in enumerate(capacity.holders) if not held and at not in taken)
    chosen = [capacity.at_bus[bus] if bus else next(others) for bus in need.buses]
    gpus = capacity.agent.gpus
    return tuple(GpuGrant(gpus[at].index, gpus[at].vram, whole=True) for at in chosen)
