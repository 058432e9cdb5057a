"""What must hold of a simulated run, judged from its record alone. Nothing here knows how the run was made.

Beside the checks that every record can be put to (`fake_cluster/checks.py`: no over-commit), a simulation sees more:
true times, which program ran on which session, how each hook ended. So these checks are sharper, and need no slack.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

from juice_sim.core import events as ev
from juice_sim.core.model import AgentState, GpuGrant

from ..checks import Violation, no_overcommit
from ..history import ControllerEvent, History, RunEnded, RunStarted
from ..history_views import SessionLife, Views, attempt_of
from ..slurm.interface import JobState
from .plan import Plan
from .record import HookEnd, JobAsked, ProgramRun, Record

GRACE_S = 300.0  # of the hooks' reconcile
HOLDING = (JobState.CONFIGURING, JobState.RUNNING)


@dataclass
class Attempt:
    """One start of a job, from slurmctld's view. `over` is when it left CONFIGURING and RUNNING for good."""

    incarnation: int
    job_id: int
    restarts: int
    began: float
    over: float | None = None


class Evidence:
    """The record, folded for the checks."""

    def __init__(self, plan: Plan, record: Record) -> None:
        self.plan = plan
        self.record = record

    @cached_property
    def views(self) -> Views:
        """The controller's side as `fake_cluster/history_views.py` folds it, with true times."""
        entries: list[object] = [RunStarted(0.0, "fuzz", self.plan.seed, "none", "virtual", "")]
        for seq, (at, event) in enumerate(self.record.events, 1):
            entries.append(ControllerEvent(seq, replace(event, at=at)))
        entries.append(RunEnded(self.record.ended, "all jobs ended"))
        return Views(History(entries=entries))  # type: ignore[arg-type]

    @cached_property
    def sessions(self) -> dict[str, SessionLife]:
        return self.views.sessions

    @cached_property
    def attempts(self) -> list[Attempt]:
        """All starts of all jobs, in order of their beginning."""
        found: list[Attempt] = []
        open_ones: dict[int, Attempt] = {}
        for change in self.record.jobs:
            current = open_ones.get(change.incarnation)
            if change.state in HOLDING:
                if current is None or current.job_id != change.job_id or current.restarts != change.restarts:
                    if current is not None:
                        current.over = change.at
                    current = Attempt(change.incarnation, change.job_id, change.restarts, change.at)
                    open_ones[change.incarnation] = current
                    found.append(current)
            elif current is not None:
                current.over = change.at
                del open_ones[change.incarnation]
        for incarnation, at in self.record.lost.items():
            for attempt in found:
                if attempt.incarnation == incarnation and (attempt.over is None or attempt.over > at):
                    attempt.over = at
        return found

    @cached_property
    def attempts_of(self) -> dict[tuple[int, int], list[Attempt]]:
        """By (job id, restart count). Several when slurmctld has forgotten a job and used its id again."""
        result: dict[tuple[int, int], list[Attempt]] = defaultdict(list)
        for attempt in self.attempts:
            result[attempt.job_id, attempt.restarts].append(attempt)
        return dict(result)

    @cached_property
    def names(self) -> dict[str, tuple[int, int]]:
        """Session id -> (job id, restart count) of the start that it was asked for."""
        result = {}
        for session in self.sessions.values():
            attempt = attempt_of(session.name)
            if attempt is not None:
                result[session.id] = attempt
        return result

    def lost_agent(self, agent_id: str, by: float) -> bool:
        """Whether the agent had gone missing, or was removed, by then."""
        agent = self.views.agents.get(agent_id)
        return agent is not None and agent.lost_by(by)

    def story(self, session_id: str = "", job_id: int | None = None) -> tuple[str, ...]:
        """What is known of a session and of the job that it was for, in order of time."""
        if job_id is None and session_id in self.names:
            job_id = self.names[session_id][0]
        lines: list[tuple[float, str]] = []
        sessions = {session_id} | {sid for sid, name in self.names.items() if name[0] == job_id}
        for session in sorted(sessions):
            for line in self.views.session_story(session):
                at, _, text = line.strip().partition(" s  ")
                lines.append((float(at), text))
        for change in self.record.jobs:
            if change.job_id == job_id:
                final = f" -> {change.final.value}" if change.final is not None else ""
                reason = f" ({change.reason})" if change.reason not in ("", "None") else ""
                lines.append((change.at, f"job {job_id} start {change.restarts}: {change.state.value}{final}{reason}"))
        for end in self.record.hooks:
            if end.job_id == job_id:
                how = "killed" if end.killed else f"exit {end.code}"
                lines.append((end.started, f"{end.hook} of start {end.restarts} begins"))
                lines.append((end.ended, f"{end.hook} of start {end.restarts} ends: {how}, {end.verdict}"))
        for run in self.record.programs:
            if run.job_id == job_id:
                lines.append(
                    (run.started, f"program of start {run.restarts} begins on session {run.session_id[:8] or '-'}")
                )
                if run.ended is not None:
                    lines.append((run.ended, f"program of start {run.restarts} ends"))
        lines += [(at, text) for at, number, text in self.record.log if number == job_id]
        if lines:
            low, high = min(at for at, _ in lines), max(at for at, _ in lines)
            lines += [(at, text) for at, text in self.record.faults if low - 60 <= at <= high]
        # Equal lines come from a session that is in two lists.
        ordered = list(dict.fromkeys(sorted(lines, key=lambda pair: pair[0])))
        return tuple(f"{at:10.3f} s  {text}" for at, text in ordered)


def overcommit(evidence: Evidence) -> list[Violation]:
    """No GPU is over-committed at any instant, by the controller's own books."""
    return no_overcommit(evidence.views)


def physical_overcommit(evidence: Evidence) -> list[Violation]:
    """No GPU runs the programs of more sessions than it has room for: what counts on the machine itself."""
    moments: list[tuple[float, int, ProgramRun]] = []
    for run in evidence.record.programs:
        session = evidence.sessions.get(run.session_id)
        if session is not None and session.grants:
            moments.append((run.started, 1, run))
            ended = run.ended if run.ended is not None else evidence.record.ended
            moments.append((ended if run.agent_died is None else min(ended, run.agent_died), 0, run))
    held: dict[tuple[str, int], dict[str, tuple[int, GpuGrant]]] = defaultdict(dict)
    capacity = {(agent.hostname, gpu.index): gpu.vram for agent in evidence.views.agents.values() for gpu in agent.gpus}
    violations = []
    for at, begins, run in sorted(moments, key=lambda moment: (moment[0], moment[1])):
        session = evidence.sessions[run.session_id]
        host = evidence.views.agents[session.agent_id].hostname
        for grant in session.grants:
            holders = held[host, grant.index]
            if not begins:
                holders.pop(run.session_id, None)
                continue
            others = [other for sid, (_, other) in holders.items() if sid != run.session_id]
            holders[run.session_id] = (run.job_id, grant)
            used = sum(other.vram for other in others) + grant.vram
            shared = others and (grant.whole or any(other.whole for other in others))
            if used > capacity[host, grant.index] or shared:
                message = f"programs of {len(others) + 1} sessions run there, and do not fit ({used} bytes granted)"
                violations.append(
                    Violation("physical_overcommit", f"agent {host} GPU {grant.index}", message, at,
                              evidence.story(run.session_id))
                )  # fmt: skip
    return violations


def closed_once(evidence: Evidence) -> list[Violation]:
    """Each session is closed exactly once, holds nothing afterwards, and goes through its states in order."""
    violations = []
    order = {
        ev.SessionQueued: 0,
        ev.SessionAssigned: 1,
        ev.SessionActivated: 2,
        ev.SessionCanceling: 3,
        ev.SessionClosed: 4,
    }
    state: dict[str, int] = {}
    for at, event in evidence.record.events:
        rank = order.get(type(event))
        if rank is None:
            continue
        session_id: str = event.session_id  # type: ignore[attr-defined]
        if state.get(session_id, -1) >= rank:
            message = f"{type(event).__name__} after it was past that"
            violations.append(
                Violation("closed_once", f"session {session_id}", message, at, evidence.story(session_id))
            )
        state[session_id] = max(state.get(session_id, -1), rank)
    if evidence.record.quiet:
        for session_id, rank in state.items():
            if rank != 4:
                violations.append(
                    Violation(
                        "closed_once", f"session {session_id}", "is never closed", None, evidence.story(session_id)
                    )
                )
    return violations


def own_session(evidence: Evidence) -> list[Violation]:
    """No job that asked for a session runs without its own, active one; and none is taken from it while it runs."""
    violations = []

    def violated(run: ProgramRun, message: str) -> None:
        story = evidence.story(run.session_id, run.job_id)
        violations.append(Violation("own_session", f"job {run.job_id}", message, run.started, story))

    for run in evidence.record.programs:
        asked = evidence.record.asked[run.incarnation]
        if not asked.pool:
            if run.session_id:
                violated(run, f"it asked for nothing and runs on session {run.session_id}")
            continue
        session = evidence.sessions.get(run.session_id)
        if session is None:
            violated(run, f"it runs on session {run.session_id or '(none)'}, which the controller does not have")
            continue
        if evidence.names.get(session.id) != (run.job_id, run.restarts):
            violated(run, f"start {run.restarts} runs on session {session.id}, which was asked for {session.name}")
            continue
        wrong = _not_as_asked(asked, session)
        if wrong:
            violated(run, f"session {session.id}: {wrong}")
        if session.active_at is None or session.active_at > run.started:
            violated(run, f"session {session.id} was not active when the program began")
            continue
        gone = min((at for at in (session.canceling_at, session.closed_at) if at is not None), default=None)
        over = _over(evidence, run)
        until = min(run.ended if run.ended is not None else evidence.record.ended, over)
        if gone is not None and gone < until and not evidence.lost_agent(session.agent_id, gone):
            violated(run, f"session {session.id} was taken away at {gone:.3f} s while the job ran until {until:.3f} s")
    return violations


def _not_as_asked(asked: JobAsked, session: SessionLife) -> str:
    sizes = [gpu.vram_required for gpu in session.requirements.gpus]
    wanted = [asked.vram or 0] * asked.gpus
    if sizes != wanted:
        return f"was asked for with {sizes}, the job wants {wanted}"
    return ""


def _over(evidence: Evidence, run: ProgramRun) -> float:
    """When slurmctld took the start that this program belongs to for over."""
    times = [
        attempt.over if attempt.over is not None else evidence.record.ended
        for attempt in evidence.attempts_of.get((run.job_id, run.restarts), [])
        if attempt.incarnation == run.incarnation and attempt.began <= run.started
    ]
    return min((at for at in times if at >= run.started), default=run.started)


def one_job_each(evidence: Evidence) -> list[Violation]:
    """No session serves two jobs, or two starts of one."""
    users: dict[str, set[tuple[int, int, int]]] = defaultdict(set)
    for run in evidence.record.programs:
        if run.session_id:
            users[run.session_id].add((run.incarnation, run.job_id, run.restarts))
    return [
        Violation("one_job_each", f"session {session_id}", f"serves {sorted(jobs)}", None, evidence.story(session_id))
        for session_id, jobs in users.items()
        if len(jobs) > 1
    ]


def keys(evidence: Evidence) -> list[Violation]:
    """An idempotency key stands for one session, and every request of a hook has one."""
    by_key: dict[tuple[str, str], list[str]] = defaultdict(list)
    violations = []
    for session in evidence.sessions.values():
        by_key[session.owner, session.key].append(session.id)
        if not session.key:
            violations.append(
                Violation("keys", f"session {session.id}", "was asked for without a key", session.requested_at,
                          evidence.story(session.id))
            )  # fmt: skip
    for (_, key), sessions in by_key.items():
        if key and len(sessions) > 1:
            message = f"stands for {len(sessions)} sessions: {', '.join(sessions)}"
            violations.append(Violation("keys", f"key {key}", message, None, evidence.story(sessions[0])))
    return violations


def released_by_epilog(evidence: Evidence) -> list[Violation]:
    """When an epilog says that all is released (exit 0), every session is canceling or closed that was asked for by the
    start which has ended, or by an earlier one."""
    violations = []
    for end in evidence.record.hooks:
        if end.hook != "epilog" or end.code or end.killed:
            continue
        for session_id, (job_id, restarts) in evidence.names.items():
            if job_id != end.job_id or restarts > end.restarts:
                continue
            session = evidence.sessions[session_id]
            if session.requested_at >= end.started:
                continue
            gone = min((at for at in (session.canceling_at, session.closed_at) if at is not None), default=None)
            if gone is None or gone > end.ended:
                message = f"the epilog of start {end.restarts} ended well at {end.ended:.3f} s and left it behind"
                violations.append(
                    Violation(
                        "released_by_epilog", f"session {session_id}", message, end.ended, evidence.story(session_id)
                    )
                )
    return violations


def released_in_time(evidence: Evidence) -> list[Violation]:
    """No session outlives its job by more than reconcile needs once faults have stopped."""
    plan = evidence.plan
    bound = GRACE_S + 2 * plan.reconcile_every + plan.wait + plan.kill_wait + 120.0
    bound += plan.missing_after + plan.removed_after
    violations = []
    for session_id, name in evidence.names.items():
        session = evidence.sessions[session_id]
        ends = [
            attempt.over if attempt.over is not None else evidence.record.ended
            for attempt in evidence.attempts_of.get(name, [])
        ]
        # A prolog that slurmctld no longer waits for may ask after its start is over.
        last = max([*ends, session.requested_at, plan.chaos])
        closed = session.closed_at if session.closed_at is not None else evidence.record.ended
        if closed - last > bound:
            message = (
                f"closed {closed - last:.1f} s after its job had ended and faults had stopped; allowed {bound:g} s"
            )
            violations.append(
                Violation("released_in_time", f"session {session_id}", message, closed, evidence.story(session_id))
            )
    return violations


def grant_sizes(evidence: Evidence) -> list[Violation]:
    """Each grant is the whole GPU, or what was asked for, or (not strict) at least 93 % of it."""
    violations = []
    for session in evidence.sessions.values():
        wanted = session.requirements.gpus
        if session.grants and len(session.grants) != len(wanted):
            message = f"has {len(session.grants)} GPUs instead of {len(wanted)}"
            violations.append(Violation("grant_sizes", f"session {session.id}", message, session.assigned_at))
        for grant, requirement in zip(session.grants, wanted, strict=False):
            size = requirement.vram_required
            if grant.whole != (not size):
                message = f"GPU {grant.index}: a slice was asked for and a whole GPU granted, or the other way round"
            elif size and (grant.vram > size or (session.requirements.strict and grant.vram < size)):
                message = f"GPU {grant.index}: {grant.vram} bytes granted, {size} asked for"
            elif size and grant.vram * 100 < size * 93:
                message = f"GPU {grant.index}: {grant.vram} bytes granted are less than 93 % of {size}"
            else:
                continue
            violations.append(
                Violation(
                    "grant_sizes", f"session {session.id}", message, session.assigned_at, evidence.story(session.id)
                )
            )
    return violations


def could_serve(plan: Plan, asked: JobAsked) -> bool:
    """Whether an agent of the plan, empty, could serve this: by the documented rules, not by the controller's code."""
    for pool in plan.pools:
        if pool.name != asked.pool or asked.gpus > pool.gpus:
            continue
        if asked.vram is None:
            return True
        if asked.vram <= pool.vram or (not asked.strict and asked.vram * 93 <= pool.vram * 100):
            return True
    return False


def denials(evidence: Evidence) -> list[Violation]:
    """What can never be served is denied, and nothing else."""
    violations = []
    for end in evidence.record.hooks:
        if end.hook != "prolog":
            continue
        asked = evidence.record.asked[end.incarnation]
        possible = could_serve(evidence.plan, asked)
        size = f"{asked.gpus} GPU(s)" + (f" with {asked.vram} bytes" if asked.vram is not None else "")
        if end.verdict == "denied" and possible:
            message = f"denied, though pool {asked.pool} can serve {size}"
        elif end.verdict == "granted" and not possible:
            message = f"granted, though no agent of pool {asked.pool} can serve {size}"
        else:
            continue
        violations.append(Violation("denials", f"job {end.job_id}", message, end.ended, evidence.story("", end.job_id)))
    return violations


def queue_order(evidence: Evidence) -> list[Violation]:
    """Nobody is served before one who came earlier to the same pool, asks for no more, and would fit there too."""
    waiting: dict[str, tuple[int, ev.SessionQueued]] = {}  # in the order of the log
    violations = []
    for seq, (at, event) in enumerate(evidence.record.events):
        if isinstance(event, ev.SessionQueued):
            waiting[event.session_id] = (seq, event)
        elif isinstance(event, ev.SessionClosed):
            waiting.pop(event.session_id, None)
        elif isinstance(event, ev.SessionAssigned):
            came, served = waiting.pop(event.session_id, (-1, None))
            if served is None:
                continue
            for other, earlier in waiting.values():
                if other > came:
                    break
                if earlier.requirements.pool_id == served.requirements.pool_id and _needs_no_more(
                    earlier, event.grants
                ):
                    message = f"was served before session {earlier.session_id}, which came first and would have fitted"
                    violations.append(
                        Violation("queue_order", f"session {served.session_id}", message, at,
                                  evidence.story(earlier.session_id))
                    )  # fmt: skip
                    break
    return violations


def _needs_no_more(earlier: ev.SessionQueued, grants: tuple[GpuGrant, ...]) -> bool:
    sizes = [gpu.vram_required for gpu in earlier.requirements.gpus]
    if all(sizes):
        # A slice fits wherever a larger one, or a whole GPU, has just been placed.
        return len(sizes) == 1 and any(sizes[0] <= grant.vram for grant in grants)
    return all(not size for size in sizes) and len(sizes) <= sum(grant.whole for grant in grants)


def came_to_rest(evidence: Evidence) -> list[Violation]:
    """Once faults have stopped, all jobs end, all sessions are closed, and the hooks' files are gone."""
    record = evidence.record
    if record.quiet or record.crash:
        return []
    last: dict[int, tuple[int, str]] = {}
    for change in record.jobs:
        last[change.incarnation] = (change.job_id, change.state.value)
    unfinished = [
        f"job {job_id} is {state}"
        for incarnation, (job_id, state) in last.items()
        if not JobState(state).ended and incarnation not in record.lost
    ]
    sessions = [f"session {s.id} is open" for s in evidence.sessions.values() if s.closed_at is None]
    things = [*unfinished, *sessions, *record.leftovers]
    subject = things[0] if things else "run"
    first = next((s.id for s in evidence.sessions.values() if s.closed_at is None), "")
    job = next((job_id for i, (job_id, s) in last.items() if not JobState(s).ended and i not in record.lost), None)
    story = evidence.story(first, job)
    message = f"not at rest {record.ended - evidence.plan.chaos:.0f} s after faults stopped: {'; '.join(things[:8])}"
    return [Violation("came_to_rest", subject, message, record.ended, story[-200:])]


def sound(evidence: Evidence) -> list[Violation]:
    """No part failed by a fault of its own: an invariant that broke, an exception in a hook."""
    violations = []
    if evidence.record.crash:
        message, *story = evidence.record.crash.splitlines()
        story = story or [f"{at:10.3f} s  {text}" for at, text in evidence.record.faults]
        violations.append(Violation("sound", "run", message, evidence.record.ended, tuple(story)))
    for end in evidence.record.hooks:
        if end.fault:
            message = f"{end.hook} of start {end.restarts}: {end.fault}"
            violations.append(
                Violation("sound", f"job {end.job_id}", message, end.ended, evidence.story("", end.job_id))
            )
    return violations


def silent_agents(evidence: Evidence) -> list[Violation]:
    """Nothing is assigned to an agent that is missing, disabled or removed."""
    state: dict[str, AgentState] = {}
    violations = []
    for at, event in evidence.record.events:
        if isinstance(event, ev.AgentRegistered):
            state[event.agent_id] = AgentState.ACTIVE
        elif isinstance(event, ev.AgentStateChanged):
            state[event.agent_id] = event.state
        elif isinstance(event, ev.SessionAssigned) and state.get(event.agent_id) is not AgentState.ACTIVE:
            message = f"assigned to agent {event.agent_id}, which is {state.get(event.agent_id)}"
            violations.append(
                Violation("silent_agents", f"session {event.session_id}", message, at, evidence.story(event.session_id))
            )
    return violations


CHECKS = (
    sound,
    overcommit,
    physical_overcommit,
    closed_once,
    own_session,
    one_job_each,
    keys,
    released_by_epilog,
    released_in_time,
    grant_sizes,
    denials,
    queue_order,
    silent_agents,
    came_to_rest,
)


def check(plan: Plan, record: Record) -> list[Violation]:
    """All violations of a run, the most telling check first."""
    evidence = Evidence(plan, record)
    return [violation for one in CHECKS for violation in one(evidence)]


def checks_made() -> Iterable[str]:
    """The names of the checks."""
    return [one.__name__ for one in CHECKS]


__all__ = ["CHECKS", "Evidence", "HookEnd", "check", "checks_made", "could_serve"]
