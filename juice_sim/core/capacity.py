"""Free capacity: what is left on each agent, and an index that finds an agent with enough of it.

The cost of a search, a grant, a release and the loss of an agent grows with the logarithm of the number of agents. An
index is kept for each combination of labels, taints and buses that sessions really ask for (`View`), made when it is
first needed; all of this is derived from agents and sessions and never stored.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from heapq import heapify, heappop, heappush

from .model import Agent, Gpu, GpuGrant

Accepts = Callable[[Mapping[str, str], Mapping[str, str]], bool]
Kind = tuple[int, int]  # of a session: (number of whole GPUs, 0) or (0, bytes of its slice)


def kind_of(grants: Sequence[GpuGrant]) -> Kind:
    """The kind of the session that holds these grants."""
    return (len(grants), 0) if grants[0].whole else (0, grants[0].vram)


class Capacity:
    """What is free on one agent. Positions are those in the agent's list of GPUs, not the GPUs' own indexes."""

    __slots__ = (
        "agent",
        "at_bus",
        "at_index",
        "free",
        "holders",
        "idle",
        "kinds",
        "largest_free",
        "order",
        "places",
        "schedulable",
    )

    def __init__(self, agent: Agent, order: int) -> None:
        self.agent = agent
        self.order = order  # how many agents registered before: first fit goes by it
        self.free = [gpu.vram for gpu in agent.gpus]
        self.holders = [0] * len(agent.gpus)  # sessions on each GPU
        self.idle = len(agent.gpus)
        self.kinds: Counter[Kind] = Counter()  # sessions of each kind that are on the agent
        self.largest_free = max(self.free, default=-1)
        self.at_index = {gpu.index: place for place, gpu in enumerate(agent.gpus)}
        self.at_bus = {gpu.pci_bus: place for place, gpu in enumerate(agent.gpus) if gpu.pci_bus}
        self.schedulable = True
        self.places: dict[View, int] = {}  # leaf of this agent in each view that holds it

    def take(self, grants: Sequence[GpuGrant]) -> None:
        """Book the grants of one session."""
        places = [self.at_index[grant.index] for grant in grants]
        for place, grant in zip(places, grants, strict=True):
            self.free[place] -= grant.vram
            if not self.holders[place]:
                self.idle -= 1
            self.holders[place] += 1
        kind = kind_of(grants)
        self.kinds[kind] += 1
        for view in self.places:
            view.kinds[kind] += 1
            view.granted += 1
        self._changed(places)

    def give_back(self, grants: Sequence[GpuGrant]) -> None:
        """Undo `take`."""
        places = [self.at_index[grant.index] for grant in grants]
        for place, grant in zip(places, grants, strict=True):
            self.free[place] += grant.vram
            self.holders[place] -= 1
            if not self.holders[place]:
                self.idle += 1
        kind = kind_of(grants)
        _subtract(self.kinds, kind, 1)
        for view in self.places:
            _subtract(view.kinds, kind, 1)
        self._changed(places)

    def set_schedulable(self, schedulable: bool) -> None:
        """An agent that is not schedulable stays in the index with nothing to offer."""
        if schedulable != self.schedulable:
            self.schedulable = schedulable
            self._changed(range(len(self.free)))

    def offer(self, buses: tuple[str, ...]) -> tuple[int, int]:
        """(largest slice, number of idle GPUs) on offer to a session that wants the GPUs at `buses` among its own.

        -1 and 0 when there is nothing. With buses, the slice is of one of those GPUs, and no idle GPU counts unless
        all of those are idle.
        """
        if not self.schedulable:
            return -1, 0
        if not buses:
            return self.largest_free, self.idle
        places = [self.at_bus.get(bus, -1) for bus in buses]
        if min(places) < 0 or len(set(places)) < len(places):
            return -1, 0
        free = max(self.free[place] for place in places)
        return free, 0 if any(self.holders[place] for place in places) else self.idle

    def _changed(self, places: Sequence[int]) -> None:
        self.largest_free = max(self.free, default=-1)
        for view, leaf in self.places.items():
            view.update(leaf, self, places)


class View:
    """The agents of one pool that a kind of session accepts, in order of registration, searchable by what they offer.

    Two complete binary trees over the same leaves hold the maximum of what is below each node: bytes of the largest
    slice, and number of idle GPUs. The leftmost leaf with at least N is found in one descent.
    """

    def __init__(self, buses: tuple[str, ...], accepts: Accepts, *, by_size: bool) -> None:
        self.buses = buses
        self.accepts = accepts  # of an agent's labels and taints
        self.kinds: Counter[Kind] = Counter()  # sessions of each kind on all agents of the view
        self.granted = 0  # sessions that were granted on agents of this view since it was made
        self._size = 1
        self._leaves: list[Capacity | None] = []
        self._slices: list[int] = [-1, -1]
        self._idle: list[int] = [0, 0]
        self._sizes = SizeIndex() if by_size else None
        self._counts = SizeIndex() if by_size else None

    def add(self, capacity: Capacity) -> None:
        """Append an agent; agents are added in order of registration."""
        if len(self._leaves) == self._size:
            self._grow()
        leaf = len(self._leaves)
        self._leaves.append(capacity)
        capacity.places[self] = leaf
        self.kinds.update(capacity.kinds)
        self.update(leaf, capacity, range(len(capacity.free)))

    def remove(self, capacity: Capacity) -> None:
        """Take an agent out. Its leaf is reused at the next growth."""
        leaf = capacity.places.pop(self)
        self._leaves[leaf] = None
        for kind, count in capacity.kinds.items():
            _subtract(self.kinds, kind, count)
        self._set(leaf, -1, 0)
        if self._sizes is not None and self._counts is not None:
            self._counts.discard((capacity.order, 0))
            for place in range(len(capacity.free)):
                self._sizes.discard((capacity.order, place))

    def update(self, leaf: int, capacity: Capacity, places: Sequence[int]) -> None:
        """What is free on the GPUs at `places` of the agent at `leaf` has changed."""
        largest, idle = capacity.offer(self.buses)
        self._set(leaf, largest, idle)
        if self._sizes is not None and self._counts is not None:
            self._counts.set((capacity.order, 0), idle, leaf)
            offered = {capacity.at_bus.get(bus, -1) for bus in self.buses}
            for place in places:
                on_offer = largest >= 0 and (not self.buses or place in offered)
                self._sizes.set((capacity.order, place), capacity.free[place] if on_offer else -1, leaf)

    @property
    def largest_slice(self) -> int:
        """Bytes of the largest slice that any agent could give now; -1 when there is none."""
        return self._slices[1]

    def first_with_slice(self, need: int) -> Capacity | None:
        """The first agent with a GPU that has at least `need` bytes free."""
        return self._first(self._slices, need)

    def first_with_idle(self, count: int) -> Capacity | None:
        """The first agent with at least `count` idle GPUs."""
        return self._first(self._idle, count)

    def tightest_slice(self, need: int) -> tuple[Capacity, int] | None:
        """(agent, place) of the GPU with the least free VRAM that is at least `need`; needs `by_size`."""
        assert self._sizes is not None
        found = self._sizes.tightest(need)
        if found is None:
            return None
        (_, place), leaf = found
        capacity = self._leaves[leaf]
        assert capacity is not None
        return capacity, place

    def tightest_idle(self, count: int) -> Capacity | None:
        """The agent with the fewest idle GPUs that are at least `count`; needs `by_size`."""
        assert self._counts is not None
        found = self._counts.tightest(count)
        return None if found is None else self._leaves[found[1]]

    def agents(self) -> Iterable[Capacity]:
        """All agents of the view in order of registration; linear, for policies that score each one."""
        return (capacity for capacity in self._leaves if capacity is not None)

    def check(self, leaf: int, capacity: Capacity) -> None:
        """Assert that the leaf of this agent and all above it are right."""
        node = leaf + self._size
        assert self._leaves[leaf] is capacity
        largest, idle = capacity.offer(self.buses)
        assert (self._slices[node], self._idle[node]) == (largest, idle), "a leaf is stale"
        if self._sizes is not None and self._counts is not None:
            sizes = [self._sizes.size_of((capacity.order, place)) for place in range(len(capacity.free))]
            assert max(sizes) == largest, "the sizes are stale"
            assert self._counts.size_of((capacity.order, 0)) == idle, "the counts are stale"
        while node > 1:
            node >>= 1
            for tree in (self._slices, self._idle):
                assert tree[node] == max(tree[2 * node], tree[2 * node + 1]), "a tree is stale"

    def _first(self, tree: list[int], need: int) -> Capacity | None:
        if tree[1] < need:
            return None
        node, size = 1, self._size
        while node < size:
            node *= 2
            if tree[node] < need:
                node += 1
        return self._leaves[node - size]

    def _set(self, leaf: int, largest: int, idle: int) -> None:
        for tree, value in ((self._slices, largest), (self._idle, idle)):
            node = leaf + self._size
            tree[node] = value
            while node > 1:
                other = tree[node ^ 1]
                if other > value:
                    value = other
                node >>= 1
                if tree[node] == value:
                    break  # nothing above can change
                tree[node] = value

    def _grow(self) -> None:
        """Drop the leaves of agents that are gone; double when that does not make enough room."""
        kept = [capacity for capacity in self._leaves if capacity is not None]
        while len(kept) * 2 > self._size:
            self._size *= 2
        self._leaves = []
        self._slices = [-1] * (2 * self._size)
        self._idle = [0] * (2 * self._size)
        if self._sizes is not None:
            self._sizes, self._counts = SizeIndex(), SizeIndex()
        for capacity in kept:
            leaf = len(self._leaves)
            self._leaves.append(capacity)
            capacity.places[self] = leaf
            self.update(leaf, capacity, range(len(capacity.free)))


def _subtract(kinds: Counter[Kind], kind: Kind, count: int) -> None:
    left = kinds[kind] - count
    if left:
        kinds[kind] = left
    else:
        del kinds[kind]


Item = tuple[int, int]  # (order of the agent, place of the GPU)


class SizeIndex:
    """Items by size: finds the first item of the smallest size that is at least N.

    There are few distinct sizes (slices come in a few sizes), so they are one sorted list; the items of each size are a
    heap from which those that have left are dropped when they come up.
    """

    def __init__(self) -> None:
        self._keys: list[int] = []
        self._heaps: dict[int, list[tuple[Item, int]]] = {}
        self._counts: dict[int, int] = {}
        self._size_of: dict[Item, int] = {}

    def set(self, item: Item, size: int, leaf: int) -> None:
        """Put the item under `size`; `leaf` is handed back by `tightest`."""
        if self._size_of.get(item) == size:
            return
        self.discard(item)
        heap = self._heaps.get(size)
        if heap is None:
            insort(self._keys, size)
            heap = self._heaps[size] = []
            self._counts[size] = 0
        heappush(heap, (item, leaf))
        self._counts[size] += 1
        self._size_of[item] = size
        if len(heap) > 2 * self._counts[size] + 16:
            heap[:] = [(item, leaf) for item, leaf in set(heap) if self._size_of.get(item) == size]
            heapify(heap)

    def size_of(self, item: Item) -> int:
        """The size under which the item is filed. KeyError when it is not there."""
        return self._size_of[item]

    def discard(self, item: Item) -> None:
        """Forget the item; no error when it is not there."""
        size = self._size_of.pop(item, None)
        if size is None:
            return
        self._counts[size] -= 1
        if not self._counts[size]:
            del self._keys[bisect_left(self._keys, size)], self._heaps[size], self._counts[size]

    def tightest(self, need: int) -> tuple[Item, int] | None:
        """(item, leaf) of the first item of the smallest size >= need."""
        at = bisect_left(self._keys, need)
        if at == len(self._keys):
            return None
        size = self._keys[at]
        heap = self._heaps[size]
        while self._size_of.get(heap[0][0]) != size:
            heappop(heap)
        return heap[0]


def gpu_profile(gpus: Iterable[Gpu]) -> tuple[tuple[int, str], ...]:
    """What matters of an agent's GPUs for whether it could ever serve a session: (VRAM, bus) of each."""
    return tuple((gpu.vram, gpu.pci_bus) for gpu in gpus)
