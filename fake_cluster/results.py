"""results.json: the figures of a run, computed from its record (contract: docs/contracts.md, section 7)."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from juice_sim.core import events as e
from juice_sim.core.model import AgentState

from .checks import gpu_excesses, leaked_sessions
from .checks_asked import release_delays, requeues
from .checks_base import CheckResult
from .history import FaultInjected, HookRun, JobSubmitted
from .history_views import Views
from .slurm.interface import JobState

FAILED_STATES = (JobState.FAILED, JobState.TIMEOUT, JobState.NODE_FAIL, JobState.BOOT_FAIL)


def percentile(values: Iterable[float], percent: float) -> float | None:
    """The nearest-rank percentile; None of no values."""
    ordered = sorted(values)
    if not ordered:
        return None
    return ordered[max(0, math.ceil(len(ordered) * percent / 100.0) - 1)]


def vram_timeline(events: Iterable[e.Event]) -> list[tuple[float, int, int, int]]:
    """(time, bytes granted, GPUs that hold a session, GPUs present) after each change. An agent that has registered
    again is counted once; one that is missing is not present."""
    hosts: dict[str, tuple[tuple[str, str], int]] = {}
    current: dict[tuple[str, str], str] = {}
    present: dict[tuple[str, str], int] = {}
    held: dict[str, tuple[str, tuple[tuple[int, int], ...]]] = {}
    users: dict[tuple[str, int], int] = {}
    granted = 0
    timeline = []
    for event in events:
        if isinstance(event, e.AgentRegistered):
            host = (event.pool_id, event.hostname)
            hosts.pop(current.get(host, ""), None)
            current[host] = event.agent_id
            hosts[event.agent_id] = (host, len(event.gpus))
            present[host] = len(event.gpus)
        elif isinstance(event, e.AgentStateChanged):
            if event.agent_id not in hosts:
                continue
            host, count = hosts[event.agent_id]
            if event.state in (AgentState.CLOSED, AgentState.MISSING):
                present.pop(host, None)
            else:
                present[host] = count
        elif isinstance(event, e.SessionAssigned):
            grants = tuple((grant.index, grant.vram) for grant in event.grants)
            held[event.session_id] = (event.agent_id, grants)
            for index, vram in grants:
                users[event.agent_id, index] = users.get((event.agent_id, index), 0) + 1
                granted += vram
        elif isinstance(event, e.SessionClosed):
            agent_id, grants = held.pop(event.session_id, ("", ()))
            for index, vram in grants:
                granted -= vram
                users[agent_id, index] -= 1
                if not users[agent_id, index]:
                    del users[agent_id, index]
        else:
            continue
        timeline.append((event.at, granted, len(users), sum(present.values())))
    return timeline


def _capacity(views: Views) -> tuple[int, int]:
    """(GPUs, bytes of VRAM) when most were present: an agent that comes back is not counted twice."""
    present: dict[str, tuple[int, int]] = {}
    best = (0, 0)
    for event in views.controller_events:
        if isinstance(event, e.AgentRegistered):
            present[event.agent_id] = (len(event.gpus), sum(gpu.vram for gpu in event.gpus))
        elif isinstance(event, e.AgentStateChanged) and event.state in (AgentState.CLOSED, AgentState.MISSING):
            present.pop(event.agent_id, None)
        else:
            continue
        best = max(best, (sum(n for n, _ in present.values()), sum(size for _, size in present.values())))
    return best


def prolog_times(views: Views) -> list[float]:
    """Durations of the prologs that were granted a session."""
    return [
        run.duration
        for run in views.history.of(HookRun)
        if run.hook == "prolog" and run.verdict == "granted" and run.duration is not None
    ]


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)


def compute_results(views: Views, checks: Sequence[CheckResult]) -> dict[str, Any]:
    """The figures of a run as JSON-ready values. Times are seconds, sizes bytes; null where nothing was measured."""
    started = views.history.started
    jobs = list(views.jobs.values())
    waits = [job.wait for job in jobs if job.wait is not None]
    prologs = prolog_times(views)
    hook_runs = views.history.of(HookRun)
    gpu_count, vram_bytes = _capacity(views)
    timeline = vram_timeline(views.controller_events)
    excess = max((item[4] for item in gpu_excesses(views.controller_events)), default=0)
    delays = list(release_delays(views).values())
    states: dict[str, int] = {}
    for job in jobs:
        states[job.last.state.value] = states.get(job.last.state.value, 0) + 1
    refused = [submitted for submitted in views.history.of(JobSubmitted) if submitted.error]
    sessions = views.sessions.values()
    return {
        "scenario": started.scenario,
        "seed": started.seed,
        "wall_s": round(views.end - started.at, 3),
        "cluster": started.cluster,
        "slurm": started.slurm,
        "version": started.version,
        "started_at": started.at,
        "jobs": {
            "submitted": len(jobs) + len(refused),
            "completed": states.get("COMPLETED", 0),
            "failed": sum(states.get(state.value, 0) for state in FAILED_STATES),
            "cancelled": states.get("CANCELLED", 0),
            "requeues": requeues(views),
            "refused": len(refused),
            "unfinished": sum(not job.last.state.ended for job in jobs),
            "by_state": dict(sorted(states.items())),
        },
        "sessions": {
            "requested": len(views.sessions),
            "granted": sum(session.active_at is not None for session in sessions),
            "denied": len({run.job_id for run in hook_runs if run.hook == "prolog" and run.verdict == "denied"}),
            "closed": sum(session.closed_at is not None for session in sessions),
            "leaked": len(leaked_sessions(views)),
        },
        "gpus": {
            "count": gpu_count,
            "vram_bytes": vram_bytes,
            "peak_vram_bytes": max((granted for _, granted, _, _ in timeline), default=0),
            "overcommitted_bytes": excess,
            "peak_in_use": max((used for _, _, used, _ in timeline), default=0),
        },
        "waits": {
            "queue_p50_s": _rounded(percentile(waits, 50)),
            "queue_p99_s": _rounded(percentile(waits, 99)),
            "queue_max_s": _rounded(max(waits, default=None)),
            "prolog_p50_s": _rounded(percentile(prologs, 50)),
            "prolog_p99_s": _rounded(percentile(prologs, 99)),
            "prolog_max_s": _rounded(max(prologs, default=None)),
            "release_p99_s": _rounded(percentile(delays, 99)),
        },
        "hooks": {
            "prologs": sum(run.hook == "prolog" for run in hook_runs),
            "epilogs": sum(run.hook == "epilog" for run in hook_runs),
        },
        "faults": len(views.history.of(FaultInjected)),
        "invariants": {
            "checked": len(checks),
            "names": [check.name for check in checks],
            "violations": [
                {
                    "check": violation.check,
                    "subject": violation.subject,
                    "message": violation.message,
                    "at_s": None if violation.at is None else round(violation.at - started.at, 3),
                    "story": list(violation.story),
                }
                for check in checks
                for violation in check.violations
            ],
        },
    }


def write_json(path: Path, value: object) -> None:
    """Write JSON under a temporary name and rename it, so that a reader never sees half a file."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n")
    temporary.replace(path)
