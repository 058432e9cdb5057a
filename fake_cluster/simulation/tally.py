"""What a long simulation keeps of itself: figures, one row of CSV per job, and for short ones a whole record.

Memory grows with what runs and waits at one time, and by a few bytes per job (its waits, for exact percentiles).
"""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from juice_sim import __version__
from juice_sim.core import events as ev
from juice_sim.core.model import AgentState

from .. import history as h
from ..results import percentile
from ..slurm.interface import JobState
from .controller_host import EPOCH
from .record import HookEnd, JobAsked, JobChange, ProgramRun

if TYPE_CHECKING:
    from .kernel import Kernel
    from .slurm_host import SlurmHost

COLUMNS = (
    "job_id",
    "group",
    "pool",
    "gpus",
    "vram_bytes",
    "submit_s",
    "start_s",
    "end_s",
    "wait_s",
    "requeues",
    "state",
)
TIMELINE = 2048  # points; when it is full, every other one is dropped and the interval doubled
FAILED = (JobState.FAILED, JobState.TIMEOUT, JobState.NODE_FAIL, JobState.BOOT_FAIL)


@dataclass
class _Open:
    """A job that has not ended."""

    asked: JobAsked
    submitted: float
    group: str = ""
    started: float | None = None
    restarts: int = 0


class _To:
    """Looks like the list or dictionary of a `Record`; what is put in goes to a function."""

    __slots__ = ("_call",)

    def __init__(self, call: Any) -> None:
        self._call = call

    def append(self, entry: Any) -> None:
        self._call(entry)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._call(value)


@dataclass
class _Timeline:
    """(time, bytes granted, GPUs in use, jobs that wait, jobs that run) at equal distances, at most TIMELINE points."""

    every: float = 1.0
    due: float = 0.0
    points: list[tuple[float, int, int, int, int]] = field(default_factory=list)

    def add(self, at: float, granted: int, used: int, waiting: int, running: int) -> None:
        if at < self.due:
            return
        self.points.append((round(at, 3), granted, used, waiting, running))
        if len(self.points) >= TIMELINE:
            self.points = self.points[::2]
            self.every *= 2
        self.due = at + self.every


class Tally:
    """Takes the place of a `Record` in a long run. `full`: keep a whole `History` too (for reports of short runs)."""

    def __init__(self, scenario: str, seed: int, full: bool = False) -> None:
        self.scenario, self.seed = scenario, seed
        self.jobs = _To(self._job_changed)
        self.hooks = _To(self._hook_ended)
        self.log = _To(lambda _: None)
        self.programs = _To(lambda _: None)
        self.asked = _To(self._job_asked)
        self.lost: dict[int, float] = {}
        self.history = h.History() if full else None
        self.jobs_open = 0
        self.sessions_open = 0
        self.began = 0.0
        self._open: dict[int, _Open] = {}
        self._rows: Any = None
        self._kernel: Kernel
        self._slurm: SlurmHost
        self.states: Counter[str] = Counter()
        self.hook_counts: Counter[str] = Counter()
        self.refused = 0
        self.requeues = 0
        self.waits = array("f")
        self.prologs = array("f")
        self.counts: Counter[str] = Counter()
        self.running = 0
        self._gpus: dict[tuple[str, int], list[int]] = {}  # (agent, index) -> [capacity, granted, holders, whole]
        self._held: dict[str, tuple[str, tuple[Any, ...]]] = {}
        self._present: dict[str, tuple[int, int]] = {}
        self.gpu_count = self.vram_bytes = self.granted = self.in_use = 0
        self.peak_granted = self.peak_in_use = self.overcommitted = 0
        self.gpu_seconds = 0.0
        self.granted_seconds = 0.0
        self._last_use = 0.0
        self.timeline = _Timeline()
        self._seq = 0
        self.violations: list[dict[str, Any]] = []

    def bind(self, kernel: Kernel, slurm: SlurmHost, rows: Any) -> None:
        """Where the time, the jobs and the rows come from."""
        self._kernel, self._slurm, self._rows = kernel, slurm, rows
        if rows is not None:
            rows.writerow(COLUMNS)

    def begin(self, now: float) -> None:
        """The world is up; time 0 of what is reported."""
        self.began = now
        if self.history is not None:
            started = h.RunStarted(EPOCH + now, self.scenario, self.seed, "none", "virtual time", __version__)
            self.history.entries.insert(0, started)

    def _add(self, entry: Any) -> None:
        if self.history is not None:
            self.history.entries.append(entry)

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _job_asked(self, asked: JobAsked) -> None:
        self.jobs_open += 1
        self._open[asked.incarnation] = _Open(asked, self._kernel.now)

    def submitted_job(self, arrival: Any, job_id: int) -> None:
        """A submission was accepted. By now its jobs may have changed already."""
        members = self._slurm.rules.members(job_id) if job_id in self._slurm.rules.jobs else [job_id]
        for member in members:
            job = self._open.get(self._slurm._incarnation(member)) if member in self._slurm.rules.jobs else None
            if job is not None:
                job.group = arrival.group
        self._add(
            h.JobSubmitted(
                EPOCH + self._kernel.now, arrival.group, arrival.index, job_id, arrival.run_time, "", len(members),
                not arrival.specs[0].batch,
            )
        )  # fmt: skip

    def refused_submission(self, arrival: Any, error: str) -> None:
        """A submission was refused by sbatch or srun."""
        self.refused += 1
        text = " ".join(error.split())
        self._add(h.JobSubmitted(EPOCH + self._kernel.now, arrival.group, arrival.index, 0, arrival.run_time, text))

    def refused_step(self, job_id: int, reason: str) -> None:
        """The plugin failed a job on its node."""
        self.counts["refused steps"] += 1
        self._add(
            h.JobOutput(EPOCH + self._kernel.now, job_id, "", f"juice: job {job_id} gets no GPU session: {reason}")
        )

    def _job_changed(self, change: JobChange) -> None:
        if self.history is not None:
            self._observe(change)
        job = self._open.get(change.incarnation)
        if job is None:
            return
        state = change.state
        if state is JobState.RUNNING:
            job.started = change.at
            self.running += 1
        elif state is JobState.COMPLETING and job.started is not None:
            self.running -= 1
            if change.final is JobState.PENDING:
                job.started = None
        if change.restarts > job.restarts:
            self.requeues += change.restarts - job.restarts
            job.restarts = change.restarts
        if state.ended:
            self._job_ended(change, job)

    def _job_ended(self, change: JobChange, job: _Open) -> None:
        del self._open[change.incarnation]
        self.jobs_open -= 1
        self.states[change.state.value] += 1
        wait = job.started - job.submitted if job.started is not None else None
        if wait is not None:
            self.waits.append(wait)
        if self._rows is not None:
            asked = job.asked
            self._rows.writerow(
                (
                    change.job_id, job.group, asked.pool, asked.gpus if asked.pool else 0, asked.vram or "",
                    f"{job.submitted - self.began:.3f}",
                    f"{job.started - self.began:.3f}" if job.started is not None else "",
                    f"{change.at - self.began:.3f}", f"{wait:.3f}" if wait is not None else "", job.restarts,
                    change.state.value,
                )
            )  # fmt: skip

    def _observe(self, change: JobChange) -> None:
        view = self._slurm.rules.view(change.job_id)
        at = EPOCH + change.at

        def unix(seconds: float | None) -> float | None:
            return None if seconds is None else EPOCH + seconds

        job = self._open.get(change.incarnation)
        group = (job.group if job else "") or view.name
        self._add(
            h.JobObserved(
                at, at, at, change.job_id, view.name, change.state, group, view.user_id,
                change.reason, change.restarts, change.exit_code, change.signal, view.nodes, unix(view.submit_time),
                unix(view.eligible_time), unix(view.start_time), unix(view.end_time), view.array_job_id,
                view.array_task_id, view.het_job_id, view.het_offset, dict(view.juice),
            )
        )  # fmt: skip

    # -- hooks --------------------------------------------------------------------------------------------------------

    def _hook_ended(self, end: HookEnd) -> None:
        self.hook_counts[f"{end.hook}s"] += 1
        if end.verdict == "denied":
            self.counts["denied"] += 1
        if end.hook == "prolog" and end.verdict == "granted":
            self.prologs.append(end.ended - end.started)
        if end.fault:
            self.violations.append(_violation("sound", f"job {end.job_id}", f"{end.hook}: {end.fault}", end.ended))
        verdict = {"ok": "released" if end.hook == "epilog" else "nothing", "failed": "retry"}.get(
            end.verdict, end.verdict
        )
        self._add(
            h.HookRun(
                EPOCH + end.ended, end.hook, end.job_id, verdict, end.ended - end.started, end.restarts, end.session_id
            )
        )

    # -- the controller -----------------------------------------------------------------------------------------------

    def controller_event(self, event: ev.Event, at: float) -> None:
        """One durable event of the controller."""
        self._seq += 1
        if self.history is not None:
            self.history.entries.append(h.ControllerEvent(self._seq, event))
        kind = type(event)
        if kind is ev.SessionQueued:
            self.sessions_open += 1
            self.counts["requested"] += 1
        elif kind is ev.SessionAssigned:
            self._assigned(event, at)  # type: ignore[arg-type]
        elif kind is ev.SessionActivated:
            self.counts["granted"] += 1
        elif kind is ev.SessionClosed:
            self.sessions_open -= 1
            self.counts["closed"] += 1
            self._closed(event, at)  # type: ignore[arg-type]
        elif isinstance(event, ev.AgentRegistered):
            for gpu in event.gpus:
                self._gpus[event.agent_id, gpu.index] = [gpu.vram, 0, 0, 0]
            self._present[event.agent_id] = (len(event.gpus), sum(gpu.vram for gpu in event.gpus))
            self.gpu_count += len(event.gpus)
            self.vram_bytes += sum(gpu.vram for gpu in event.gpus)
        elif isinstance(event, ev.AgentStateChanged) and event.state is AgentState.CLOSED:
            count, size = self._present.pop(event.agent_id, (0, 0))
            self.gpu_count -= count
            self.vram_bytes -= size

    def _use(self, at: float) -> None:
        passed = at - self._last_use
        if passed > 0:
            self.gpu_seconds += self.in_use * passed
            self.granted_seconds += self.granted * passed
            self._last_use = at

    def _assigned(self, event: ev.SessionAssigned, at: float) -> None:
        self._use(at)
        self._held[event.session_id] = (event.agent_id, event.grants)
        for grant in event.grants:
            gpu = self._gpus[event.agent_id, grant.index]
            gpu[1] += grant.vram
            gpu[2] += 1
            if gpu[1] > gpu[0] or ((gpu[3] or grant.whole) and gpu[2] > 1):
                excess = max(gpu[1] - gpu[0], 0)
                self.overcommitted = max(self.overcommitted, excess)
                where = f"agent {event.agent_id} GPU {grant.index}"
                self.violations.append(
                    _violation("no_overcommit", where, f"session {event.session_id}: {excess} bytes too many", at)
                )
            gpu[3] += grant.whole
            self.granted += grant.vram
            self.in_use += gpu[2] == 1
        self.peak_granted = max(self.peak_granted, self.granted)
        self.peak_in_use = max(self.peak_in_use, self.in_use)
        self._point(at)

    def _closed(self, event: ev.SessionClosed, at: float) -> None:
        agent_id, grants = self._held.pop(event.session_id, ("", ()))
        self._use(at)
        for grant in grants:
            gpu = self._gpus[agent_id, grant.index]
            gpu[1] -= grant.vram
            gpu[2] -= 1
            gpu[3] -= grant.whole
            self.granted -= grant.vram
            self.in_use -= gpu[2] == 0
        self._point(at)

    def _point(self, at: float) -> None:
        if at >= self.timeline.due:
            self.timeline.add(at, self.granted, self.in_use, self.jobs_open - self.running, self.running)

    # -- the end ------------------------------------------------------------------------------------------------------

    def finish(self, reason: str) -> None:
        """The run is over."""
        self._add(h.RunEnded(EPOCH + self._kernel.now, reason))

    def results(self, cpu_s: float, wall_s: float) -> dict[str, Any]:
        """results.json (docs/contracts.md, section 7), with `virtual_s` and `speed` added."""
        virtual = self._kernel.now - self.began
        ended = sum(self.states.values())

        def of(values: Any, percent: float) -> float | None:
            value = percentile(values, percent)
            return None if value is None else round(value, 4)

        if self.sessions_open:
            self.violations.append(
                _violation("no_session_left", "run", f"{self.sessions_open} sessions are open", None)
            )
        if self.jobs_open:
            self.violations.append(_violation("every_job_ends", "run", f"{self.jobs_open} jobs have not ended", None))
        return {
            "scenario": self.scenario,
            "seed": self.seed,
            "wall_s": round(wall_s, 3),
            "virtual_s": round(virtual, 3),
            "cluster": "none",
            "slurm": "virtual time",
            "version": __version__,
            "jobs": {
                "submitted": ended + self.jobs_open + self.refused,
                "completed": self.states["COMPLETED"],
                "failed": sum(self.states[state.value] for state in FAILED),
                "cancelled": self.states["CANCELLED"],
                "requeues": self.requeues,
                "refused": self.refused,
                "unfinished": self.jobs_open,
                "by_state": dict(sorted(self.states.items())),
            },
            "sessions": {
                "requested": self.counts["requested"],
                "granted": self.counts["granted"],
                "denied": self.counts["denied"],
                "closed": self.counts["closed"],
                "leaked": self.sessions_open,
            },
            "gpus": {
                "count": self.gpu_count,
                "vram_bytes": self.vram_bytes,
                "peak_vram_bytes": self.peak_granted,
                "overcommitted_bytes": self.overcommitted,
                "peak_in_use": self.peak_in_use,
                "mean_in_use": round(self.gpu_seconds / virtual, 3) if virtual > 0 else 0.0,
                "mean_vram_bytes": int(self.granted_seconds / virtual) if virtual > 0 else 0,
            },
            "waits": {
                "queue_p50_s": of(self.waits, 50),
                "queue_p99_s": of(self.waits, 99),
                "queue_max_s": round(max(self.waits), 4) if self.waits else None,
                "prolog_p50_s": of(self.prologs, 50),
                "prolog_p99_s": of(self.prologs, 99),
                "prolog_max_s": round(max(self.prologs), 4) if self.prologs else None,
            },
            "hooks": {"prologs": self.hook_counts["prologs"], "epilogs": self.hook_counts["epilogs"]},
            "faults": 0,
            "invariants": {
                "checked": 4,
                "names": ["no_overcommit", "no_session_left", "every_job_ends", "sound"],
                "violations": self.violations[:50],
            },
            "speed": {
                "cpu_s": round(cpu_s, 3),
                "jobs_per_cpu_s": round(ended / cpu_s, 1) if cpu_s > 0 else None,
                "events": self._kernel.events,
            },
            "timeline": {
                "columns": ["at_s", "granted_bytes", "gpus_in_use", "jobs_waiting", "jobs_running"],
                "rows": [[round(at - self.began, 3), *rest] for at, *rest in self.timeline.points],
            },
        }


def _violation(check: str, subject: str, message: str, at: float | None) -> dict[str, Any]:
    return {"check": check, "subject": subject, "message": message, "at_s": at, "story": []}


__all__ = ["COLUMNS", "ProgramRun", "Tally"]
