"""The simulated Slurm: the rules of `rules.py` in real time, with hooks and jobs as real processes.

One thread is slurmctld: it owns the rules, takes inputs from a queue and carries out what they ask for. It sleeps until
there is an input or a timer. Hooks are watched by a second thread (`hook_processes.py`); each job on a node has a
thread of its own (`simulated_nodes.py`).
"""

from __future__ import annotations

import grp
import heapq
import os
import pwd
import queue
import random
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from fake_cluster.slurm import rules_state
from fake_cluster.slurm.batch_script import parse_licenses, read_batch_script, read_srun
from fake_cluster.slurm.hook_processes import HookProcesses
from fake_cluster.slurm.interface import CommandFailed, Finished, Job, JobState, Slurm, SlurmSettings, SubmitError
from fake_cluster.slurm.node_side import NodeSettings
from fake_cluster.slurm.rules import SlurmRules
from fake_cluster.slurm.rules_jobs import (
    Changed,
    ClusterConfig,
    Hook,
    Instruction,
    JobRecord,
    JobSpec,
    KillHook,
    KillStep,
    LaunchStep,
    LogLine,
    LoseStep,
    StartHook,
    TellUser,
)
from fake_cluster.slurm.runners import LocalRunner, Runner
from fake_cluster.slurm.simulated_nodes import SimulatedNodes, output_path

_T = TypeVar("_T")
NO_CONTACT = "Unable to contact slurm controller (connect failure)"
SAVE_MAX_WAIT_S = 5.0
_START_TIMEOUT_S = 30.0


class SimulatedSlurm(Slurm):
    """The simulated back end.

    runner: where jobs run (default: this host).
    directory: where logs, state and job scripts go and stay (default: a temporary directory that `stop` removes).
    release: the Slurm release whose hook environment is copied.
    kill_wait: seconds between SIGTERM and SIGKILL.
    stillborn_epilog: probability that scancel inside a prolog also kills the epilog before its first line.
    crash: what becomes of a running hook when slurmctld is killed with -9: `dies`, `runs_on` (beside its second run),
        or `either` (drawn each time).
    stale_state: after -9 slurmctld knows only what it had saved, the first change after a quiet time at once and later
        ones 5 s after it, as the real one: a job may run a second time with the same restart count, or be lost and its
        id given again. Without it, everything acknowledged is known.
    slurmd_timeout: seconds that slurmctld takes to notice that a node is gone.
    seed: of all that is drawn.
    as_user: run jobs with their user's rights (needs root); otherwise with those of this process.
    juice_dir: where LD_PRELOAD points to.
    """

    def __init__(
        self,
        settings: SlurmSettings | None = None,
        *,
        runner: Runner | None = None,
        directory: Path | None = None,
        release: str = "22.05",
        kill_wait: float = 30.0,
        stillborn_epilog: float = 0.0,
        crash: str = "dies",
        stale_state: bool = False,
        slurmd_timeout: float = 0.0,
        seed: int | None = None,
        as_user: bool = False,
        juice_dir: Path = Path("/opt/juice/juice"),
    ) -> None:
        if crash not in ("dies", "runs_on", "either"):
            raise ValueError(f"crash={crash!r}: accepted are dies, runs_on, either")
        self.settings = settings or SlurmSettings()
        self._runner = runner or LocalRunner()
        self._given_directory = directory
        self._crash = crash
        self._stale_state = stale_state
        self._save_every_s = SAVE_MAX_WAIT_S if stale_state else 0.5
        self._slurmd_timeout = slurmd_timeout
        self._random = random.Random(seed)
        self._as_user = as_user
        self._juice_dir = juice_dir
        self._release = release
        self._kill_wait = kill_wait
        self._stillborn_epilog = stillborn_epilog
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._started = False
        self._inbox: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._reports: list[Callable[[], None]] = []  # from the nodes, while slurmctld is down
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._told: dict[int, list[str]] = {}
        self._last_log = ""

    # ---- life

    def start(self) -> None:
        if self._started:
            raise RuntimeError("this Slurm runs already")
        for what in ("prolog", "epilog"):
            path: Path | None = getattr(self.settings, what)
            if path is not None and not (path.is_absolute() and os.access(path, os.X_OK) and path.is_file()):
                raise ValueError(f"{what}={str(path)!r}: accepted is the absolute path of an executable file")
        self.directory = self._given_directory or Path(tempfile.mkdtemp(prefix="simulated-slurm-"))
        for name in ("log", "state", "spool", "work"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        (self.directory / "work").chmod(0o1777)
        if self._as_user:
            # The users must reach their job scripts; mkdtemp keeps everybody out.
            for path in (self.directory, self.directory / "spool"):
                path.chmod(0o711)
        self._log_path = self.directory / "log" / "slurmctld.log"
        self._log_file = open(self._log_path, "a", buffering=1, encoding="utf-8")  # noqa: SIM115 closed in stop
        self._state_path = self.directory / "state" / "job_state"
        self._config = self._make_config()
        self._rules = SlurmRules(self._config, self._random.random)
        self._hooks = HookProcesses(self.directory / "log", self._hook_ended)
        self._nodes = SimulatedNodes(
            self._config,
            NodeSettings(
                cluster_name=self.settings.cluster_name,
                state_dir=self.settings.state_dir,
                key_file=self.settings.key_file,
                session_wait_s=self.settings.session_wait_s,
                owners=tuple({0, os.getuid()}),
                juice_dir=self._juice_dir,
            ),
            self._runner,
            self.directory / "spool",
            self._step_ended,
            as_user=self._as_user,
        )
        self._started = True
        self._save()
        self._saved_at = 0.0
        self._thread = threading.Thread(target=self._slurmctld, name="slurmctld", daemon=True)
        self._thread.start()

    def _make_config(self) -> ClusterConfig:
        settings = self.settings
        return ClusterConfig(
            nodes={f"node{i}": settings.cpus_per_node for i in range(1, settings.nodes + 1)},
            cluster_name=settings.cluster_name,
            prolog=settings.prolog is not None,
            epilog=settings.epilog is not None,
            cred_expire=settings.cred_expire,
            prolog_epilog_timeout=settings.prolog_epilog_timeout,
            licenses=parse_licenses(settings.licenses) if settings.licenses else {},
            kill_wait=self._kill_wait,
            stillborn_epilog=self._stillborn_epilog,
            release=self._release,
        )

    def stop(self) -> None:
        if not self._started:
            return
        self._inbox.put(None)
        self._thread.join()
        self._hooks.stop()
        self._nodes.stop()
        self._log_file.close()
        self._last_log = self._log_path.read_text(encoding="utf-8")
        self._started = False
        with self._lock:
            self._changed.notify_all()
        if self._given_directory is None:
            shutil.rmtree(self.directory)

    # ---- what users do

    def sbatch(
        self,
        script: str | Path,
        options: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        user_id: int | None = None,
        cwd: Path | None = None,
        job_control: Mapping[str, str] | None = None,
    ) -> int:
        """`job_control` is what a user with a plugstack of his own hands to the hooks past our plugin: any names (the
        prefix SPANK_ is forced) and any values."""
        specs = read_batch_script(
            script,
            options,
            environment=os.environ if env is None else env,
            user=_user(user_id),
            cwd=cwd or self.directory / "work",  # where the real back end has it, too
        )
        if job_control:
            specs = [replace(spec, spank_env={**spec.spank_env, **job_control}) for spec in specs]
        return self._submit(specs, "sbatch: error: Batch job submission failed")

    def srun(
        self,
        command: Sequence[str],
        options: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        user_id: int | None = None,
        timeout_s: float = 120.0,
        on_job_id: Callable[[int], None] | None = None,
    ) -> Finished:
        try:
            specs = read_srun(
                command,
                options,
                environment=os.environ if env is None else env,
                user=_user(user_id),
                cwd=Path.cwd(),
            )
            job_id = self._submit(specs, "srun: error: Unable to allocate resources")
        except SubmitError as error:
            return Finished(1, "", f"{error}\n")
        if on_job_id is not None:
            on_job_id(job_id)
        members = range(job_id, job_id + len(specs))
        deadline = time.monotonic() + timeout_s
        for member in members:
            self.wait(member, timeout_s=max(0.0, deadline - time.monotonic()))
        with self._lock:
            jobs = [self._rules.jobs[member] for member in members]
            told = self._told.pop(job_id, [])
        stdout = "".join(self._nodes.output(member, "stdout") for member in members)
        stderr = "".join(self._nodes.output(member, "stderr") for member in members)
        stderr += "".join(f"srun: {text}\n" for text in told)
        worst = max((128 + job.signal if job.signal else job.exit_code) for job in jobs)
        if not worst and any(job.state is not JobState.COMPLETED for job in jobs):
            worst = 1
        for job in jobs:
            if job.signal:
                name = signal.strsignal(job.signal)
                stderr += f"srun: error: {job.nodes[0] if job.nodes else ''}: task 0: {name}\n"
            elif job.exit_code:
                stderr += f"srun: error: {job.nodes[0]}: task 0: Exited with exit code {job.exit_code}\n"
        return Finished(worst, stdout, stderr)

    def scancel(self, job_id: int) -> None:
        self._ask(lambda: self._rules.cancel(time.time(), job_id), "scancel: error")

    def jobs(self) -> list[Job]:
        with self._lock:
            self._require_contact("slurm_load_jobs error")
            return [self._view(job_id) for job_id in sorted(self._rules.jobs)]

    def job(self, job_id: int) -> Job:
        with self._lock:
            self._require_contact("slurm_load_jobs error")
            return self._view(job_id)

    def wait(self, job_id: int, until: Callable[[Job], bool] | None = None, timeout_s: float = 120.0) -> Job:
        """While slurmctld is down, this waits for it too."""
        holds = until if until is not None else (lambda job: job.state.ended)
        deadline = time.monotonic() + timeout_s
        with self._changed:
            while True:
                job = self._view(job_id)
                if self._rules.up and holds(job):
                    return job
                left = deadline - time.monotonic()
                if left <= 0 or not self._started:
                    story = "\n".join(f"  {at:.3f} {text}" for at, text in self._rules.stories.get(job_id, ()))
                    raise TimeoutError(
                        f"waited {timeout_s:.0f} s in vain for job {job_id}; it is {job}; its story:\n{story}\n"
                        f"slurmctld's log ends:\n{self._log_end()}"
                    )
                self._changed.wait(left)

    def release_begin_time(self, job_id: int) -> None:
        self._ask(lambda: self._rules.set_begin_time(time.time(), job_id, time.time()), "slurm_update error")

    def requeue(self, job_id: int) -> None:
        self._ask(lambda: self._rules.requeue(time.time(), job_id), "scontrol requeue")

    # ---- breaking things

    def kill_slurmctld(self, sig: int = signal.SIGKILL) -> None:
        def gone() -> list[Instruction]:
            dies = sig == signal.SIGTERM or self._crash == "dies"
            if sig != signal.SIGTERM and self._crash == "either":
                dies = self._random.random() < 0.5
            return self._rules.slurmctld_gone(time.time(), sig, hooks_die=dies)

        # A crash that comes at a quiet moment finds everything saved.
        stale = self._stale_state and sig != signal.SIGTERM
        self._ask(gone, "kill", then=None if stale else self._save)

    def start_slurmctld(self) -> None:
        if self._rules.up:
            raise RuntimeError("slurmctld runs already; kill_slurmctld() first")
        done: Future[None] = Future()

        def start() -> None:
            try:
                with self._lock:
                    state = rules_state.read(self._state_path)
                    counters = self._rules.counters()
                    self._rules = rules_state.load(self._config, state, self._random.random)
                    # What the old slurmctld started and the saved state does not know must not be taken for new.
                    self._rules.set_counters(
                        self._rules.counters() | {name: counters[name] for name in ("run", "step")}
                    )
                    self._nodes.lose_all_but(self._rules.steps)
                    instructions = self._rules.slurmctld_started(time.time())
                self._carry_out(instructions)
                reports, self._reports = self._reports, []
                for report in reports:
                    report()
                done.set_result(None)
            except BaseException as error:
                done.set_exception(error)

        self._inbox.put(start)
        done.result(_START_TIMEOUT_S)

    def fail_node(self, name: str) -> None:
        """The processes on it die at once; slurmctld notices after `slurmd_timeout`, nothing is reported before."""
        self._require_node(name)
        self._nodes.fail(name)
        self._inbox.put(
            lambda: self._at(
                time.time() + self._slurmd_timeout,
                lambda: self._input(lambda: self._rules.node_failed(time.time(), name)),
            )
        )
        if not self._slurmd_timeout:
            self._until(lambda: self.node_states()[name] == "down")

    def resume_node(self, name: str) -> None:
        self._require_node(name)
        self._ask(lambda: self._rules.node_resumed(time.time(), name), "scontrol update")

    def node_states(self) -> dict[str, str]:
        with self._lock:
            self._require_contact("slurm_load_partitions error")
            return self._rules.node_states()

    def log(self) -> str:
        if not self._started:
            return self._last_log
        self._log_file.flush()
        return self._log_path.read_text(encoding="utf-8")

    def story(self, job_id: int) -> list[tuple[float, str]]:
        """The history of one job in order: (Unix time, what happened). KeyError when it is not known."""
        with self._lock:
            self._view(job_id)
            return list(self._rules.stories.get(job_id, ()))

    # ---- slurmctld's thread

    def _slurmctld(self) -> None:
        while True:
            with self._lock:
                timer = self._rules.next_timer() if self._rules.up else None
            due = [at for at in (timer, self._later[0][0] if self._later else None) if at is not None]
            if self._dirty:
                due.append(self._saved_at + self._save_every_s)
            try:
                item = self._inbox.get(timeout=max(0.0, min(due) - time.time())) if due else self._inbox.get()
                if item is None:
                    self._save()
                    return
                item()
            except queue.Empty:
                now = time.time()
                while self._later and self._later[0][0] <= now:
                    heapq.heappop(self._later)[2]()
                if self._rules.up and timer is not None and timer <= now:
                    self._input(lambda: self._rules.time_passed(time.time()))
            if self._dirty and self._rules.up and time.time() >= self._saved_at + self._save_every_s:
                self._save()

    def _at(self, at: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._later, (at, id(action), action))

    def _input(self, change: Callable[[], list[Instruction]]) -> None:
        with self._lock:
            instructions = change()
            self._dirty = True
        self._carry_out(instructions)

    def _save(self) -> None:
        with self._lock:
            state = rules_state.dump(self._rules)
            self._dirty = False
        rules_state.save(self._state_path, state)
        self._saved_at = time.time()

    def _ask(
        self, change: Callable[[], list[Instruction]], command: str, then: Callable[[], None] | None = None
    ) -> None:
        """Carry out a command in slurmctld's thread and wait for it. CommandFailed; KeyError for an unknown job."""
        if not self._started:
            raise RuntimeError("this Slurm does not run; call start()")
        done: Future[None] = Future()

        def run() -> None:
            try:
                self._require_contact(command)
                self._input(change)
                if then is not None:
                    then()
                done.set_result(None)
            except ValueError as error:
                done.set_exception(CommandFailed(f"{command}: {error}"))
            except BaseException as error:
                done.set_exception(error)

        self._inbox.put(run)
        done.result(_START_TIMEOUT_S)

    def _submit(self, specs: Sequence[JobSpec], refused: str) -> int:
        found: list[int] = []

        def submit() -> list[Instruction]:
            job_id, instructions = self._rules.submit(time.time(), specs)
            found.append(job_id)
            return instructions

        try:
            self._ask(submit, "submit")
        except CommandFailed:
            raise SubmitError(f"{refused}: {NO_CONTACT}") from None
        return found[0]

    def _require_contact(self, command: str) -> None:
        if not self._rules.up:
            raise CommandFailed(f"{command}: {NO_CONTACT}")

    def _require_node(self, name: str) -> None:
        if name not in self._config.nodes:
            raise KeyError(f"no node {name!r}; there are {', '.join(self._config.nodes)}")

    def _until(self, holds: Callable[[], bool]) -> None:
        with self._changed:
            if not self._changed.wait_for(holds, _START_TIMEOUT_S):
                raise TimeoutError(f"waited in vain; slurmctld's log ends:\n{self._log_end()}")

    def _carry_out(self, instructions: Sequence[Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case StartHook():
                    self._start_hook(instruction)
                case KillHook(run_id=run_id):
                    self._hooks.kill(run_id)
                case LaunchStep(step=step, job_id=job_id):
                    self._nodes.launch(step, self._record(job_id))
                case KillStep(step=step, job_id=job_id, signal=sig):
                    self._nodes.kill(step, self._record(job_id), sig)
                case LoseStep(step=step):
                    self._nodes.lose(step)
                case TellUser(job_id=job_id, text=text):
                    self._told.setdefault(job_id, []).append(text)
                case LogLine(text=text):
                    stamp = datetime.now().strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]
                    self._log_file.write(f"[{stamp}] {text}\n")
                case Changed():
                    pass
        with self._changed:
            self._changed.notify_all()

    # ---- hooks

    def _start_hook(self, start: StartHook) -> None:
        executable = self.settings.prolog if start.hook is Hook.PROLOG else self.settings.epilog
        assert executable is not None
        if start.stillborn:
            self._hook_ended(start.run_id, 0, signal.SIGKILL, "")
            return
        try:
            self._hooks.start(start.run_id, executable, start.environment)
        except OSError as error:
            self._hook_ended(start.run_id, 127, 0, f"{executable}: {error.strerror}")

    def _hook_ended(self, run_id: int, code: int, sig: int, output: str) -> None:
        def ended() -> None:
            if output and (code or sig):
                for line in output.splitlines()[-20:]:
                    self._carry_out([LogLine(f"slurmscriptd: error: {line}")])
            if self._rules.up:
                self._input(lambda: self._rules.hook_ended(time.time(), run_id, code, sig))

        self._inbox.put(ended)

    # ---- nodes

    def _step_ended(self, step: int, code: int, sig: int) -> None:
        def ended() -> None:
            if not self._rules.up:
                self._reports.append(ended)  # slurmd tries again until slurmctld answers
            else:
                self._input(lambda: self._rules.step_ended(time.time(), step, code, sig))

        self._inbox.put(ended)

    def _record(self, job_id: int) -> JobRecord:
        """The job as it is now; the rules go on changing theirs."""
        with self._lock:
            return replace(self._rules.jobs[job_id])

    # ---- views

    def _view(self, job_id: int) -> Job:
        if job_id not in self._rules.jobs:
            raise KeyError(job_id)
        record = self._rules.jobs[job_id]
        job = self._rules.view(job_id)
        if not record.spec.batch:
            return job
        return replace(
            job, stdout=output_path(record, record.spec.stdout), stderr=output_path(record, record.spec.stderr)
        )

    def _log_end(self, lines: int = 30) -> str:
        return "\n".join(self.log().splitlines()[-lines:])


def _user(user_id: int | None) -> dict[str, Any]:
    """The submitting user as slurmctld sees him; users without an entry have their numbers as names."""
    uid = os.getuid() if user_id is None else user_id
    try:
        entry = pwd.getpwuid(uid)
        name, gid = entry.pw_name, entry.pw_gid
    except KeyError:
        name, gid = str(uid), uid
    try:
        group = grp.getgrgid(gid).gr_name
    except KeyError:
        group = str(gid)
    return {"user_id": uid, "user_name": name, "group_id": gid, "group_name": group}
