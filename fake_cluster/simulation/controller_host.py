"""The controller as a process: the real `Controller`, the real log, and what a crash takes away.

Order of things as in `juice_sim/service.py`: a command is carried out at once, its events join the open batch, the
batch is committed, and only then is anything answered or shown to those who wait. A crash loses what was not committed;
a batch that was being written may or may not have reached the disk. After a restart the log is folded into a new
Controller by the service's own `fold`.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable
from typing import Any

import msgspec

from juice_sim import log_format
from juice_sim.core import events as ev
from juice_sim.core.commands import Command, CreateToken, RevokeToken, Tick
from juice_sim.core.controller import ADMIN, Controller, Principal
from juice_sim.core.errors import Refused
from juice_sim.core.model import AgentState, Permission, Session, SessionState
from juice_sim.core.settings import Settings
from juice_sim.service import fold
from juice_sim.store import Batch, EventStore

from .kernel import Kernel, Timer

EPOCH = 1_700_000_000.0  # Unix time at which every simulation begins
SETTLED = (SessionState.ACTIVE, SessionState.CANCELING, SessionState.CLOSED)


class Waiter:
    """Somebody who waits at the controller for a change, at most until its timer."""

    __slots__ = ("call", "timer")

    def __init__(self, call: Callable[[], None]) -> None:
        self.call = call
        self.timer: Timer


class ControllerHost:
    """`published(event, at)` is called with each durable event and the true time at which it took place.

    `commit_s` seconds that a commit takes; 0: at once, and no log is kept (nothing can be lost then).
    """

    def __init__(
        self,
        kernel: Kernel,
        settings: Settings,
        published: Callable[[ev.Event, float], None],
        commit_s: float = 0.002,
        skew: float = 0.0,
        slow_commit: float = 0.0,
    ) -> None:
        self._kernel = kernel
        self._settings = settings
        self._published = published
        self._commit_s = commit_s
        self._slow_commit = slow_commit
        self.skew = skew
        self.store = EventStore(None)
        self.controller = Controller(settings, self.new_id)
        self.up = True
        self.life = 1
        self._last_now = 0.0
        self._open: list[tuple[ev.Event, float]] = []
        self._open_waiting: list[Callable[[], None]] = []
        self._writing: list[tuple[ev.Event, float]] | None = None
        self._writing_waiting: list[Callable[[], None]] = []
        self._session_waiters: dict[str, list[Waiter]] = {}
        self._agent_waiters: dict[str, Waiter] = {}
        self._last_words: dict[str, int] = {}
        self._words = 0
        self._tick: Timer | None = None
        self.secret = ""
        self.token_id = ""
        self._digests: dict[str, str] = {}

    def new_id(self) -> str:
        return str(uuid.UUID(int=self._kernel.random.getrandbits(128), version=4))

    def clock(self) -> float:
        """The controller's Unix time; the service never lets it go back."""
        now = EPOCH + self._kernel.now + self.skew
        if now < self._last_now:
            return self._last_now
        self._last_now = now
        return now

    # -- commands -----------------------------------------------------------------------------------------------------

    def handle(self, command: Command, principal: Principal = ADMIN) -> Any:
        """Carry out a command; its events are durable once `settled` calls back. Raises Refused."""
        try:
            return self.controller.handle(command, now=self.clock(), principal=principal)
        finally:
            self._take_events()
            self._schedule_tick()

    def _take_events(self) -> None:
        events = self.controller.take_events()
        if not events:
            return
        at = self._kernel.now
        if not self._commit_s:
            for event in events:
                self._publish(event, at)
            return
        self._open += [(event, at) for event in events]
        if self._writing is None:
            self._begin_commit()

    def _begin_commit(self) -> None:
        self._writing, self._open = self._open, []
        self._writing_waiting, self._open_waiting = self._open_waiting, []
        seconds = self._commit_s * (0.5 + self._kernel.random.random())
        if self._kernel.chance(self._slow_commit):
            seconds += self._kernel.random.choice((0.05, 1.0, 6.0))
        self._kernel.after(seconds, self._committed, self.life)

    def _committed(self, life: int) -> None:
        if life != self.life or self._writing is None:
            return
        batch, waiting = self._writing, self._writing_waiting
        self._writing, self._writing_waiting = None, []
        self._store_batch(batch)
        for event, at in batch:
            self._publish(event, at)
        for call in waiting:
            call()
        if self._open and self._writing is None:
            self._begin_commit()

    def _store_batch(self, batch: list[tuple[ev.Event, float]]) -> None:
        self.store.append(Batch([msgspec.Raw(log_format.encode(event)) for event, _ in batch]))

    def settled(self, call: Callable[[], None]) -> None:
        """Call when everything done so far is durable; never, when the controller dies before."""
        if self._open:
            self._open_waiting.append(call)
        elif self._writing is not None:
            self._writing_waiting.append(call)
        else:
            call()

    def _publish(self, event: ev.Event, at: float) -> None:
        self._published(event, at)
        session_id = getattr(event, "session_id", None)
        if session_id is not None:
            waiters = self._session_waiters.pop(session_id, None)
            if waiters:
                for waiter in waiters:
                    waiter.timer.cancel()
                    self._kernel.after(0.0, self._wake, self.life, waiter)
        if isinstance(event, (ev.SessionAssigned, ev.AgentStateChanged)):
            agent_id = event.agent_id
        elif isinstance(event, ev.SessionCanceling):
            try:
                agent_id = self.controller.session(event.session_id).agent_id
            except Refused:
                return
        else:
            return
        if not agent_id:
            return
        self._words += 1
        self._last_words[agent_id] = self._words
        if isinstance(event, ev.AgentStateChanged) and event.state is AgentState.CLOSED:
            del self._last_words[agent_id]
        self.end_wait(agent_id)

    # -- waiting at the controller ------------------------------------------------------------------------------------

    def when_session_settled(self, session: Session, seconds: float, call: Callable[[], None]) -> None:
        """Call when the session is active or over, or the time has passed."""
        if session.state in SETTLED or seconds <= 0:
            call()
            return
        end = self._kernel.now + seconds

        def again() -> None:
            self.when_session_settled(session, end - self._kernel.now, call)

        waiter = Waiter(again)
        waiter.timer = self._kernel.after(seconds, self._session_time_over, self.life, session.id, waiter, call)
        self._session_waiters.setdefault(session.id, []).append(waiter)

    def _session_time_over(self, life: int, session_id: str, waiter: Waiter, call: Callable[[], None]) -> None:
        if life == self.life:
            self._session_waiters[session_id].remove(waiter)
            call()

    def _wake(self, life: int, waiter: Waiter) -> None:
        if life == self.life:
            waiter.call()

    def last_word(self, agent_id: str) -> int:
        """Number of the latest event that is news to the agent."""
        return self._last_words.get(agent_id, 0)

    def wait_agent(self, agent_id: str, seen: int, seconds: float, call: Callable[[], None]) -> None:
        """Call when there is news for the agent, or the time has passed, or a newer request of it comes."""
        self.end_wait(agent_id)
        if self.last_word(agent_id) != seen:
            call()
            return
        waiter = self._agent_waiters[agent_id] = Waiter(call)
        waiter.timer = self._kernel.after(seconds, self._agent_time_over, self.life, agent_id)

    def _agent_time_over(self, life: int, agent_id: str) -> None:
        if life == self.life:
            self.end_wait(agent_id)

    def end_wait(self, agent_id: str) -> None:
        """End the agent's wait, if there is one."""
        waiter = self._agent_waiters.pop(agent_id, None)
        if waiter is not None:
            waiter.timer.cancel()
            self._kernel.after(0.0, self._wake, self.life, waiter)

    # -- time ---------------------------------------------------------------------------------------------------------

    def _schedule_tick(self) -> None:
        deadline = self.controller.next_deadline()
        if deadline is None:
            return
        at = max(deadline - EPOCH - self.skew, self._kernel.now) + 0.01
        if self._tick is not None:
            if self._tick[2] is not None and self._tick[0] <= at:
                return
            self._tick.cancel()
        self._tick = self._kernel.at(at, self._tick_due, self.life)

    def _tick_due(self, life: int) -> None:
        if life != self.life or not self.up:
            return
        self._tick = None
        deadline = self.controller.next_deadline()
        if deadline is not None and deadline <= self.clock():
            self.handle(Tick())
        self._schedule_tick()

    # -- tokens -------------------------------------------------------------------------------------------------------

    def make_token(self, user_id: str, pool_ids: list[str]) -> None:
        """A new token for the hooks; `secret` is what they show from now on."""
        secret = f"{self._kernel.random.getrandbits(128):032x}"
        token = self.handle(
            CreateToken(
                "slurm hooks",
                hashlib.sha256(secret.encode()).hexdigest(),
                user_id,
                permissions=tuple((Permission.CREATE_SESSION, pool_id) for pool_id in pool_ids),
            )
        )
        self.secret, self.token_id = secret, token.id

    def revoke_token(self) -> None:
        """The hooks' token is good for nothing any more."""
        self.handle(RevokeToken(self.token_id))

    def authenticate(self, secret: str) -> Principal:
        """Whose token this is. Raises Refused."""
        digest = self._digests.get(secret)
        if digest is None:
            digest = self._digests[secret] = hashlib.sha256(secret.encode()).hexdigest()
        return self.controller.authenticate(digest, self.clock())

    # -- crash --------------------------------------------------------------------------------------------------------

    def crash(self) -> None:
        """kill -9: what was not committed is lost; what was being committed is kept or lost."""
        self.up = False
        self.life += 1
        if self._writing and self._kernel.chance(0.5):
            self._store_batch(self._writing)
            for event, at in self._writing:
                self._published(event, at)
        self._open, self._open_waiting = [], []
        self._writing, self._writing_waiting = None, []
        self._session_waiters.clear()
        self._agent_waiters.clear()
        self._last_words.clear()
        if self._tick is not None:
            self._tick.cancel()
            self._tick = None

    def restart(self) -> None:
        """Rebuild from the log, and serve."""
        self.controller = fold(self.store, self._settings, self.new_id).controller
        self._last_now = 0.0
        self._words += 1_000_000  # agents that wait with an older number are answered at once
        self.up = True
        self._schedule_tick()
