"""The one event heap, the one source of chance, the true time. Nothing in a simulation waits, reads a clock or draws
elsewhere.

Times are seconds since the run began (true time: no process in the world sees it; their clocks are skewed). Two events
of one instant happen in the order in which they were scheduled.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable
from typing import Any


class Timer(list):  # type: ignore[type-arg]
    """One scheduled call: `[time, order, call, arguments]`. A list, since heaps compare lists at C speed."""

    __slots__ = ()

    def cancel(self) -> None:
        """The call will not be made. May be called twice, and afterwards."""
        self[2] = None
        self[3] = ()


class Kernel:
    """Virtual time. `trace`, when given, gets one line for each thing worth telling: `time actor text`."""

    def __init__(self, seed: int, trace: Callable[[str], None] | None = None) -> None:
        self.now = 0.0
        self.random = random.Random(f"juice-sim/{seed}/run")
        self.events = 0
        self._heap: list[Timer] = []
        self._order = 0
        self._trace = trace
        self.tracing = trace is not None

    def after(self, delay: float, call: Callable[..., None], *arguments: Any) -> Timer:
        """Make a call `delay` seconds from now (at once, after what is already due, when that is 0 or less)."""
        self._order += 1
        timer = Timer((self.now + delay if delay > 0 else self.now, self._order, call, arguments))
        heapq.heappush(self._heap, timer)
        return timer

    def at(self, when: float, call: Callable[..., None], *arguments: Any) -> Timer:
        """Make a call at a time; at once when that is past."""
        return self.after(when - self.now, call, *arguments)

    def chance(self, probability: float) -> bool:
        """True with that probability. Draws nothing when it is 0, so that a fault which is off changes nothing."""
        return probability > 0.0 and self.random.random() < probability

    def step(self) -> bool:
        """Make the next call; False when none is left."""
        heap = self._heap
        while heap:
            when, _, call, arguments = heapq.heappop(heap)
            if call is not None:
                self.now = when
                self.events += 1
                call(*arguments)
                return True
        return False

    def run(self, until: float, stop: Callable[[], bool] | None = None) -> None:
        """Make calls in order up to that time, or until `stop()`, which is asked after each."""
        heap = self._heap
        pop = heapq.heappop
        while heap:
            if heap[0][0] > until:
                self.now = until
                return
            when, _, call, arguments = pop(heap)
            if call is None:
                continue
            self.now = when
            self.events += 1
            call(*arguments)
            if stop is not None and stop():
                return

    def tell(self, actor: str, text: str) -> None:
        """One line of the trace. Callers that build a costly text ask `tracing` first."""
        if self._trace is not None:
            self._trace(f"{self.now:12.6f} {actor:<16} {text}")
