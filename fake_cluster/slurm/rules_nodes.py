"""Which CPUs of which nodes are free: first fit in slurm.conf's order, whole CPUs, as select/cons_tres with CR_Core."""

from __future__ import annotations

from collections.abc import Mapping


class NodeTable:
    """Free CPUs per node with a tree of maxima above it, so that the first node with enough costs O(log nodes)."""

    def __init__(self, cpus: Mapping[str, int]) -> None:
        self.names = list(cpus)
        self.total = dict(cpus)
        self.index = {name: i for i, name in enumerate(self.names)}
        self.down: set[str] = set()
        self._largest = max(cpus.values(), default=0)
        self._size = 1
        while self._size < max(1, len(self.names)):
            self._size *= 2
        self._tree = [0] * (2 * self._size)
        self._free = dict(cpus)
        for i, name in enumerate(self.names):
            self._tree[self._size + i] = cpus[name]
        for i in range(self._size - 1, 0, -1):
            self._tree[i] = max(self._tree[2 * i], self._tree[2 * i + 1])

    def free(self, name: str) -> int:
        """Free CPUs of a node; 0 while it is down."""
        return 0 if name in self.down else self._free[name]

    def used(self, name: str) -> int:
        """CPUs that jobs hold on a node, also while it is down."""
        return self.total[name] - self._free[name]

    def _update(self, name: str) -> None:
        i = self._size + self.index[name]
        self._tree[i] = self.free(name)
        i //= 2
        while i:
            self._tree[i] = max(self._tree[2 * i], self._tree[2 * i + 1])
            i //= 2

    def _first(self, cpus: int, start: int = 0) -> int | None:
        """Index of the first node at or after `start` with that many free CPUs."""
        tree, size = self._tree, self._size
        if start >= size:
            return None
        i = size + start
        while tree[i] < cpus:
            # Climb while this is the last of its subtree, then go to the next one on the right.
            while i & 1:
                i //= 2
                if i <= 1:
                    return None
            i += 1
        while i < size:
            i = 2 * i if tree[2 * i] >= cpus else 2 * i + 1
        found = i - size
        return found if found < len(self.names) else None

    def take(self, cpus: Mapping[str, int]) -> None:
        """Take CPUs that `fit` has found."""
        for name, count in cpus.items():
            if count > self._free[name]:
                raise ValueError(f"{name}: {count} CPUs wanted, {self._free[name]} free")
            self._free[name] -= count
            self._update(name)

    def give(self, cpus: Mapping[str, int]) -> None:
        """Give CPUs back."""
        for name, count in cpus.items():
            if self._free[name] + count > self.total[name]:
                raise ValueError(f"{name}: {count} CPUs given back, but only {self.used(name)} were held")
            self._free[name] += count
            self._update(name)

    def set_down(self, name: str, down: bool) -> None:
        """A node that is down has no free CPUs."""
        if down:
            self.down.add(name)
        else:
            self.down.discard(name)
        self._update(name)

    def fit(self, ntasks: int, cpus_per_task: int, nodes: int) -> dict[str, int] | None:
        """CPUs per node for a job, or None when it must wait. `nodes` 0: as few as the tasks need.

        One node is preferred; otherwise tasks fill the nodes in order. With `nodes` given, each gets its even share.
        """
        if nodes <= 1:
            first = self._first(ntasks * cpus_per_task)
            if first is not None:
                return {self.names[first]: ntasks * cpus_per_task}
            if nodes == 1 or ntasks == 1:
                return None
            chosen: dict[str, int] = {}
            left, at = ntasks, 0
            while left:
                found = self._first(cpus_per_task, at)
                if found is None:
                    return None
                here = min(left, self.free(self.names[found]) // cpus_per_task)
                chosen[self.names[found]] = here * cpus_per_task
                left -= here
                at = found + 1
            return chosen
        share, extra = divmod(max(ntasks, nodes), nodes)
        chosen = {}
        # The nodes with one task more are looked for first, so that the scarcer ones go to them.
        for count in [share + 1] * extra + [share] * (nodes - extra):
            at = 0
            while (found := self._first(count * cpus_per_task, at)) is not None and self.names[found] in chosen:
                at = found + 1
            if found is None:
                return None
            chosen[self.names[found]] = count * cpus_per_task
        return dict(sorted(chosen.items(), key=lambda item: self.index[item[0]]))

    def fit_all(self, wanted: list[tuple[int, int, int]]) -> list[dict[str, int]] | None:
        """CPUs for all components of a het job at once, or None. No two components share a node. Nothing is taken."""
        if len(wanted) == 1:
            one = self.fit(*wanted[0])
            return None if one is None else [one]
        found: list[dict[str, int]] = []
        hidden: dict[str, int] = {}
        try:
            for ntasks, cpus_per_task, nodes in wanted:
                one = self.fit(ntasks, cpus_per_task, nodes)
                if one is None:
                    return None
                found.append(one)
                for name in one:
                    hidden[name] = self._free[name]
                    self._free[name] = 0
                    self._update(name)
            return found
        finally:
            for name, count in hidden.items():
                self._free[name] = count
                self._update(name)

    def ever_fits(self, wanted: list[tuple[int, int, int]]) -> bool:
        """Whether the components would fit on the empty cluster with every node up."""
        if len(wanted) == 1 and wanted[0][2] <= 1 and wanted[0][0] * wanted[0][1] <= self._largest:
            return True  # by far the most frequent case, and free of charge
        return NodeTable(self.total).fit_all(wanted) is not None
