"""What must hold of a run: pure functions over its record. They know nothing of how the run was made.

Each check takes the views of a record (some take the scenario too) and returns its violations; a violation carries the
story of the session or job that it is about.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import pairwise

from juice_sim.core import events as e
from juice_sim.core.model import GpuGrant

from .checks_asked import asked_for
from .checks_base import MAX_VIOLATIONS, Check, CheckResult, Violation, job_or_session_story
from .checks_crash import believable_spells, may_be_forgotten
from .history import FaultInjected, History, HookRun, JobOutput, JobSubmitted, LogCompared, RunEnded
from .history_views import GIB, JobLife, SessionLife, Views
from .scenario import Scenario
from .slurm.interface import JobState


@dataclass
class _Gpu:
    capacity: int
    held: dict[str, GpuGrant] = field(default_factory=dict)

    @property
    def used(self) -> int:
        return sum(grant.vram for grant in self.held.values())


def gpu_excesses(events: Iterable[e.Event]) -> Iterable[tuple[float, str, int, str, int, str]]:
    """(time, agent id, GPU index, session id, bytes too many, reason) for each assignment of what is not there.

    A whole-GPU session shares with nobody, whatever the sizes say; what it shares counts as too many.
    """
    gpus: dict[str, dict[int, _Gpu]] = {}
    open_sessions: dict[str, tuple[str, tuple[GpuGrant, ...]]] = {}
    for event in events:
        if isinstance(event, e.AgentRegistered):
            gpus[event.agent_id] = {gpu.index: _Gpu(gpu.vram) for gpu in event.gpus}
        elif isinstance(event, e.SessionAssigned):
            agent = gpus.get(event.agent_id, {})
            if event.session_id in open_sessions:
                yield event.at, event.agent_id, -1, event.session_id, 0, "assigned while it already holds GPUs"
            indexes = [grant.index for grant in event.grants]
            for index in {index for index in indexes if indexes.count(index) > 1}:
                yield event.at, event.agent_id, index, event.session_id, 0, "granted twice to one session"
            for grant in event.grants:
                gpu = agent.get(grant.index)
                if gpu is None:
                    yield (
                        event.at,
                        event.agent_id,
                        grant.index,
                        event.session_id,
                        grant.vram,
                        "the agent has no such GPU",
                    )
                    continue
                others = [other for holder, other in gpu.held.items() if holder != event.session_id]
                gpu.held[event.session_id] = grant
                excess = gpu.used - gpu.capacity
                if excess > 0:
                    yield (
                        event.at,
                        event.agent_id,
                        grant.index,
                        event.session_id,
                        excess,
                        "more VRAM is granted than it has",
                    )
                elif others and (grant.whole or any(other.whole for other in others)):
                    yield event.at, event.agent_id, grant.index, event.session_id, grant.vram, "a whole GPU is shared"
            open_sessions[event.session_id] = (event.agent_id, event.grants)
        elif isinstance(event, e.SessionClosed):
            agent_id, grants = open_sessions.pop(event.session_id, ("", ()))
            for grant in grants:
                held = gpus.get(agent_id, {}).get(grant.index)
                if held is not None:
                    held.held.pop(event.session_id, None)


def no_overcommit(views: Views) -> list[Violation]:
    """No GPU is over-committed at any instant."""
    violations = []
    for at, agent_id, index, session_id, excess, reason in gpu_excesses(views.controller_events):
        agent = views.agents.get(agent_id)
        where = f"agent {agent.hostname if agent else agent_id} GPU {index}"
        amount = f" ({excess / GIB:g} GiB too many)" if excess else ""
        story = tuple(views.session_story(session_id))
        violations.append(Violation("no_overcommit", where, f"session {session_id}: {reason}{amount}", at, story))
    return violations


def leaked_sessions(views: Views) -> list[SessionLife]:
    """Sessions still open at the end of the record whose job has ended, or that no job owns."""
    running = {job.job_id for job in views.jobs.values() if not job.last.state.ended}
    return [s for s in views.sessions.values() if s.closed_at is None and s.job_id not in running]


def no_session_left(views: Views) -> list[Violation]:
    """No session is left when its job has ended."""
    return [
        Violation(
            "no_session_left",
            f"session {session.id}",
            f"still open at the end; its job {session.job_id if session.job_id is not None else '(none)'} has ended",
            None,
            tuple(job_or_session_story(views, session)),
        )
        for session in leaked_sessions(views)
    ]


def no_job_without_session(views: Views, slack: float = 0.25) -> list[Violation]:
    """No job runs without its session: while a job that uses Juice surely ran, a session of that job was active.

    A session that ended because its agent was lost is no violation (the job's program then fails by itself), nor one
    that ran into the time limit that it was given. `slack` seconds allow for clocks of different processes.
    """
    violations = []
    for job in views.jobs.values():
        if job.job_id not in views.granted_jobs:
            continue
        sessions = [session for session in views.sessions_of_job.get(job.job_id, []) if session.active_at is not None]
        for spell in believable_spells(views, job):
            if spell.state is not JobState.RUNNING:
                continue
            own = [session for session in sessions if session.attempt == (job.job_id, spell.restarts)]
            problem = _uncovered(own, spell.first, spell.last, slack, views)
            if problem is not None and not _refused(views, job):
                story = tuple(views.job_story(job.job_id))
                violations.append(Violation("no_job_without_session", f"job {job.job_id}", problem, spell.first, story))
    return violations


def _refused(views: Views, job: JobLife) -> bool:
    """Whether the node refused to start the job's program: by a denial, or because it found no valid session file.

    Slurm shows such a job as running for a moment, but nothing of the user's ran. A component of a het job is shown so
    for as long as the first one runs its script; a step in it would be refused, and there need not be one.
    """
    denied = any(run.hook == "prolog" and run.verdict == "denied" for run in views.hook_runs.get(job.job_id, []))
    if denied and job.last.het_offset:
        return True
    if job.last.state is not JobState.FAILED:
        return False
    return denied or any(
        output.job_id == job.job_id and not output.stdout and "juice" in output.stderr
        for output in views.history.of(JobOutput)
    )


def _uncovered(sessions: list[SessionLife], first: float, last: float, slack: float, views: Views) -> str | None:
    """Why the time from first to last is not covered by one of the sessions; None when it is."""
    begun = [session for session in sessions if (session.active_at or 0.0) <= first + slack]
    if not begun:
        return "it runs, but no session of it is active"
    session = max(begun, key=lambda candidate: candidate.active_at or 0.0)
    if session.closed_at is None or session.closed_at >= last - slack:
        return None
    agent = views.agents.get(session.agent_id)
    if agent is not None and agent.lost_by(session.closed_at + slack):
        return None
    if session.close_reason.startswith("timed out") or "time-out" in session.close_reason:
        return None
    return (
        f"it runs until {last - views.start:.3f} s at least, but its session {session.id} was closed at "
        f"{session.closed_at - views.start:.3f} s ({session.close_reason})"
    )


def sessions_exclusive(views: Views) -> list[Violation]:
    """A job holds one session at a time, and an idempotency key stands for one session."""
    violations = []
    for job_id, sessions in views.sessions_of_job.items():
        ordered = sorted((s for s in sessions if s.assigned_at is not None), key=lambda s: s.assigned_at or 0.0)
        for earlier, later in pairwise(ordered):
            if earlier.open_at(later.assigned_at or 0.0) and earlier.canceling_at is None:
                violations.append(
                    Violation(
                        "sessions_exclusive",
                        f"job {job_id}",
                        f"session {later.id} is assigned while its session {earlier.id} is open",
                        later.assigned_at,
                        tuple(views.job_story(job_id)),
                    )
                )
    by_key: dict[tuple[str, str], list[SessionLife]] = defaultdict(list)
    for session in views.sessions.values():
        if session.key:
            by_key[session.owner, session.key].append(session)
    for (_, key), sessions in by_key.items():
        if len(sessions) > 1:
            names = ", ".join(session.id for session in sessions)
            story = tuple(line for session in sessions for line in views.session_story(session.id))
            violations.append(Violation("sessions_exclusive", f"key {key}", f"stands for {names}", None, story))
    return violations


def every_job_ends(views: Views) -> list[Violation]:
    """Every job ends, and every submission of the scenario became as many jobs as it should."""
    violations = []
    for job in views.jobs.values():
        if not job.last.state.ended:
            reason = f" ({job.last.reason})" if job.last.reason not in ("", "None") else ""
            violations.append(
                Violation(
                    "every_job_ends",
                    f"job {job.job_id}",
                    f"{job.last.state.value}{reason} when the run ended",
                    None,
                    tuple(views.job_story(job.job_id)),
                )
            )
    members: dict[int, int] = defaultdict(int)
    for job in views.jobs.values():
        members[job.last.array_job_id or job.last.het_job_id or job.job_id] += 1
    for submitted in views.history.of(JobSubmitted):
        if submitted.error or submitted.job_id == 0:
            continue
        seen = members[submitted.job_id]
        if seen != submitted.tasks and not may_be_forgotten(views, submitted.at):
            violations.append(
                Violation(
                    "every_job_ends",
                    f"job {submitted.job_id}",
                    f"{submitted.group} #{submitted.index}: Slurm knows {seen} of its {submitted.tasks} jobs",
                    None,
                    tuple(views.job_story(submitted.job_id)),
                )
            )
    return violations


def nothing_acknowledged_lost(views: Views) -> list[Violation]:
    """What the controller has told anyone is still in its log at the end, unchanged."""
    violations = []
    for compared in views.history.of(LogCompared):
        for difference in compared.differences:
            violations.append(Violation("nothing_acknowledged_lost", "run", difference, compared.at))
    known = {session_id[:8] for session_id in views.sessions}  # hooks log the beginning only: ids are secrets
    for run in views.history.of(HookRun):
        if run.session_id and run.session_id[:8] not in known:
            message = (
                f"the {run.hook} of job {run.job_id} was given session {run.session_id}, which the log does not have"
            )
            story = tuple(views.job_story(run.job_id))
            violations.append(
                Violation("nothing_acknowledged_lost", f"session {run.session_id}", message, run.at, story)
            )
    return violations


def faults_injected(views: Views, scenario: Scenario) -> list[Violation]:
    """Each fault of the scenario took place at least once: a fault that never came proves nothing."""
    done = {fault.position for fault in views.history.of(FaultInjected)}
    return [
        Violation("faults_injected", f"fault {fault.position + 1}", f"{fault.label} never took place")
        for fault in scenario.faults
        if fault.position not in done
    ]


def expected_end_states(views: Views, scenario: Scenario) -> list[Violation]:
    """Jobs of a group end as the group says, and no submission is refused."""
    expected = {group.name: set(group.expect) for group in scenario.jobs if group.expect}
    violations = []
    for job in views.jobs.values():
        accepted = expected.get(job.group)
        if accepted and job.last.state.ended and job.last.state.value not in accepted:
            message = f"{job.group}: {job.last.state.value}, expected {' or '.join(sorted(accepted))}"
            story = tuple(views.job_story(job.job_id))
            violations.append(Violation("expected_end_states", f"job {job.job_id}", message, job.last.end_time, story))
    for submitted in views.history.of(JobSubmitted):
        if submitted.error:
            message = f"{submitted.group} #{submitted.index} was refused at submit: {submitted.error}"
            violations.append(Violation("expected_end_states", submitted.group, message, submitted.at))
    return violations


def ended_in_time(views: Views) -> list[Violation]:
    """The run ended because its jobs had ended."""
    ends = views.history.of(RunEnded)
    reason = ends[-1].reason if ends else "the record has no end"
    return [] if reason == "all jobs ended" else [Violation("ended_in_time", "run", f"ended by: {reason}", views.end)]


def run_checks(history: History | Views, scenario: Scenario) -> list[CheckResult]:
    """All checks that apply to the scenario, in the order in which a report shows them."""
    views = history if isinstance(history, Views) else Views(history)
    # An agent that came back has registered again: its GPUs are counted once.
    gpu_count = len({(a.pool_id, a.hostname, gpu.index) for a in views.agents.values() for gpu in a.gpus})
    checks: list[tuple[str, str, Check, str]] = [
        ("no_overcommit", "No GPU is over-committed at any instant", no_overcommit, f"{gpu_count} GPUs"),
        (
            "no_session_left",
            "No session is left when its job has ended",
            no_session_left,
            f"{len(views.sessions)} sessions",
        ),
        (
            "no_job_without_session",
            "No job runs without its session",
            no_job_without_session,
            f"{len(views.granted_jobs)} jobs with Juice",
        ),
        ("every_job_ends", "Every job ends", every_job_ends, f"{len(views.jobs)} jobs"),
        ("sessions_exclusive", "One session per job at a time, one per idempotency key", sessions_exclusive, ""),
        (
            "nothing_acknowledged_lost",
            "Nothing that was acknowledged is lost",
            nothing_acknowledged_lost,
            f"{len(views.controller_events)} events",
        ),
        ("ended_in_time", "The run ended within its time limit", ended_in_time, f"{scenario.time_limit:g} s allowed"),
        ("expected_end_states", "Jobs end as their group expects", lambda v: expected_end_states(v, scenario), ""),
    ]
    if scenario.faults:
        injected = (
            len(history.of(FaultInjected)) if isinstance(history, History) else len(views.history.of(FaultInjected))
        )
        checks.append(
            ("faults_injected", "Each fault took place", lambda v: faults_injected(v, scenario), f"{injected} injected")
        )
    checks += [(name, title, check, "") for name, title, check in asked_for(scenario.checks)]
    results = []
    for name, title, check, found in checks:
        violations = check(views)
        results.append(CheckResult(name, title, tuple(violations[:MAX_VIOLATIONS]), len(violations), found))
    return results
