"""The way from the hooks and the agents to the controller: delay, loss before and after the effect, duplication, late
arrival, reordering (each message has its own delay), partition.

A call ends exactly once for its sender: with an answer, or without one. Whether it took effect is another matter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .kernel import Kernel, Timer
from .plan import Chances

Answer = tuple[int, dict[str, str], bytes] | Any
Respond = Callable[[Any], None]
Deliver = Callable[[Respond], None]


class Server(Protocol):
    """Who is called: `up` and the number of its life, which a restart raises."""

    up: bool
    life: int


class Lost:
    """No answer. `sent`: the request may have taken effect all the same; `reset`: the connection broke."""

    __slots__ = ("reason", "reset", "sent")

    def __init__(self, reason: str, sent: bool, reset: bool = False) -> None:
        self.reason, self.sent, self.reset = reason, sent, reset


class Call:
    """One request under way. `cancel()`: its sender is dead and will not hear of it."""

    __slots__ = ("_done", "_timer", "life")

    def __init__(self, done: Callable[[Any], None]) -> None:
        self._done: Callable[[Any], None] | None = done
        self._timer: Timer | None = None
        self.life = -1

    def finish(self, answer: Any) -> None:
        done, self._done = self._done, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if done is not None:
            done(answer)

    def cancel(self) -> None:
        self._done = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def open(self) -> bool:
        return self._done is not None


class Network:
    """`cut` holds the sources that have no way to the server; `slow` seconds are added at most to each way. `direct`:
    messages take no time and none is lost, as in long simulations without faults."""

    def __init__(self, kernel: Kernel, chances: Chances, latency: float, direct: bool = False) -> None:
        self._direct = direct
        self._kernel = kernel
        self.chances = chances
        self.latency = latency
        self.cut: set[str] = set()
        self.slow = 0.0
        self._waiting: list[Call] = []  # have arrived, not yet answered: a crash of the server resets them

    def delay(self) -> float:
        """Seconds that one message takes now."""
        if not self.latency:
            return 0.0
        draw = self._kernel.random.random
        # Most messages are quick, a few take many times as long.
        seconds = self.latency * (0.3 + draw()) * (1.0 if draw() < 0.95 else 20.0)
        return seconds + self.slow * draw()

    def call(self, source: str, server: Server, deliver: Deliver, done: Callable[[Any], None], timeout: float) -> Call:
        """Send a request: `deliver(respond)` when it arrives; `done(answer or Lost)` in the end, at most `timeout` from
        now."""
        kernel, chances = self._kernel, self.chances
        call = Call(done)
        if self._direct:
            deliver(call.finish)
            return call
        call._timer = kernel.after(timeout, self._timed_out, call, timeout)
        if source in self.cut:
            return call
        if kernel.chance(chances.lost_before):
            return call
        late = kernel.chance(chances.late)
        seconds = timeout + kernel.random.uniform(0.0, 30.0) if late else self.delay()
        kernel.after(seconds, self._arrive, call, source, server, deliver)
        if kernel.chance(chances.duplicated):
            kernel.after(
                self.delay() + kernel.random.choice((0.0, 0.5, 10.0)), self._arrive_again, source, server, deliver
            )
        return call

    def _timed_out(self, call: Call, timeout: float) -> None:
        call._timer = None
        call.finish(Lost(f"no answer within {timeout:.1f} s (ETIMEDOUT)", True))

    def _arrive(self, call: Call, source: str, server: Server, deliver: Deliver) -> None:
        if source in self.cut:
            return
        if not server.up:
            call.finish(Lost("ECONNREFUSED: Connection refused", False))
            return
        call.life = server.life
        self._waiting.append(call)

        def respond(answer: Any) -> None:
            if call in self._waiting:
                self._waiting.remove(call)
            if source in self.cut or self._kernel.chance(self.chances.lost_after):
                return
            self._kernel.after(self.delay(), self._answer, call, source, answer)

        deliver(respond)

    def _answer(self, call: Call, source: str, answer: Any) -> None:
        if source not in self.cut:
            call.finish(answer)

    def _arrive_again(self, source: str, server: Server, deliver: Deliver) -> None:
        if server.up and source not in self.cut:
            deliver(lambda answer: None)

    def server_died(self) -> None:
        """All connections that wait for an answer break; those cut off do not hear of it."""
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            if call.open:
                self._kernel.after(self.delay(), call.finish, Lost("the connection was reset", True, True))
