"""A Controller with a clock, a durable log and listeners: what the REST API talks to.

Order of things for one command: the controller handles it at once (one thread, no waiting), its events join the
pending batch, the batch is committed by the writer thread, and only then is the answer sent and are the events
published to whoever waits for them (long polls, event streams, webhooks). `settled()` is the wait in between; reads use
it too, so that nobody is ever shown what a crash could still undo.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import secrets
import sqlite3
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec

from . import log_format
from .core import events as ev
from .core.commands import Command, Tick
from .core.controller import ADMIN, Controller
from .core.errors import Refused
from .core.model import AgentState
from .core.settings import Settings
from .store import Answer, Batch, EventStore, Record, Snapshot, StoreError

log = logging.getLogger("juice_sim.service")

SNAPSHOT_EVERY = 100_000  # events; a snapshot of a large controller costs about as much as 10,000 events
KEEP_EVENTS = 100_000  # events kept before a snapshot for streams that start in the past
KEEP_ANSWERS_S = 7 * 86400.0
RECENT = 10_000  # events kept in memory for streams
STALL_S = 0.5  # a timer that fires this late shows that this process was held up


class Unavailable(Exception):
    """The log could not be written; nothing of what waited has taken effect. Worth another try later."""


class Service:
    """One controller, alive. `Service(store, ...)` loads it, then `await start()`; `await stop()` in the end.

    All methods belong to the event loop's thread. `reader` is the controller itself, for reading only.
    """

    def __init__(
        self,
        store: EventStore,
        settings: Settings,
        new_id: Callable[[], str],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._settings = settings
        self._new_id = new_id
        self._clock = clock
        self._last_now = 0.0
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="juice-sim-log")
        self._pending = Batch([], [])
        self._pending_settled: asyncio.Future[None] | None = None
        self._committing: asyncio.Task[None] | None = None
        self._answers: dict[str, Answer] = {}
        self._since_snapshot = 0
        self._compacting: asyncio.Task[None] | None = None
        self._timer: asyncio.Task[None] | None = None
        self._watched_agents: dict[str, set[asyncio.Future[bool]]] = {}
        self._watched_sessions: dict[str, set[asyncio.Future[bool]]] = {}
        self._listeners: list[Callable[[Record, ev.Event], None]] = []
        self._unpublished: deque[ev.Event] = deque()
        self._last_words: dict[str, int] = {}
        self.stopping = False
        self.recent: deque[Record] = deque(maxlen=RECENT)
        self._stream_waiters: set[asyncio.Future[bool]] = set()
        self.started_at = clock()
        self.secret = store.setting("token_secret", _random_secret)
        self.reader = self._load()
        self.published_seq = self._loaded_seq = store.last_seq

    # -- opening and closing ------------------------------------------------------------------------------------------

    def _load(self) -> Controller:
        """A controller as the log says. Raises StoreError."""
        folded = fold(self._store, self._settings, self._new_id)
        self._answers = folded.answers
        self._since_snapshot = folded.seq - folded.snapshot_seq
        return folded.controller

    async def start(self) -> None:
        """Start the timer. Agents that were known get their full time to report again."""
        self._timer = asyncio.create_task(self._run_timer(), name="juice-sim timer")

    async def stop(self) -> None:
        """Finish what is pending, stop the timer, close the log. May be called twice."""
        self.stopping = True
        self.wake_all()
        for task in (self._timer, self._compacting):
            if task is not None:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
        self._timer = self._compacting = None
        with contextlib.suppress(Unavailable):
            await self.settled()
        if self._committing is not None:
            await self._committing
        await asyncio.get_running_loop().run_in_executor(self._writer, self._store.close)
        self._writer.shutdown(wait=True)

    def wake_all(self) -> None:
        """Let every long poll and every stream look again (this service stops)."""
        for waiters in (*self._watched_agents.values(), *self._watched_sessions.values(), self._stream_waiters):
            _wake(waiters)

    def now(self) -> float:
        """Unix time, never going back: a clock that is set back must not make events travel in time."""
        now = self._clock()
        if now < self._last_now:
            return self._last_now
        self._last_now = now
        return now

    # -- commands -----------------------------------------------------------------------------------------------------

    def command(self, command: Command, principal: Any) -> Any:
        """Carry a command out now; its events are durable after `settled()`. Raises Refused."""
        try:
            return self.reader.handle(command, now=self.now(), principal=principal)
        finally:
            self._take_events()

    def _take_events(self) -> None:
        for event in self.reader.take_events():
            self._pending.events.append(msgspec.Raw(log_format.encode(event)))
            self._unpublished.append(event)
        if self._pending.events and self._committing is None:
            self._committing = asyncio.create_task(self._commit(), name="juice-sim commit")

    def remember(self, answer: Answer) -> None:
        """Keep an answer with the events of the command just carried out."""
        self._answers[answer.key_sha256] = answer
        self._pending.answers.append(answer)

    def answered(self, key_sha256: str) -> Answer | None:
        """What the POST with this key was answered, at most seven days ago."""
        answer = self._answers.get(key_sha256)
        return answer if answer is not None and answer.at > self.now() - KEEP_ANSWERS_S else None

    async def settled(self) -> None:
        """Return when everything that the controller has done so far is durable. Raises Unavailable."""
        if self._committing is None and not self._pending.events:
            return
        if self._pending_settled is None and self._pending.events:
            self._pending_settled = asyncio.get_running_loop().create_future()
        waiting = self._pending_settled if self._pending.events else self._running_settled
        if waiting is not None:
            await asyncio.shield(waiting)

    _running_settled: asyncio.Future[None] | None = None

    async def _commit(self) -> None:
        """Commit batch after batch until none is pending."""
        loop = asyncio.get_running_loop()
        try:
            while self._pending.events:
                batch, self._pending = self._pending, Batch([], [])
                waiting = self._pending_settled or loop.create_future()
                self._pending_settled, self._running_settled = None, waiting
                try:
                    last = await loop.run_in_executor(self._writer, self._store.append, batch)
                except Exception as error:  # whatever it was: nobody may wait for an answer that never comes
                    self._give_up(waiting, error)
                    continue
                if not waiting.done():
                    waiting.set_result(None)
                self._publish(last - len(batch.events) + 1, batch)
        finally:
            self._committing = None
            self._running_settled = None
        if self._since_snapshot >= SNAPSHOT_EVERY and self._compacting is None:
            self._compacting = asyncio.create_task(self._compact(), name="juice-sim snapshot")

    def _give_up(self, waiting: asyncio.Future[None], error: Exception) -> None:
        """The log cannot be written: go back to what it says, and let everybody who waits know."""
        log.error("the log cannot be written (%s); what was not durable is undone", error)
        failure = Unavailable(f"the controller cannot write its log ({error}); try again later")
        futures = [waiting, self._pending_settled]
        self._pending, self._pending_settled = Batch([], []), None
        self._unpublished.clear()
        self.reader = self._load()
        for future in futures:
            if future is not None and not future.done():
                future.set_exception(failure)
                future.exception()  # nobody may be waiting

    async def _compact(self) -> None:
        """Replace old events by a snapshot. The snapshot is the fold of the log itself, made beside the running
        controller on a connection of its own, so that no request waits for it."""
        loop = asyncio.get_running_loop()
        try:
            if self._store.path is None:
                await loop.run_in_executor(self._writer, self._store.trim, KEEP_EVENTS)
            else:
                snapshot = await asyncio.to_thread(self._fold_to_snapshot)
                await loop.run_in_executor(self._writer, self._store.save_snapshot, snapshot, KEEP_EVENTS)
        except (sqlite3.Error, StoreError) as error:
            log.error("no snapshot was written (%s); the log grows until one is", error)
        finally:
            self._since_snapshot = 0
            self._compacting = None

    def _fold_to_snapshot(self) -> Snapshot:
        with self._store.reading() as store:
            folded = fold(store, self._settings, self._new_id)
        newest = folded.newest
        answers = [answer for answer in folded.answers.values() if answer.at > newest - KEEP_ANSWERS_S]
        return Snapshot(folded.seq, msgspec.Raw(msgspec.json.encode(folded.controller.snapshot())), answers)

    # -- time ---------------------------------------------------------------------------------------------------------

    async def _run_timer(self) -> None:
        """Tick when something is due. After a stall of this process the tick waits as long again (5 s at most), so
        that heartbeats which queued up in the sockets count before anybody is declared missing."""
        while True:
            deadline = self.reader.next_deadline()
            pause = 0.25 if deadline is None else min(0.25, max(0.001, deadline - self.now()))
            before = time.monotonic()
            await asyncio.sleep(pause)
            late = time.monotonic() - before - pause
            if late > STALL_S:
                await asyncio.sleep(min(late, 5.0))
            deadline = self.reader.next_deadline()
            if deadline is not None and deadline <= self.now():
                try:
                    self.command(Tick(), ADMIN)
                except Refused as error:
                    log.error("a tick was refused: %s", error)

    # -- listeners ----------------------------------------------------------------------------------------------------

    def listen(self, listener: Callable[[Record, ev.Event], None]) -> None:
        """Call `listener(record, event)` for each event once it is durable, on the loop's thread."""
        self._listeners.append(listener)

    def _publish(self, first: int, batch: Batch) -> None:
        self._since_snapshot += len(batch.events)
        for offset, body in enumerate(batch.events):
            record = Record(first + offset, bytes(body))
            event = self._unpublished.popleft()
            self.recent.append(record)
            for listener in self._listeners:
                listener(record, event)
            session_id = getattr(event, "session_id", None)
            if session_id is not None:
                _wake(self._watched_sessions.pop(session_id, ()))
            self._speak_to_agent(record.seq, event)
        self.published_seq = first + len(batch.events) - 1
        waiters, self._stream_waiters = self._stream_waiters, set()
        _wake(waiters)

    def _speak_to_agent(self, seq: int, event: ev.Event) -> None:
        """Events that are news to an agent; what it reported itself is not."""
        if isinstance(event, (ev.SessionAssigned, ev.AgentStateChanged)):
            agent_id = event.agent_id
        elif isinstance(event, ev.SessionCanceling):
            agent_id = self.agent_of(event.session_id)
            if not agent_id:
                return
        else:
            return
        if isinstance(event, ev.AgentStateChanged) and event.state is AgentState.CLOSED:
            self._last_words.pop(agent_id, None)
        else:
            self._last_words[agent_id] = seq
        _wake(self._watched_agents.pop(agent_id, ()))

    def agent_of(self, session_id: str) -> str:
        """The agent of a session, "" when it has none or is forgotten already."""
        try:
            agent_id: str = self.reader.session(session_id).agent_id
            return agent_id
        except Refused:
            return ""

    def last_word(self, agent_id: str) -> int:
        """Number of the latest event that is news to the agent; after a restart, of the latest event then."""
        return self._last_words.get(agent_id, self._loaded_seq)

    async def agent_changes(self, agent_id: str, seconds: float) -> bool:
        """Return when there is news for the agent, or the time is over; True when the wait was ended by `end_waits`."""
        return await self._watch(self._watched_agents.setdefault(agent_id, set()), seconds)

    def end_waits(self, agent_id: str) -> None:
        """End the waits of `agent_changes` for this agent."""
        for future in self._watched_agents.pop(agent_id, ()):
            if not future.done():
                future.set_result(True)

    async def session_changes(self, session_id: str, seconds: float) -> None:
        """Return when the session changes, or the time is over."""
        await self._watch(self._watched_sessions.setdefault(session_id, set()), seconds)

    async def any_event(self, seconds: float) -> None:
        """Return when any event is published, or the time is over."""
        await self._watch(self._stream_waiters, seconds)

    async def _watch(self, waiters: set[asyncio.Future[bool]], seconds: float) -> bool:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[bool] = loop.create_future()
        waiters.add(future)
        timer = loop.call_later(seconds, _finish, future)
        try:
            return await future
        finally:
            timer.cancel()
            waiters.discard(future)

    async def records(self, after: int, limit: int = 1000) -> list[Record]:
        """Published events with numbers above `after`, in order."""
        if self.recent and self.recent[0].seq <= after + 1:
            skip = after + 1 - self.recent[0].seq
            newest = len(self.recent)
            return [self.recent[i] for i in range(skip, min(newest, skip + limit))]
        if after >= self.published_seq:
            return []
        found = await asyncio.get_running_loop().run_in_executor(self._writer, self._store.records, after, limit)
        return [record for record in found if record.seq <= self.published_seq]

    async def story(self, session_id: str) -> list[ev.Event]:
        """The events of one session, in order; those before the snapshot are looked up in the log."""
        told = self.reader.story(session_id)
        if told and isinstance(told[0], ev.SessionQueued):
            return told
        return await asyncio.to_thread(self._story_from_log, session_id) or told

    def _story_from_log(self, session_id: str) -> list[ev.Event]:
        with self._store.reading() as store:
            mark = session_id.encode()
            bodies = (body for _, batch in store.batches(0) for body in batch.events if mark in bytes(body))
            events = [log_format.decode(body) for body in bodies]
        return [event for event in events if getattr(event, "session_id", None) == session_id]

    async def oldest_seq(self) -> int:
        """Number of the oldest event that can still be streamed."""
        return await asyncio.get_running_loop().run_in_executor(self._writer, self._store.first_seq)


@dataclass
class Folded:
    """What a log amounts to: the controller after event `seq`, whose time is `newest`."""

    controller: Controller
    answers: dict[str, Answer]
    snapshot_seq: int
    seq: int
    newest: float


def fold(store: EventStore, settings: Settings, new_id: Callable[[], str]) -> Folded:
    """Rebuild a controller from a log. Raises StoreError."""
    answers: dict[str, Answer] = {}
    seq = 0
    try:
        snapshot = store.snapshot()
        if snapshot is None:
            controller = Controller(settings, new_id)
        else:
            controller = Controller.restore(msgspec.json.decode(snapshot.state), settings, new_id)
            answers = {answer.key_sha256: answer for answer in snapshot.answers}
            seq = snapshot.seq
        folded = Folded(controller, answers, seq, seq, 0.0)
        for first, batch in store.batches(seq):
            events = [log_format.decode(body) for body in batch.events[max(0, folded.seq + 1 - first) :]]
            controller.replay(events)
            folded.seq = first + len(batch.events) - 1
            folded.newest = events[-1].at
            for answer in batch.answers:
                answers[answer.key_sha256] = answer
    except (msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
        raise StoreError(
            f"{store.path or 'the log'} holds what this version cannot read ({type(error).__name__}: {error}); "
            "use the version that made it or give another data directory"
        ) from error
    return folded


def _finish(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)


def _wake(waiters: Any) -> None:
    for future in waiters:
        _finish(future)


def _random_secret() -> bytes:
    return secrets.token_bytes(32)


def fingerprint(*parts: str | bytes) -> str:
    """SHA-256 over parts of which none can run into the next."""
    digest = hashlib.sha256()
    for part in parts:
        raw = part if isinstance(part, bytes) else part.encode("utf-8", "surrogatepass")
        digest.update(len(raw).to_bytes(8, "big"))
        digest.update(raw)
    return digest.hexdigest()
