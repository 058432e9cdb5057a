"""What a report shows, reduced from the record of a run to bounded size: series, GPU rows, tables, stories.

Times are seconds from the start of the run. A record of millions of jobs gives no more than what the limits below
allow; what was left out is said in the report.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from juice_sim.core import events as e
from juice_sim.core.model import AgentState

from .checks_base import CheckResult
from .history import FaultEnded, FaultInjected, HookRun, Noted
from .history_views import GIB, JobLife, Views, describe_request
from .results import percentile, prolog_times, vram_timeline
from .slurm.interface import JobState

MAX_POINTS = 1500  # of one series: more than a screen has pixels for
MAX_GPU_ROWS = 400
MAX_SEGMENTS = 40_000
MAX_JOB_ROWS = 5_000
MAX_STORIES = 100
REQUEUE_BINS = 80

_WAITING, _PROLOG, _RUNNING = "waiting", "prolog", "running"
_SHOWN_AS = {
    JobState.PENDING: _WAITING,
    JobState.CONFIGURING: _PROLOG,
    JobState.RUNNING: _RUNNING,
    JobState.COMPLETING: _RUNNING,
}


def thin(points: Sequence[tuple[float, float]], limit: int = MAX_POINTS) -> list[tuple[float, float]]:
    """A step series of at most about `limit` points that keeps the extremes of what it leaves out."""
    if len(points) <= limit:
        return list(points)
    bins = max(1, limit // 4)
    size = -(-len(points) // bins)
    kept: list[tuple[float, float]] = []
    for first in range(0, len(points), size):
        chunk = points[first : first + size]
        indexes = {0, len(chunk) - 1}
        indexes.add(min(range(len(chunk)), key=lambda i: chunk[i][1]))
        indexes.add(max(range(len(chunk)), key=lambda i: chunk[i][1]))
        kept += [chunk[i] for i in sorted(indexes)]
    return kept


def _steps(changes: Iterable[tuple[float, int]]) -> list[tuple[float, float]]:
    """(time, level) after each time of change, from (time, difference)."""
    level = 0
    points: list[tuple[float, float]] = [(0.0, 0)]
    for at, difference in sorted(changes):
        level += difference
        if points[-1][0] == at:
            points[-1] = (at, level)
        else:
            points.append((at, level))
    return points


def job_levels(views: Views) -> dict[str, list[tuple[float, float]]]:
    """How many jobs wait, are in their prolog, run; and how many have ended, over time."""
    changes: dict[str, list[tuple[float, int]]] = {_WAITING: [], _PROLOG: [], _RUNNING: [], "ended": []}
    for job in views.jobs.values():
        spells = job.spells(views.end)
        for position, spell in enumerate(spells):
            at = round(spell.first - views.start, 3)
            shown = _SHOWN_AS.get(spell.state)
            if shown is None:
                changes["ended"].append((at, 1))
                continue
            changes[shown].append((at, 1))
            if position + 1 < len(spells):
                changes[shown].append((round(spells[position + 1].first - views.start, 3), -1))
    return {name: thin(_steps(pairs)) for name, pairs in changes.items()}


def _round_points(points: Iterable[tuple[float, float]]) -> list[list[float]]:
    return [[round(at, 3), round(value, 4)] for at, value in points]


def _requeue_times(views: Views) -> list[float]:
    times = []
    for job in views.jobs.values():
        before = 0
        for seen in job.observed:
            times += [seen.at - views.start] * max(0, seen.restarts - before)
            before = max(before, seen.restarts)
    return times


def _bins(times: Sequence[float], end: float, count: int = REQUEUE_BINS) -> list[list[float]]:
    """(start, number) of each bin over the run."""
    width = max(end, 1e-9) / count
    numbers = [0] * count
    for at in times:
        numbers[min(count - 1, max(0, int(at / width)))] += 1
    return [[round(position * width, 3), number] for position, number in enumerate(numbers)]


def _distribution(values: Iterable[float]) -> list[list[float]]:
    """(value, share of values up to it), at most 200 points."""
    ordered = sorted(values)
    if not ordered:
        return []
    count = len(ordered)
    ranks = range(1, count + 1) if count <= 200 else sorted({max(1, round(count * i / 200)) for i in range(1, 201)})
    return [[round(ordered[rank - 1], 4), round(rank / count, 5)] for rank in ranks]


class _Row:
    """One GPU's row. Sessions get the lowest place that is free, so that slices lie side by side."""

    def __init__(self, pool: str, host: str, index: int, name: str, vram: int) -> None:
        self.pool, self.host, self.index, self.name, self.vram = pool, host, index, name, vram
        self.taken: dict[str, tuple[int, int]] = {}
        self.segments: list[list[Any]] = []
        self.absent: list[list[float]] = []

    def place(self, session_id: str, size: int) -> int:
        offset = 0
        for low, high in sorted(self.taken.values()):
            if offset + size <= low:
                break
            offset = max(offset, high)
        self.taken[session_id] = (offset, offset + size)
        return offset


def gpu_rows(views: Views, groups: list[str]) -> dict[str, Any]:
    """Each GPU with the sessions on it: `[start, end, offset, size, whole, group, job, session, reason]`, GiB."""
    end = views.end - views.start
    rows: dict[tuple[str, str, int], _Row] = {}
    begun: dict[str, tuple[float, e.SessionAssigned]] = {}
    gone_since: dict[tuple[str, str, int], float] = {}

    def keys_of(agent_id: str) -> list[tuple[str, str, int]]:
        agent = views.agents[agent_id]
        return [(agent.pool_id, agent.hostname, gpu.index) for gpu in agent.gpus]

    def finish(session_id: str, at: float, reason: str) -> None:
        start, assigned = begun.pop(session_id)
        session = views.sessions[session_id]
        job = views.jobs.get(session.job_id) if session.job_id is not None else None
        group = groups.index(job.group) if job is not None and job.group in groups else -1
        for grant in assigned.grants:
            row = rows.get(
                (views.agents[assigned.agent_id].pool_id, views.agents[assigned.agent_id].hostname, grant.index)
            )
            if row is None:
                continue
            low, high = row.taken.pop(session_id, (0, grant.vram))
            row.segments.append(
                [
                    round(start, 3),
                    round(at, 3),
                    round(low / GIB, 4),
                    round((high - low) / GIB, 4),
                    int(grant.whole),
                    group,
                    session.job_id or 0,
                    session_id[:8],
                    reason,
                ]
            )

    for event in views.controller_events:
        at = event.at - views.start
        if isinstance(event, e.AgentRegistered):
            for gpu in event.gpus:
                key = (event.pool_id, event.hostname, gpu.index)
                if key not in rows:
                    pool = views.pools.get(event.pool_id, event.pool_id)
                    rows[key] = _Row(pool, event.hostname, gpu.index, gpu.name, gpu.vram)
                    if at > 1.0:
                        rows[key].absent.append([0.0, round(at, 3)])
                elif key in gone_since:
                    rows[key].absent.append([round(gone_since.pop(key), 3), round(at, 3)])
        elif isinstance(event, e.AgentStateChanged) and event.agent_id in views.agents:
            for key in keys_of(event.agent_id):
                if event.state in (AgentState.MISSING, AgentState.CLOSED):
                    gone_since.setdefault(key, at)
                elif key in gone_since and event.state is AgentState.ACTIVE:
                    rows[key].absent.append([round(gone_since.pop(key), 3), round(at, 3)])
        elif isinstance(event, e.SessionAssigned) and event.agent_id in views.agents:
            begun[event.session_id] = (at, event)
            for grant in event.grants:
                row = rows.get(
                    (views.agents[event.agent_id].pool_id, views.agents[event.agent_id].hostname, grant.index)
                )
                if row is not None:
                    row.place(event.session_id, grant.vram)
        elif isinstance(event, e.SessionClosed) and event.session_id in begun:
            finish(event.session_id, at, event.reason)
    for session_id in list(begun):
        finish(session_id, end, "still open")
    for key, since in gone_since.items():
        rows[key].absent.append([round(since, 3), round(end, 3)])

    ordered = sorted(rows.values(), key=lambda row: (row.pool, _natural(row.host), row.index))
    shown, segments = [], 0
    for row in ordered[:MAX_GPU_ROWS]:
        room = MAX_SEGMENTS - segments
        if room <= 0:
            break
        kept = row.segments[:room]
        segments += len(kept)
        shown.append(
            {
                "pool": row.pool,
                "host": row.host,
                "index": row.index,
                "name": row.name,
                "vram": round(row.vram / GIB, 3),
                "segments": kept,
                "absent": row.absent,
            }
        )
    total = sum(len(row.segments) for row in ordered)
    return {"rows": shown, "rows_total": len(ordered), "segments_total": total, "segments_shown": segments}


def _natural(text: str) -> list[tuple[int, str]]:
    """A sort key by which gpu2 comes before gpu10."""
    parts: list[tuple[int, str]] = []
    number = ""
    for character in text + " ":
        if character.isdigit():
            number += character
            continue
        if number:
            parts.append((int(number), ""))
            number = ""
        parts.append((-1, character))
    return parts


def _faults(views: Views) -> list[dict[str, Any]]:
    ended = views.history.of(FaultEnded)
    result = []
    for number, fault in enumerate(views.history.of(FaultInjected), 1):
        until = next(
            (
                end.at
                for end in ended
                if end.position == fault.position and end.at >= fault.at and end.target == fault.target
            ),
            None,
        )
        result.append(
            {
                "number": number,
                "at": round(fault.at - views.start, 3),
                "until": None if until is None else round(until - views.start, 3),
                "kind": fault.kind,
                "label": fault.label,
                "target": fault.target,
                "detail": fault.detail,
            }
        )
    return result


def _job_row(job: JobLife, views: Views) -> list[Any]:
    sessions = views.sessions_of_job.get(job.job_id, [])
    last = job.last
    asked = ""
    if sessions:
        pool = views.pools.get(sessions[-1].requirements.pool_id, "any pool")
        asked = f"{describe_request(sessions[-1].requirements)} in {pool}"
    elif last.juice:
        asked = " ".join(f"{name.removeprefix('JUICE_').lower()}={value}" for name, value in sorted(last.juice.items()))
    run = None
    if job.ran and last.start_time is not None and last.end_time is not None:
        run = round(last.end_time - last.start_time, 3)
    # Real Slurm's times are whole seconds: the first jobs seem to come before the start of the run.
    submitted = None if job.submitted_at is None else max(0.0, round(job.submitted_at - views.start, 3))
    name = str(job.job_id)
    if last.array_task_id is not None:
        name += f" ({last.array_job_id}_{last.array_task_id})"
    elif last.het_job_id:
        name += f" ({last.het_job_id}+{last.het_offset})"
    wait = None if job.wait is None else round(job.wait, 3)
    return [name, job.group, last.state.value, asked, submitted, wait, run, last.restarts, ",".join(last.nodes)]


def _stories(views: Views, checks: Sequence[CheckResult]) -> tuple[list[dict[str, Any]], int]:
    unfortunate = [job for job in views.jobs.values() if job.last.state is not JobState.COMPLETED]
    stories = [
        {
            "job": job.job_id,
            "group": job.group,
            "state": job.last.state.value,
            "reason": job.last.reason if job.last.reason != "None" else "",
            "lines": views.job_story(job.job_id),
        }
        for job in unfortunate[:MAX_STORIES]
    ]
    return stories, len(unfortunate)


def report_data(views: Views, checks: Sequence[CheckResult], results: dict[str, Any]) -> dict[str, Any]:
    """Everything that the report shows; `charts` and `jobs` go to the page's script, the rest into its text."""
    started = views.history.started
    end = views.end - views.start
    groups = sorted({job.group for job in views.jobs.values() if job.group})
    timeline = vram_timeline(views.controller_events)
    waits_by_group = {
        group: _distribution(job.wait for job in views.jobs.values() if job.group == group and job.wait is not None)
        for group in groups
    }
    restarts = Counter(job.last.restarts for job in views.jobs.values())
    stories, stories_total = _stories(views, checks)
    prologs = [run for run in views.history.of(HookRun) if run.hook == "prolog"]
    points = [(max(0.0, at - views.start), granted / GIB) for at, granted, _, _ in timeline]
    in_use = [(max(0.0, at - views.start), float(used)) for at, _, used, _ in timeline]
    present = [(max(0.0, at - views.start), float(count)) for at, _, _, count in timeline]
    job_rows = [_job_row(job, views) for job in list(views.jobs.values())[:MAX_JOB_ROWS]]
    return {
        "title": started.scenario,
        "description": started.description,
        "started": started.at,
        "seed": started.seed,
        "cluster": started.cluster,
        "slurm": started.slurm,
        "version": started.version,
        "scenario_text": started.scenario_text,
        "source": started.source,
        "results": results,
        "checks": [
            {
                "name": check.name,
                "title": check.title,
                "ok": check.ok,
                "found": check.found,
                "count": check.count,
                "violations": [
                    {
                        "subject": violation.subject,
                        "message": violation.message,
                        "at": None if violation.at is None else violation.at - views.start,
                        "story": violation.story,
                    }
                    for violation in check.violations
                ],
            }
            for check in checks
        ],
        "faults": _faults(views),
        "stories": stories,
        "stories_total": stories_total,
        "notes": [{"at": note.at - views.start, "text": note.text} for note in views.history.of(Noted)],
        "verdicts": dict(sorted(Counter(run.verdict for run in prologs).items())),
        "jobs_total": len(views.jobs),
        "charts": {
            "end": round(end, 3),
            "groups": groups,
            "gpus": gpu_rows(views, groups),
            "jobs": {name: _round_points(values) for name, values in job_levels(views).items()},
            "vram": _round_points(thin(points)),
            "vram_total": round(results["gpus"]["vram_bytes"] / GIB, 3),
            "in_use": _round_points(thin(in_use)),
            "present": _round_points(thin(present)),
            "waits": waits_by_group,
            "prologs": _distribution(prolog_times(views)),
            "requeues": _bins(_requeue_times(views), end),
            "restarts": sorted(restarts.items()),
            "faults": [[f["number"], f["at"], f["until"], f["label"], f["target"]] for f in _faults(views)],
        },
        "job_rows": job_rows,
    }


def wait_table(views: Views) -> list[dict[str, Any]]:
    """Per group: jobs, completed, requeues, waiting times (for the final table)."""
    table = []
    by_group: dict[str, list[JobLife]] = {}
    for job in views.jobs.values():
        by_group.setdefault(job.group or "(other)", []).append(job)
    for group, jobs in sorted(by_group.items()):
        waits = [job.wait for job in jobs if job.wait is not None]
        table.append(
            {
                "group": group,
                "jobs": len(jobs),
                "completed": sum(job.last.state is JobState.COMPLETED for job in jobs),
                "requeues": sum(job.last.restarts for job in jobs),
                "wait_p50": percentile(waits, 50),
                "wait_max": max(waits, default=None),
            }
        )
    return table
