"""Views of a record: the life of each session, agent and job, and their stories in words."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from juice_sim.core import events as e
from juice_sim.core.model import AgentState, Gpu, GpuGrant, Requirements

from .history import (
    ControllerEvent,
    FaultEnded,
    FaultInjected,
    History,
    HookRun,
    JobObserved,
    JobOutput,
    JobSubmitted,
)
from .slurm.interface import JobState

GIB = 1024**3

# The name that the hooks give a session: cluster, job id, restart count.
_NAME = re.compile(r"[A-Za-z0-9._-]+/(?P<job>[0-9]{1,20})/(?P<restarts>[0-9]{1,10})")


def attempt_of(name: str) -> tuple[int, int] | None:
    """(job id, restart count) from the name that a hook gave its session; None for other sessions."""
    match = _NAME.fullmatch(name)
    return (int(match["job"]), int(match["restarts"])) if match else None


@dataclass
class SessionLife:
    """One session from request to close. Times are None when not reached."""

    id: str
    requirements: Requirements
    owner: str
    key: str
    name: str
    requested_at: float
    assigned_at: float | None = None
    active_at: float | None = None
    canceling_at: float | None = None
    closed_at: float | None = None
    close_reason: str = ""
    agent_id: str = ""
    grants: tuple[GpuGrant, ...] = ()

    @cached_property
    def attempt(self) -> tuple[int, int] | None:
        return attempt_of(self.name)

    @property
    def job_id(self) -> int | None:
        return self.attempt[0] if self.attempt else None

    def open_at(self, at: float) -> bool:
        """Whether it held its GPUs at that instant."""
        return (
            self.assigned_at is not None and self.assigned_at <= at and (self.closed_at is None or at < self.closed_at)
        )


@dataclass
class AgentLife:
    """One agent (a registration) with its states over time."""

    id: str
    hostname: str
    pool_id: str
    gpus: tuple[Gpu, ...]
    registered_at: float
    states: list[tuple[float, AgentState, str]] = field(default_factory=list)

    @property
    def closed_at(self) -> float | None:
        return next((at for at, state, _ in self.states if state is AgentState.CLOSED), None)

    def lost_by(self, at: float) -> bool:
        """Whether it had gone missing or been removed at or before that time."""
        return any(when <= at and state in (AgentState.MISSING, AgentState.CLOSED) for when, state, _ in self.states)


@dataclass(frozen=True)
class Spell:
    """A time during which a job was seen in one state, in one attempt. It was surely in it from `first` to `last`;
    `asked` is when the poll that saw it first was asked."""

    state: JobState
    restarts: int
    asked: float
    first: float
    last: float


@dataclass
class JobLife:
    """One job (array task, het component)."""

    job_id: int
    group: str
    last: JobObserved
    observed: list[JobObserved] = field(default_factory=list)

    def spells(self, end: float) -> list[Spell]:
        """Its states in order; the last one is taken to have held until `end`."""
        result = []
        for position, seen in enumerate(self.observed):
            following = self.observed[position + 1] if position + 1 < len(self.observed) else None
            last = end if following is None else max(following.held_until, seen.at)
            result.append(Spell(seen.state, seen.restarts, seen.asked, seen.at, last))
        return result

    @property
    def wait(self) -> float | None:
        """Seconds from submit to the last start (requeues included); None when it never started."""
        if self.submitted_at is None or self.last.start_time is None or not self.ran:
            return None
        return max(0.0, self.last.start_time - self.submitted_at)

    @property
    def submitted_at(self) -> float | None:
        """When it was submitted. Slurm moves SubmitTime at each requeue, so the first one seen counts."""
        return self.observed[0].submit_time if self.observed else None

    @property
    def ran(self) -> bool:
        """Whether it was ever seen running, or has an end state that only a job that ran has."""
        return any(seen.state is JobState.RUNNING for seen in self.observed) or self.last.state in (
            JobState.COMPLETED,
            JobState.TIMEOUT,
        )


class Views:
    """The folded record; each view is computed once, when first asked for."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.start = history.started.at
        self.end = history.ended_at

    @cached_property
    def controller_events(self) -> list[e.Event]:
        """The controller's events by number."""
        numbered = sorted(self.history.of(ControllerEvent), key=lambda entry: entry.seq)
        return [entry.event for entry in numbered]

    @cached_property
    def pools(self) -> dict[str, str]:
        """Pool id -> name."""
        return {event.pool_id: event.name for event in self.controller_events if isinstance(event, e.PoolCreated)}

    @cached_property
    def agents(self) -> dict[str, AgentLife]:
        lives: dict[str, AgentLife] = {}
        for event in self.controller_events:
            if isinstance(event, e.AgentRegistered):
                lives[event.agent_id] = AgentLife(event.agent_id, event.hostname, event.pool_id, event.gpus, event.at)
            elif isinstance(event, e.AgentStateChanged) and event.agent_id in lives:
                lives[event.agent_id].states.append((event.at, event.state, event.reason))
        return lives

    @cached_property
    def sessions(self) -> dict[str, SessionLife]:
        lives: dict[str, SessionLife] = {}
        for event in self.controller_events:
            if isinstance(event, e.SessionQueued):
                lives[event.session_id] = SessionLife(
                    event.session_id, event.requirements, event.owner, event.idempotency_key, event.name, event.at
                )
            elif isinstance(event, e.SessionAssigned):
                life = lives[event.session_id]
                life.assigned_at, life.agent_id, life.grants = event.at, event.agent_id, event.grants
            elif isinstance(event, e.SessionActivated):
                lives[event.session_id].active_at = event.at
            elif isinstance(event, e.SessionCanceling):
                lives[event.session_id].canceling_at = event.at
            elif isinstance(event, e.SessionClosed):
                life = lives[event.session_id]
                if life.closed_at is None:
                    life.closed_at, life.close_reason = event.at, event.reason
        return lives

    @cached_property
    def sessions_of_job(self) -> dict[int, list[SessionLife]]:
        result: dict[int, list[SessionLife]] = defaultdict(list)
        for session in self.sessions.values():
            if session.job_id is not None:
                result[session.job_id].append(session)
        return dict(result)

    @cached_property
    def jobs(self) -> dict[int, JobLife]:
        lives: dict[int, JobLife] = {}
        for seen in self.history.of(JobObserved):
            life = lives.setdefault(seen.job_id, JobLife(seen.job_id, seen.group, seen))
            life.observed.append(seen)
            life.last = seen
            life.group = seen.group or life.group
        return lives

    @cached_property
    def hook_runs(self) -> dict[int, list[HookRun]]:
        runs: dict[int, list[HookRun]] = defaultdict(list)
        for run in self.history.of(HookRun):
            runs[run.job_id].append(run)
        return dict(runs)

    @cached_property
    def granted_jobs(self) -> set[int]:
        """Jobs that use Juice: they ask for it, or a session was requested for them."""
        return {job.job_id for job in self.jobs.values() if job.last.juice} | set(self.sessions_of_job)

    @cached_property
    def _events_of_session(self) -> dict[str, list[e.Event]]:
        result: dict[str, list[e.Event]] = defaultdict(list)
        for event in self.controller_events:
            session_id = getattr(event, "session_id", None)
            if session_id is not None:
                result[session_id].append(event)
        return result

    # -- stories ------------------------------------------------------------------------------------------------------

    def session_story(self, session_id: str) -> list[str]:
        """The history of a session, its agent's losses included, one line per event."""
        timed = [(event.at, _tell(event, self)) for event in self._events_of_session.get(session_id, [])]
        session = self.sessions.get(session_id)
        if session and session.agent_id in self.agents:
            agent = self.agents[session.agent_id]
            timed += [
                (
                    at,
                    f"agent {agent.hostname} is {state.value} ({reason})"
                    if reason
                    else f"agent {agent.hostname} is {state.value}",
                )
                for at, state, reason in agent.states
            ]
        return self._lines(timed)

    def job_story(self, job_id: int) -> list[str]:
        """The history of a job: its states, hooks, sessions, output, and the faults meanwhile."""
        timed: list[tuple[float, str]] = []
        job = self.jobs.get(job_id)
        for submitted in self.history.of(JobSubmitted):
            if submitted.job_id == job_id:
                timed.append((submitted.at, f"submitted as {submitted.group} #{submitted.index}"))
        if job is not None:
            for seen in job.observed:
                details = [seen.state.value]
                if seen.reason and seen.reason != "None":
                    details.append(f"({seen.reason})")
                if seen.restarts:
                    details.append(f"restart {seen.restarts}")
                if seen.nodes and not seen.state.ended:
                    details.append("on " + ",".join(seen.nodes))
                if seen.state.ended:
                    details.append(f"exit code {seen.exit_code}" + (f", signal {seen.signal}" if seen.signal else ""))
                if seen.state is JobState.PENDING and seen.restarts and seen.eligible_time:
                    details.append(f"eligible again at {seen.eligible_time - self.start:.1f} s")
                timed.append((seen.at, "job " + " ".join(details)))
        for run in self.hook_runs.get(job_id, []):
            took = f" after {run.duration:.2f} s" if run.duration is not None else ""
            detail = f": {run.detail}" if run.detail else ""
            timed.append((run.at, f"{run.hook} {run.verdict}{took}{detail}"))
        for session in self.sessions_of_job.get(job_id, []):
            timed += [(event.at, _tell(event, self)) for event in self._events_of_session[session.id]]
        if timed:
            low, high = min(at for at, _ in timed), max(at for at, _ in timed)
            for fault in self.history.of(FaultInjected):
                if low <= fault.at <= high:
                    timed.append((fault.at, f"FAULT {fault.label}" + (f" ({fault.target})" if fault.target else "")))
            for ended in self.history.of(FaultEnded):
                if low <= ended.at <= high:
                    timed.append(
                        (ended.at, f"fault over: {ended.kind}" + (f" ({ended.target})" if ended.target else ""))
                    )
        lines = self._lines(timed)
        for output in self.history.of(JobOutput):
            if output.job_id == job_id:
                lines += [f"stderr: {line}" for line in output.stderr.splitlines()[-10:]]
                lines += [f"stdout: {line}" for line in output.stdout.splitlines()[-5:]]
        return lines

    def _lines(self, timed: Iterable[tuple[float, str]]) -> list[str]:
        return [f"{at - self.start:8.3f} s  {text}" for at, text in sorted(timed, key=lambda pair: pair[0])]


def describe_request(requirements: Requirements) -> str:
    """`1 slice of 4 GiB`, `2 whole GPUs`."""
    sizes = [gpu.vram_required for gpu in requirements.gpus]
    if any(sizes):
        return f"a slice of {max(sizes) / GIB:g} GiB"
    return "1 whole GPU" if len(sizes) == 1 else f"{len(sizes)} whole GPUs"


def _tell(event: e.Event, views: Views) -> str:
    session = str(getattr(event, "session_id", ""))[:8]
    if isinstance(event, e.SessionQueued):
        pool = views.pools.get(event.requirements.pool_id, event.requirements.pool_id or "any pool")
        return f"session {session} requested: {describe_request(event.requirements)} in {pool}"
    if isinstance(event, e.SessionAssigned):
        agent = views.agents.get(event.agent_id)
        gpus = ", ".join(
            f"GPU {grant.index} " + ("whole" if grant.whole else f"{grant.vram / GIB:g} GiB") for grant in event.grants
        )
        return f"session {session} assigned to {agent.hostname if agent else event.agent_id}: {gpus}"
    if isinstance(event, e.SessionActivated):
        return f"session {session} active"
    if isinstance(event, e.SessionCanceling):
        return f"session {session} canceling: {event.reason}"
    if isinstance(event, e.SessionClosed):
        return f"session {session} closed: {event.reason}"
    if isinstance(event, e.ConnectionChanged):
        link = event.connection
        end = "connected" if link.exit_code is None else f"ended with {link.exit_code}"
        return f"session {session}: process {link.pid} ({link.process_name}) {end}"
    return type(event).__name__
