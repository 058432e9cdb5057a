"""Injects the faults of a scenario into a running world, at their times or once enough has happened, and undoes them.

One thread does it all, in order. What it does goes into the record; a fault that could not be injected goes in as a
note, and the check that each fault took place tells it.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
import time
from collections.abc import Callable
from functools import partial

from .controller_calls import ControllerSaidNo
from .history import FaultEnded, FaultInjected, History, JobObserved, Noted
from .history_views import Views
from .scenario import Fault
from .scenario_recorder import JobWatch, Trigger
from .slurm.interface import CommandFailed, JobState
from .world import World
from .world_service import AgentPlace, WorldError

FAST_POLL_S = 0.04  # while a fault waits for a job to be in its prolog, which may last a tenth of a second
SHORT_TOKEN_S = 0.5
ERRORS = (OSError, TimeoutError, RuntimeError, KeyError, CommandFailed, ControllerSaidNo, WorldError)


class Injector:
    """Runs from `start` to `finish`. Times are seconds from `start`."""

    def __init__(self, world: World, history: History, watch: JobWatch, trigger: Trigger, seed: int) -> None:
        self._world = world
        self._history = history
        self._watch = watch
        self._trigger = trigger
        self._random = random.Random(f"faults/{seed}")
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._changed = threading.Condition()
        self._stopping = False
        self._undo: dict[tuple[int, str], Callable[[], None]] = {}
        self._rules: dict[int, dict[str, object]] = {}
        self._controller_up = True
        self._to_cancel: list[
            tuple[Fault, int]
        ] = []  # scancel_in_prolog: fault and how many jobs are still to be cancelled
        self._cancelled: set[int] = set()
        self._slow_poll_s = watch.interval_s
        self._began = 0.0
        self._thread = threading.Thread(target=self._run, name="faults", daemon=True)
        history.listen(self._see)

    def start(self) -> None:
        self._began = time.monotonic()
        for fault in self._world.scenario.faults:
            if fault.when.at is not None:
                self._at(fault.when.at, self._injection(fault, 1))
            else:
                self._trigger.when(
                    fault.when.event, fault.when.count, partial(self._at, 0.0, self._injection(fault, 1))
                )
        self._thread.start()

    def finish(self) -> None:
        """Inject nothing more, and undo what is still in force (dead agents stay dead). May be called twice."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread.is_alive():
            self._thread.join(120.0)
        for key in sorted(self._undo, key=lambda key: key[1] != "controller"):  # the others may need it
            self._undone(key)

    # -- the thread ---------------------------------------------------------------------------------------------------

    def _at(self, at: float, call: Callable[[], None]) -> None:
        with self._changed:
            heapq.heappush(self._agenda, (at, next(self._order), call))
            self._changed.notify_all()

    def _now(self) -> float:
        return time.monotonic() - self._began

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._stopping and (not self._agenda or self._agenda[0][0] > self._now()):
                    self._changed.wait(self._agenda[0][0] - self._now() if self._agenda else None)
                if self._stopping:
                    return
                call = heapq.heappop(self._agenda)[2]
            call()

    def _injection(self, fault: Fault, number: int) -> Callable[[], None]:
        def inject() -> None:
            if number < fault.when.times:
                self._at(self._now() + fault.when.every, self._injection(fault, number + 1))
            self._try(getattr(self, f"_{fault.kind}"), fault)

        return inject

    def _try(self, inject: Callable[[Fault], None], fault: Fault) -> None:
        try:
            inject(fault)
        except ERRORS as error:
            self._history.add(Noted(time.time(), f"{fault.label} could not be injected: {error}"))

    def _done(self, fault: Fault, target: str = "", detail: str = "") -> None:
        self._history.add(FaultInjected(time.time(), fault.position, fault.kind, fault.label, target, detail))

    def _later(
        self,
        fault: Fault,
        target: str,
        undo: Callable[[], str],
        after: float | None,
        needs_controller: bool = False,
        needs_slurmctld: bool = False,
    ) -> None:
        """Keep how to undo a fault, and do so after a while (None: at the end of the run)."""
        key = (fault.position, target)

        def run() -> None:
            detail = undo()
            if fault.kind != "replies" or fault.lasts is not None:  # otherwise it was over when its count was used up
                self._history.add(FaultEnded(time.time(), fault.position, fault.kind, target, detail))

        self._undo[key] = run

        def when_due() -> None:
            is_down = needs_slurmctld and not self._world.slurmctld_up.is_set()
            if is_down or (needs_controller and not self._controller_up):
                self._at(self._now() + 0.2, when_due)
            else:
                self._undone(key)

        if after is not None:
            self._at(self._now() + after, when_due)

    def _undone(self, key: tuple[int, str]) -> None:
        undo = self._undo.pop(key, None)
        if undo is not None:
            try:
                undo()
            except ERRORS as error:
                self._history.add(Noted(time.time(), f"fault {key[0] + 1} could not be undone: {error}"))

    # -- agents -------------------------------------------------------------------------------------------------------

    def _pick_agent(self, fault: Fault, alive: bool = True) -> AgentPlace | None:
        service = self._world.service
        places = [place for place in service.agents() if not fault.pool or place.pool == fault.pool]
        if not alive:
            every = [
                AgentPlace(pool.name, position)
                for pool in self._world.scenario.pools
                for position in range(pool.agents)
                if not fault.pool or pool.name == fault.pool
            ]
            places = every if fault.agent is not None else [place for place in every if place not in places] or every
        if fault.agent is not None:
            places = [place for place in places if place.position == fault.agent]
        if not places:
            return None
        busy = self._busy_hosts()
        return self._random.choice([place for place in places if place.hostname in busy] or places)

    def _busy_hosts(self) -> set[str]:
        views = Views(History(entries=self._history.entries))
        return {
            views.agents[session.agent_id].hostname
            for session in views.sessions.values()
            if session.agent_id in views.agents and session.closed_at is None
        }

    def _agent_dies(self, fault: Fault) -> None:
        place = self._pick_agent(fault)
        if place is None:
            raise WorldError("no such agent is alive")
        self._world.service.kill_agent(place)
        self._done(fault, place.hostname)
        if fault.lasts is not None:
            self._later(fault, place.hostname, lambda: self._world.service.return_agent(place), fault.lasts)

    def _agent_hangs(self, fault: Fault) -> None:
        place = self._pick_agent(fault)
        if place is None:
            raise WorldError("no such agent is alive")
        self._world.service.hang_agent(place)
        self._done(fault, place.hostname)
        self._later(fault, place.hostname, lambda: self._world.service.return_agent(place), fault.lasts)

    def _agent_returns(self, fault: Fault) -> None:
        place = self._pick_agent(fault, alive=False)
        if place is None:
            raise WorldError("the pool has no such agent")
        for key in [key for key in self._undo if key[1] == place.hostname]:
            self._undone(key)
            self._done(fault, place.hostname, "goes on")
            return
        self._done(fault, place.hostname, self._world.service.return_agent(place))

    # -- controller ---------------------------------------------------------------------------------------------------

    def _controller_killed(self, fault: Fault) -> None:
        if not self._controller_up:
            raise WorldError("the controller is down already")
        self._controller_up = False
        self._world.service.kill_controller(fault.signal)
        self._done(fault, "controller", f"signal {fault.signal}")

        def again() -> str:
            self._world.service.start_controller()
            self._controller_up = True
            if self._rules:
                self._put_rules()  # they are not kept across a restart
            return "started again"

        self._later(fault, "controller", again, fault.lasts)

    def _put_rules(self) -> None:
        if self._controller_up:  # otherwise they are put when it is back
            self._world.service.calls.set_faults(list(self._rules.values()))

    def _when_controller_is_up(self, inject: Callable[[Fault], None], fault: Fault) -> bool:
        """False when it is down: the fault is then injected once it is up. Waiting here would hold up all others."""
        if not self._controller_up:
            self._at(self._now() + 0.2, lambda: self._try(inject, fault))
        return self._controller_up

    def _replies(self, fault: Fault) -> None:
        if not self._when_controller_is_up(self._replies, fault):
            return
        # Another rule's count would start anew when the list is put again: take over what has fired already.
        for position, rule in zip(list(self._rules), self._world.service.calls.faults(), strict=False):
            if isinstance(left := self._rules[position].get("count"), int):
                self._rules[position]["count"] = max(0, left - int(rule.get("fired", 0)))
        self._rules[fault.position] = {"name": f"fault {fault.position + 1}", **fault.rule}
        self._put_rules()
        what = " ".join(f"{name}={value}" for name, value in fault.rule.items() if name not in ("action", "name"))
        self._done(fault, "controller", what)

        def remove() -> str:
            self._rules.pop(fault.position, None)
            self._put_rules()
            return ""

        self._later(fault, "controller", remove, fault.lasts)

    def _token_expires(self, fault: Fault) -> None:
        if not self._when_controller_is_up(self._token_expires, fault):
            return
        # A token cannot be made to expire early; one that is valid for half a second does so by itself.
        self._world.replace_token(SHORT_TOKEN_S)
        time.sleep(SHORT_TOKEN_S)
        self._done(fault, "token of the hooks")

        def renew() -> str:
            self._world.replace_token()
            return "renewed"

        self._later(fault, "token of the hooks", renew, fault.lasts, needs_controller=True)

    # -- Slurm --------------------------------------------------------------------------------------------------------

    def _scancel_in_prolog(self, fault: Fault) -> None:
        with self._changed:
            self._to_cancel.append((fault, fault.jobs))
            self._watch.interval_s = FAST_POLL_S

    def _see(self, entry: object) -> None:
        """A listener of the record: jobs that are in their prolog, while some are to be cancelled there."""
        if not isinstance(entry, JobObserved) or entry.state is not JobState.CONFIGURING or not entry.juice:
            return
        with self._changed:
            if not self._to_cancel or entry.job_id in self._cancelled:
                return
            fault, left = self._to_cancel.pop(0)
            self._cancelled.add(entry.job_id)
            if left > 1:
                self._to_cancel.insert(0, (fault, left - 1))
            elif not self._to_cancel:
                self._watch.interval_s = self._slow_poll_s
        self._at(self._now() + fault.delay, lambda: self._cancel(fault, entry.job_id))

    def _cancel(self, fault: Fault, job_id: int) -> None:
        try:
            self._world.slurm.scancel(job_id)
            self._done(fault, f"job {job_id}")
        except ERRORS as error:
            self._history.add(Noted(time.time(), f"{fault.label}: scancel {job_id}: {error}"))
            with self._changed:
                self._to_cancel.append((fault, 1))
                self._watch.interval_s = FAST_POLL_S

    def _slurmctld_killed(self, fault: Fault) -> None:
        if not self._world.slurmctld_up.is_set():
            raise WorldError("slurmctld is down already")
        self._world.slurmctld_up.clear()
        detail = f"signal {fault.signal}"
        try:
            self._world.slurm.kill_slurmctld(fault.signal)
        except TimeoutError:
            # An orderly end may wait for nodes that do not answer. An admin would lose patience, too.
            self._world.slurm.kill_slurmctld(9)
            detail += ", then 9: it did not end"
        self._done(fault, "slurmctld", detail)

        def again() -> str:
            self._world.slurm.start_slurmctld()
            self._world.slurmctld_up.set()
            return "started again"

        self._later(fault, "slurmctld", again, fault.lasts)

    def _node_fails(self, fault: Fault) -> None:
        if not self._world.slurmctld_up.is_set():
            self._at(self._now() + 0.2, lambda: self._try(self._node_fails, fault))
            return
        name = fault.node or self._busy_node()
        self._world.slurm.fail_node(name)
        self._done(fault, name)

        def resume() -> str:
            self._world.slurm.resume_node(name)
            return "resumed"

        self._later(fault, name, resume, fault.lasts, needs_slurmctld=True)

    def _busy_node(self) -> str:
        busy = sorted(
            {node for job in self._watch.jobs.values() if job.state is JobState.RUNNING for node in job.nodes}
        )
        return self._random.choice(busy or sorted(self._world.slurm.node_states()))
