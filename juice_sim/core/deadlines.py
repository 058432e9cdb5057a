"""What is due when. A heap that tolerates deadlines being moved, which heartbeats do all the time."""

from __future__ import annotations

from collections.abc import KeysView
from heapq import heappop, heappush


class Deadlines:
    """One deadline per key. Moving a deadline into the future costs O(1): the heap is corrected when it comes up."""

    def __init__(self) -> None:
        self._due: dict[str, float] = {}
        self._heap: list[tuple[float, str]] = []
        self._filed: dict[str, float] = {}  # key -> time of its one valid entry in the heap

    def __len__(self) -> int:
        return len(self._due)

    def __contains__(self, key: str) -> bool:
        return key in self._due

    def set(self, key: str, due: float) -> None:
        """Set or move the deadline of `key`."""
        self._due[key] = due
        filed = self._filed.get(key)
        if filed is None or due < filed:
            self._filed[key] = due
            heappush(self._heap, (due, key))

    def discard(self, key: str) -> None:
        """Forget the deadline of `key`; no error when it has none."""
        self._due.pop(key, None)

    def get(self, key: str) -> float | None:
        """The deadline of `key`, None when it has none."""
        return self._due.get(key)

    def next(self) -> float | None:
        """The earliest deadline, None when there is none."""
        while self._heap:
            at, key = self._heap[0]
            if self._filed.get(key) != at:
                heappop(self._heap)  # superseded by an earlier entry that has been popped or is still to come
                continue
            due = self._due.get(key)
            if due == at:
                return at
            heappop(self._heap)
            if due is None:
                del self._filed[key]
            else:
                self._filed[key] = due
                heappush(self._heap, (due, key))
        return None

    def pop_due(self, now: float) -> list[str]:
        """Take out all keys whose deadline is at or before `now`, earliest first, ties by key."""
        taken: list[str] = []
        while (at := self.next()) is not None and at <= now:
            _, key = heappop(self._heap)
            del self._due[key], self._filed[key]
            taken.append(key)
        return taken

    def keys(self) -> KeysView[str]:
        """All keys that have a deadline."""
        return self._due.keys()
