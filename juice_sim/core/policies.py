"""Policies that look at every agent that has room and give each a score: random, dot_prod, gpu_packing,
gpu_clustering and fgd.

They are the policies of Weng et al. ("Beware of Fragmentation", USENIX ATC 2023), read for agents that have GPUs and
VRAM but no CPU or memory of their own: docs/placement.md says how. A decision takes time linear in the number of
agents of the view, where first_fit and best_fit take its logarithm; when nothing has room, all say so at once.

Of equal agents the one that registered first is taken, of equal GPUs the first.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import TYPE_CHECKING, Any

from .capacity import Capacity, Kind, View
from .fragmentation import fragmented

if TYPE_CHECKING:
    from .placement import Need

Score = tuple[Any, ...]  # compared as tuples of numbers; the least is the best
USUAL_GPUS, USUAL_VRAM = 8, 8 * 80 * 2**30  # of the largest usual agent: what DotProd scales by
MAX_KINDS = 64  # of typical sessions that FGD looks at: the commonest


def candidates(capacity: Capacity, need: Need) -> list[int] | range:
    """Places of the GPUs that a slice may come from: all, or the one whose bus is named."""
    bus = need.buses[0]
    return [capacity.at_bus[bus]] if bus else range(len(capacity.free))


@dataclass(frozen=True)
class Surroundings:
    """What a score may depend on besides the agent: sessions of each kind on the view's agents, and how many those
    were granted so far. `memo` is for one decision."""

    kinds: Counter[Kind]
    granted: int
    memo: dict[Any, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, view: View) -> Surroundings:
        return cls(view.kinds, view.granted)

    @classmethod
    def near(cls, capacity: Capacity) -> Surroundings:
        """Those of the fullest view that holds this agent, for a decision about the agent alone."""
        views = sorted(capacity.places, key=lambda view: (-sum(view.kinds.values()), view.buses))
        return cls.of(views[0]) if views else cls(capacity.kinds, 0)


class ScoringPolicy(ABC):
    """The agent with the least score; for a slice, the agent and GPU with the least score."""

    name = ""
    by_size = False

    @abstractmethod
    def agent_score(self, capacity: Capacity, need: Need, around: Surroundings) -> Score:
        """How well whole GPUs of this agent suit; it has room."""

    @abstractmethod
    def gpu_score(self, capacity: Capacity, place: int, need: Need, around: Surroundings) -> Score:
        """How well a slice of the GPU at `place` suits; it has room."""

    def whole(self, view: View, need: Need) -> Capacity | None:
        """The best agent with `need.count` idle GPUs (those named among them), or None."""
        around = Surroundings.of(view)
        return min(with_idle(view, need), key=lambda capacity: self.agent_score(capacity, need, around), default=None)

    def slice(self, view: View, need: Need) -> tuple[Capacity, int] | None:
        """The best agent and place of a GPU on it with `need.vram` bytes free, or None."""
        around = Surroundings.of(view)
        found = ((capacity, place) for capacity in with_slice(view, need) for place in unlike(capacity, need))
        return min(found, key=lambda pair: self.gpu_score(pair[0], pair[1], need, around), default=None)

    def slice_on(self, capacity: Capacity, need: Need) -> int | None:
        """The best place on this agent, or None."""
        around = Surroundings.near(capacity)
        places = unlike(capacity, need)
        return min(places, key=lambda place: self.gpu_score(capacity, place, need, around), default=None)


def with_idle(view: View, need: Need) -> Iterator[Capacity]:
    """The agents of the view with enough idle GPUs, in order of registration."""
    if view.first_with_idle(need.count) is None:
        return
    for capacity in view.agents():
        if capacity.offer(view.buses)[1] >= need.count:
            yield capacity


def with_slice(view: View, need: Need) -> Iterator[Capacity]:
    """The agents of the view with a GPU that has room, in order of registration."""
    if view.largest_slice < need.vram:
        return
    for capacity in view.agents():
        if capacity.offer(view.buses)[0] >= need.vram:
            yield capacity


def fitting(capacity: Capacity, need: Need) -> list[int]:
    """Places of GPUs with room for the slice."""
    return [place for place in candidates(capacity, need) if capacity.free[place] >= need.vram]


def unlike(capacity: Capacity, need: Need) -> Iterable[int]:
    """Places of GPUs with room for the slice, of those that are alike only the first."""
    gpus = capacity.agent.gpus
    first: dict[tuple[int, int, bool], int] = {}
    for place in fitting(capacity, need):
        first.setdefault((capacity.free[place], gpus[place].vram, not capacity.holders[place]), place)
    return first.values()


class Random(ScoringPolicy):
    """Any agent with room, any of its GPUs with room, all equally likely.

    The draw is a hash of the agent's id, which is as random as the ids are, and of how many sessions the view's agents
    were granted so far; so the same commands with the same ids give the same choices again.
    """

    name = "random"

    def agent_score(self, capacity: Capacity, need: Need, around: Surroundings) -> Score:
        return (_draw(capacity.agent.id, around),)

    def gpu_score(self, capacity: Capacity, place: int, need: Need, around: Surroundings) -> Score:
        return (_draw(f"{capacity.agent.id}/{place}", around),)

    def slice(self, view: View, need: Need) -> tuple[Capacity, int] | None:
        around = Surroundings.of(view)
        # First the agent: one with eight GPUs must not be eight times as likely.
        capacity = min(with_slice(view, need), key=lambda one: self.agent_score(one, need, around), default=None)
        return None if capacity is None else (capacity, self._any(capacity, need, around))

    def slice_on(self, capacity: Capacity, need: Need) -> int | None:
        return self._any(capacity, need, Surroundings.near(capacity)) if fitting(capacity, need) else None

    def _any(self, capacity: Capacity, need: Need, around: Surroundings) -> int:
        return min(fitting(capacity, need), key=lambda place: self.gpu_score(capacity, place, need, around))


class DotProd(ScoringPolicy):
    """What is free on the agent and what is asked for as vectors of (bytes of VRAM, GPUs), scaled by the largest usual
    agent: the least dot product first, so that a large request goes where little is left. A slice asks for no whole
    GPU; of an agent's GPUs it gets the fullest with room."""

    name = "dot_prod"

    def agent_score(self, capacity: Capacity, need: Need, around: Surroundings) -> Score:
        pairs = zip(capacity.agent.gpus, capacity.holders, strict=True)
        asked = sum([gpu.vram for gpu, held in pairs if not held][: need.count])
        vram_part = (sum(capacity.free) / USUAL_VRAM) * (asked / USUAL_VRAM)
        return (vram_part + (capacity.idle / USUAL_GPUS) * (need.count / USUAL_GPUS),)

    def gpu_score(self, capacity: Capacity, place: int, need: Need, around: Surroundings) -> Score:
        return (sum(capacity.free), capacity.order, capacity.free[place])


class GpuPacking(ScoringPolicy):
    """First a GPU that is shared already, the fuller the better; then an idle GPU of an agent in use; then an idle
    agent, the one with the fewest GPUs first."""

    name = "gpu_packing"

    def agent_score(self, capacity: Capacity, need: Need, around: Surroundings) -> Score:
        return self._idle_score(capacity)

    def gpu_score(self, capacity: Capacity, place: int, need: Need, around: Surroundings) -> Score:
        if capacity.holders[place]:
            return (0, capacity.free[place] / capacity.agent.gpus[place].vram)
        return self._idle_score(capacity)

    @staticmethod
    def _idle_score(capacity: Capacity) -> Score:
        return (2, len(capacity.free)) if capacity.idle == len(capacity.free) else (1, 0)


class GpuClustering(ScoringPolicy):
    """Sessions of a kind together (slices; or whole GPUs, as many of them): agents that hold only that kind, then
    those that hold it among others, then idle ones, then the rest; within each, the fuller first."""

    name = "gpu_clustering"

    def agent_score(self, capacity: Capacity, need: Need, around: Surroundings) -> Score:
        return self._score(capacity, need)

    def gpu_score(self, capacity: Capacity, place: int, need: Need, around: Surroundings) -> Score:
        return (*self._score(capacity, need), capacity.order, capacity.free[place])

    @staticmethod
    def _score(capacity: Capacity, need: Need) -> Score:
        held = {whole for whole, _ in capacity.kinds}  # 0: slices
        kind = 0 if need.vram else need.count
        order = (0 if len(held) == 1 else 1) if kind in held else (3 if held else 2)
        return (order, sum(capacity.free))


class FGD(ScoringPolicy):
    """Fragmentation gradient descent: where the idle VRAM that typical sessions could not use grows least.

    Typical are the sessions that the view's agents hold now, and this one.
    """

    name = "fgd"

    def agent_score(self, capacity: Capacity, need: Need, around: Surroundings) -> Score:
        places = [place for place, held in enumerate(capacity.holders) if not held][: need.count]
        return (self._growth(capacity, places, (need.count, 0), around),)

    def gpu_score(self, capacity: Capacity, place: int, need: Need, around: Surroundings) -> Score:
        return (self._growth(capacity, [place], (0, need.vram), around),)

    @staticmethod
    def _growth(capacity: Capacity, places: Sequence[int], asked: Kind, around: Surroundings) -> int:
        before = tuple((free, not held) for free, held in zip(capacity.free, capacity.holders, strict=True))
        known = around.memo.get((before, places[0]))
        if known is not None:
            return int(known)  # another agent is in the same state
        if "typical" not in around.memo:
            around.memo["typical"] = _typical(around.kinds, asked)
        typical = around.memo["typical"]
        after = list(before)
        for place in places:
            after[place] = (before[place][0] - asked[1] if asked[1] else 0, False)
        growth = fragmented(after, typical) - fragmented(before, typical)
        around.memo[before, places[0]] = growth
        return growth


def _typical(kinds: Counter[Kind], asked: Kind) -> list[tuple[Kind, int]]:
    commonest = sorted(kinds.items(), key=lambda item: (-item[1], item[0]))[:MAX_KINDS]
    counts = dict(commonest)
    counts[asked] = counts.get(asked, 0) + 1
    return list(counts.items())


def _draw(text: str, around: Surroundings) -> bytes:
    return blake2b(f"{text}/{around.granted}".encode(), digest_size=8).digest()


SCORING: tuple[ScoringPolicy, ...] = (Random(), DotProd(), GpuPacking(), GpuClustering(), FGD())
