"""Checks that a scenario asks for, beyond those that are always made."""

from __future__ import annotations

from collections import defaultdict
from functools import partial

from juice_sim.core import events as e

from .checks_base import Check, Violation, job_or_session_story
from .history import HookRun
from .history_views import Views
from .scenario import CheckSpec
from .slurm.interface import JobState


def all_completed(views: Views) -> list[Violation]:
    return [
        Violation(
            "all_completed",
            f"job {job.job_id}",
            f"{job.group}: {job.last.state.value}",
            job.last.end_time,
            tuple(views.job_story(job.job_id)),
        )
        for job in views.jobs.values()
        if job.last.state is not JobState.COMPLETED
    ]


def requeues(views: Views) -> int:
    """How often Slurm put a job back into the queue."""
    return sum(job.last.restarts for job in views.jobs.values())


def _count(name: str, measured: float, least: float | None, most: float | None, what: str) -> list[Violation]:
    if least is not None and measured < least:
        return [Violation(name, "run", f"{measured:g} {what}, expected at least {least:g}")]
    if most is not None and measured > most:
        return [Violation(name, "run", f"{measured:g} {what}, expected at most {most:g}")]
    return []


def _completed(views: Views) -> int:
    return sum(job.last.state is JobState.COMPLETED for job in views.jobs.values())


def max_restarts_per_job(views: Views, most: int) -> list[Violation]:
    return [
        Violation(
            "max_restarts_per_job",
            f"job {job.job_id}",
            f"requeued {job.last.restarts} times, expected at most {most}",
            None,
            tuple(views.job_story(job.job_id)),
        )
        for job in views.jobs.values()
        if job.last.restarts > most
    ]


def max_queue_wait(views: Views, most: float) -> list[Violation]:
    return [
        Violation(
            "max_queue_wait",
            f"job {job.job_id}",
            f"waited {job.wait:.1f} s, expected at most {most:g} s",
            job.last.start_time,
            tuple(views.job_story(job.job_id)),
        )
        for job in views.jobs.values()
        if job.wait is not None and job.wait > most
    ]


def max_prolog(views: Views, most: float) -> list[Violation]:
    return [
        Violation(
            "max_prolog",
            f"job {run.job_id}",
            f"a granted prolog took {run.duration:.2f} s, expected at most {most:g} s",
            run.at,
            tuple(views.job_story(run.job_id)),
        )
        for run in views.history.of(HookRun)
        if run.hook == "prolog" and run.verdict == "granted" and run.duration is not None and run.duration > most
    ]


def release_delays(views: Views) -> dict[str, float]:
    """Session id -> seconds from the end of its attempt's job to its close (to the end of the run when still open)."""
    delays = {}
    for session in views.sessions.values():
        if session.assigned_at is None or session.job_id not in views.jobs:
            continue
        ends = [
            spell.last
            for spell in views.jobs[session.job_id].spells(views.end)
            if spell.state is JobState.RUNNING and session.attempt == (session.job_id, spell.restarts)
        ]
        if ends:
            delays[session.id] = max(0.0, (session.closed_at or views.end) - max(ends))
    return delays


def max_release_delay(views: Views, most: float) -> list[Violation]:
    return [
        Violation(
            "max_release_delay",
            f"session {session_id}",
            f"closed {delay:.1f} s after its job had ended, expected at most {most:g} s",
            views.sessions[session_id].closed_at,
            tuple(job_or_session_story(views, views.sessions[session_id])),
        )
        for session_id, delay in release_delays(views).items()
        if delay > most
    ]


def gpus_shared(views: Views) -> list[Violation]:
    held: dict[tuple[str, int], set[str]] = defaultdict(set)
    for event in views.controller_events:
        if isinstance(event, e.SessionAssigned):
            for grant in event.grants:
                holders = held[event.agent_id, grant.index]
                holders.add(event.session_id)
                if len(holders) > 1:
                    return []
        elif isinstance(event, e.SessionClosed):
            for holders in held.values():
                holders.discard(event.session_id)
    return [Violation("gpus_shared", "run", "no GPU was ever shared by two slices")]


def asked_for(spec: CheckSpec) -> list[tuple[str, str, Check]]:
    checks: list[tuple[str, str, Check]] = []
    if spec.all_completed:
        checks.append(("all_completed", "Every job ends COMPLETED", all_completed))
    if spec.min_completed is not None:
        title = f"At least {spec.min_completed} jobs end COMPLETED"
        checks.append(
            (
                "min_completed",
                title,
                lambda v: _count("min_completed", _completed(v), spec.min_completed, None, "jobs completed"),
            )
        )
    if spec.max_requeues is not None:
        title = f"At most {spec.max_requeues} requeues"
        checks.append(
            ("max_requeues", title, lambda v: _count("max_requeues", requeues(v), None, spec.max_requeues, "requeues"))
        )
    if spec.min_requeues is not None:
        title = f"At least {spec.min_requeues} requeues"
        checks.append(
            ("min_requeues", title, lambda v: _count("min_requeues", requeues(v), spec.min_requeues, None, "requeues"))
        )
    if spec.max_restarts_per_job is not None:
        title = f"No job is requeued more than {spec.max_restarts_per_job} times"
        checks.append(("max_restarts_per_job", title, partial(max_restarts_per_job, most=spec.max_restarts_per_job)))
    if spec.max_queue_wait is not None:
        title = f"No job waits longer than {spec.max_queue_wait:g} s"
        checks.append(("max_queue_wait", title, partial(max_queue_wait, most=spec.max_queue_wait)))
    if spec.max_prolog is not None:
        title = f"No granted prolog takes longer than {spec.max_prolog:g} s"
        checks.append(("max_prolog", title, partial(max_prolog, most=spec.max_prolog)))
    if spec.max_release_delay is not None:
        title = f"Sessions are closed within {spec.max_release_delay:g} s of their job's end"
        checks.append(("max_release_delay", title, partial(max_release_delay, most=spec.max_release_delay)))
    if spec.gpus_shared:
        checks.append(("gpus_shared", "A GPU is shared by slices", gpus_shared))
    return checks
