"""Runs a scenario: world up, jobs by their arrival, faults, record; world down; checks, results, report."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import juice_sim

from .checks import run_checks
from .checks_base import CheckResult
from .checks_crash import crashes
from .history import History, JobOutput, JobSubmitted, Noted, RunEnded, RunStarted
from .history_views import Views
from .progress import GpusInUse, RunProgress
from .report import write_report
from .results import compute_results, write_json
from .scenario import Scenario
from .scenario_faults import ERRORS, Injector
from .scenario_recorder import EventStream, JobWatch, Trigger, job_counts
from .scenario_workload import Submission, submissions
from .slurm.interface import CommandFailed, Job, JobState, SubmitError
from .world import World, wait_until
from .world_service import WorldError, child_environment

POLL_S = {"simulated": 0.1, "real": 0.4}
REAL_EXTRA_S = 60.0  # a real slurmctld takes two minutes after a crash to find out that a job is not running
FORGOTTEN_S = 10.0
DRAIN_S = 30.0  # beyond what the scenario's own settings need
MAX_OUTPUT = 4000
SUBMIT_RETRY_S = 30.0
INTERACTIVE_THREADS = 64


@dataclass(frozen=True)
class Outcome:
    """What came of a run. `directory` is that of the world: still there when a check failed, removed otherwise."""

    views: Views
    checks: list[CheckResult]
    results: dict[str, Any]
    report_dir: Path
    directory: Path | None

    @property
    def ok(self) -> bool:
        return all(check.ok for check in self.checks)


class Submitter:
    """Submits jobs at their times, from one thread; each srun waits in a thread of its own."""

    def __init__(self, world: World, history: History, todo: list[Submission]) -> None:
        self._world = world
        self._history = history
        self._todo = todo
        self._stop = threading.Event()
        self._pool = ThreadPoolExecutor(INTERACTIVE_THREADS, thread_name_prefix="srun")
        self._thread = threading.Thread(target=self._run, name="submitter", daemon=True)
        self._pending = threading.Semaphore(0)
        self.submitted = 0  # jobs that Slurm should know
        self.interactive_running = 0
        self._lock = threading.Lock()

    def start(self) -> None:
        self._began = time.monotonic()
        self._thread.start()

    @property
    def done(self) -> bool:
        """Whether all has been submitted and no srun waits any more."""
        with self._lock:
            return not self._thread.is_alive() and self.interactive_running == 0

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(120.0)
        self._pool.shutdown(wait=False, cancel_futures=True)

    def _run(self) -> None:
        for submission in self._todo:
            if self._stop.wait(max(0.0, self._began + submission.at - time.monotonic())):
                return
            if submission.interactive:
                with self._lock:
                    self.interactive_running += 1
                self._pool.submit(self._srun, submission)
            else:
                self._sbatch(submission)

    def _environment(self, submission: Submission) -> dict[str, str]:
        base = child_environment()
        return {"PATH": base["PATH"], "HOME": str(self._world.work_dir), "LANG": "C.UTF-8", **submission.env}

    def _add(self, submission: Submission, job_id: int, error: str = "") -> None:
        if not error:
            with self._lock:
                self.submitted += submission.tasks
        self._history.add(
            JobSubmitted(
                time.time(),
                submission.group,
                submission.index,
                job_id,
                submission.run_time,
                error,
                submission.tasks,
                submission.interactive,
            )
        )

    def _sbatch(self, submission: Submission) -> None:
        deadline = time.monotonic() + SUBMIT_RETRY_S
        while True:
            try:
                job_id = self._world.slurm.sbatch(
                    submission.script,
                    submission.options,
                    env=self._environment(submission),
                    cwd=self._world.work_dir,
                )
                self._add(submission, job_id)
                return
            except SubmitError as error:
                # As a user would: again, while slurmctld is away.
                if "ontact slurm controller" not in str(error) or time.monotonic() > deadline:
                    self._add(submission, 0, " ".join(str(error).split()))
                    return
            if self._stop.wait(0.2):
                return

    def _srun(self, submission: Submission) -> None:
        told: list[int] = []

        def job_id_known(job_id: int) -> None:
            told.append(job_id)
            self._add(submission, job_id)

        try:
            deadline = time.monotonic() + SUBMIT_RETRY_S
            while True:
                try:
                    # Asking the real Slurm for the id costs a scontrol every 20 ms; the job's name tells its group.
                    on_job_id = job_id_known if self._world.slurm_kind == "simulated" else None
                    finished = self._world.slurm.srun(
                        submission.command,
                        submission.options,
                        env=self._environment(submission),
                        timeout_s=self._world.scenario.time_limit,
                        on_job_id=on_job_id,
                    )
                    if not told:
                        refused = finished.returncode != 0 and "submit" in finished.stderr
                        self._add(submission, 0, " ".join(finished.stderr.split()) if refused else "")
                    return
                except SubmitError as error:
                    if "ontact slurm controller" not in str(error) or time.monotonic() > deadline:
                        self._add(submission, 0, " ".join(str(error).split()))
                        return
                if self._stop.wait(0.2):
                    return
        except ERRORS as error:
            self._history.add(Noted(time.time(), f"srun of {submission.group} #{submission.index}: {error}"))
        finally:
            with self._lock:
                self.interactive_running -= 1


class ReconcileTimer:
    """Runs the hooks' reconcile at intervals, as cron or a systemd timer would."""

    def __init__(self, world: World, history: History) -> None:
        self._world = world
        self._history = history
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="reconcile", daemon=True)
        self.runs = 0

    def start(self) -> None:
        if self._world.scenario.hooks.reconcile_every > 0:
            self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(180.0)

    def once(self) -> None:
        try:
            done = self._world.reconcile()
        except (*ERRORS, ValueError) as error:
            self._history.add(Noted(time.time(), f"reconcile could not run: {error}"))
            return
        self.runs += 1
        if done is None:
            return
        last = done.text.splitlines()[-1] if done.text else ""
        if done.returncode != 0 or "reconcile: 0 session(s) released, 0 left" not in last:
            self._history.add(Noted(time.time(), f"reconcile (exit {done.returncode}): {last}"))

    def _run(self) -> None:
        while not self._stop.wait(self._world.scenario.hooks.reconcile_every):
            self.once()


def run_scenario(
    scenario: Scenario,
    *,
    slurm: str = "simulated",
    cluster: str = "autoscaling",
    seed: int | None = None,
    report_dir: Path,
    progress: RunProgress | None = None,
    keep: bool = False,
) -> Outcome:
    """Run it and write `results.json`, `report.html` and `history.jsonl` into `report_dir`.

    Raises WorldError when the world cannot be brought up, KeyboardInterrupt on Ctrl-C; everything is stopped then. The
    temporary directory stays when a check fails, the world does not come up, or `keep` asks for it.
    """
    seed = scenario.seed if seed is None else seed
    progress = progress or RunProgress(quiet=True)
    report_dir.mkdir(parents=True, exist_ok=True)
    world = World(scenario, slurm_kind=slurm, cluster_kind=cluster, seed=seed)
    finished = False
    try:
        with progress:
            progress.phase(f"starting: Juice ({cluster}), Slurm ({slurm})")
            history_path = report_dir / "history.jsonl"
            history_path.touch(mode=0o600)
            history_path.chmod(0o600)  # ids of sessions are in it
            history = History(history_path)
            try:
                _run(world, history, scenario, seed, progress)
            finally:
                progress.phase("stopping")
                world.stop()
                history.close()
            progress.phase("checking")
            views = Views(history)
            checks = run_checks(views, scenario)
            results = compute_results(views, checks)
            write_json(report_dir / "results.json", results)
            write_report(report_dir / "report.html", views, checks, results)
        finished = all(check.ok for check in checks)
    except KeyboardInterrupt:
        finished = True  # nobody will look into it
        raise
    except WorldError as error:
        raise WorldError(f"{error}; its logs are in {world.directory}") from None
    finally:
        if finished and not keep:
            world.remove()
    return Outcome(views, checks, results, report_dir, None if finished and not keep else world.directory)


def _run(world: World, history: History, scenario: Scenario, seed: int, progress: RunProgress) -> None:
    world.start()
    history.add(
        RunStarted(
            time.time(),
            scenario.name,
            seed,
            world.cluster_kind,
            world.slurm_kind + (f" {scenario.slurm.version}" if world.slurm_kind == "simulated" else ""),
            juice_sim.__version__,
            scenario.text,
            os.path.basename(scenario.source),
            scenario.description,
        )
    )
    gpus, trigger = GpusInUse(), Trigger()
    for listener in (gpus.entry, trigger.entry, progress.entry):
        history.listen(listener)
    stream = EventStream(world.service.url, lambda: world.service.calls.token, history)
    watch = JobWatch(world.slurm, history, {group.name for group in scenario.jobs}, POLL_S[world.slurm_kind])
    injector = Injector(world, history, watch, trigger, seed)
    todo = submissions(scenario, seed)
    total = sum(submission.tasks for submission in todo)
    submitter = Submitter(world, history, todo)
    timer = ReconcileTimer(world, history)
    try:
        stream.start()
        watch.start()
        progress.phase("running")
        submitter.start()
        injector.start()
        timer.start()
        reason = _wait_for_jobs(world, history, submitter, watch, progress, total, gpus)
        injector.finish()
        submitter.stop()
        if reason == "time limit":
            watch.poll()
        progress.phase("draining")
        _drain(world, history, timer, progress)
        watch.poll()
        timer.stop()
        watch.stop()
        stream.stop()
        history.add(stream.compare(time.time()))
        _record_hooks(world, history)
        _record_outputs(world, history, watch)
        history.add(RunEnded(time.time(), reason))
    finally:
        # Also after Ctrl-C: the threads must not ask a world that is being taken down.
        injector.finish()
        submitter.stop()
        timer.stop()
        watch.stop()
        stream.stop()


def _wait_for_jobs(
    world: World,
    history: History,
    submitter: Submitter,
    watch: JobWatch,
    progress: RunProgress,
    total: int,
    gpus: GpusInUse,
) -> str:
    """Wait until every submission was made and every job has ended; `all jobs ended` or `time limit`.

    A real slurmctld that was killed forgets jobs: then the run has ended when for some time no job that it knows runs.
    """
    deadline = time.monotonic() + world.scenario.time_limit + (REAL_EXTRA_S if world.slurm_kind == "real" else 0.0)
    quiet_since: float | None = None
    while True:
        counts = job_counts(watch.jobs)
        progress.update(counts["ended"], total, counts["running"], counts["requeues"], gpus.counts)
        if submitter.done and counts["ended"] >= submitter.submitted and watch.poll():
            again = job_counts(watch.jobs)
            if again["ended"] >= submitter.submitted and again["ended"] == len(watch.jobs):
                return "all jobs ended"
        _lift_holds(world, watch, history)
        quiet = submitter.done and counts["ended"] == len(watch.jobs) and bool(crashes(history))
        quiet_since = (quiet_since or time.monotonic()) if quiet else None
        if quiet_since is not None and time.monotonic() - quiet_since > FORGOTTEN_S and watch.poll():
            return "all jobs ended"
        if time.monotonic() > deadline:
            return "time limit"
        time.sleep(0.2)


def _lift_holds(world: World, watch: JobWatch, history: History) -> None:
    """Release, as an operator would, jobs that Slurm holds itself. A real slurmctld does so after a crash, when it
    starts a job again that it has forgotten to run already: the node refuses the second one."""
    if world.slurm_kind != "real":
        return
    for job in watch.jobs.values():
        if job.state is JobState.PENDING and "requeued_held" in job.reason and world.slurmctld_up.is_set():
            with contextlib.suppress(CommandFailed):  # it is killed at this moment, or the job is no longer held
                world.real_slurm.release(job.job_id)
                history.add(Noted(time.time(), f"released job {job.job_id}, which Slurm held: {job.reason}"))
                watch.poll()


def _drain(world: World, history: History, timer: ReconcileTimer, progress: RunProgress) -> None:
    """Wait until no session is open: epilogs end, agents report, reconcile releases, lost agents are removed."""
    spec = world.scenario.controller
    lost = (spec.missing_after or 30.0) + (spec.removed_after or 300.0)
    patience = DRAIN_S + max(lost, world.scenario.hooks.reconcile_grace)

    def open_sessions() -> int:
        sessions = Views(History(entries=history.entries)).sessions.values()
        return sum(session.closed_at is None for session in sessions)

    def closed() -> bool:
        return open_sessions() == 0

    deadline = time.monotonic() + patience
    if wait_until(closed, 3.0):
        timer.once()
        return
    progress.phase(f"draining: {open_sessions()} sessions open; those of a lost agent end after {lost:g} s")
    while time.monotonic() < deadline:
        timer.once()
        if wait_until(closed, 2.0):
            return


def _record_hooks(world: World, history: History) -> None:
    for run in world.hook_runs():
        if run.verdict != "nothing":
            history.add(run)


def _record_outputs(world: World, history: History, watch: JobWatch) -> None:
    for job in watch.jobs.values():
        if job.state is not JobState.COMPLETED:
            history.add(JobOutput(time.time(), job.job_id, _tail(job, "stdout"), _tail(job, "stderr")))


def _tail(job: Job, which: str) -> str:
    path: Path | None = getattr(job, which)
    if path is None or (which == "stderr" and path == job.stdout):
        # sbatch writes both into one file by default.
        path = job.stdout
        if path is None or which == "stdout":
            return ""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - MAX_OUTPUT))
            return file.read().decode("utf-8", "replace")
    except OSError:
        return ""
