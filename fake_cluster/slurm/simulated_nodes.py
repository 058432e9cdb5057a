"""The compute nodes of the simulated Slurm: launches jobs, each in a thread of its own, and tells how they ended."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Container, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from fake_cluster.slurm.batch_script import expand
from fake_cluster.slurm.interface import JobState
from fake_cluster.slurm.job_environment import job_environment
from fake_cluster.slurm.node_side import Launch, NodeSettings, NodeStep
from fake_cluster.slurm.rules_jobs import ClusterConfig, JobRecord
from fake_cluster.slurm.runners import Runner, Task


def output_path(job: JobRecord, pattern: str) -> Path:
    """Where a batch job's output goes: the pattern of --output or --error filled in."""
    return Path(
        expand(
            pattern,
            job_id=job.job_id,
            array_job_id=job.array_job_id,
            task=job.array_task_id,
            name=job.spec.name,
            node=job.nodes[0] if job.nodes else "",
            user=job.spec.user_name,
        )
    )


class SimulatedNodes:
    """All nodes. `ended(step, exit code, signal)` is called from the job's thread, but not for steps that were lost.

    `spool` is where job scripts, and the output of interactive jobs, go. `as_user`: run jobs with their user's rights.
    """

    def __init__(
        self,
        config: ClusterConfig,
        settings: NodeSettings,
        runner: Runner,
        spool: Path,
        ended: Callable[[int, int, int], None],
        *,
        as_user: bool,
    ) -> None:
        self._config = config
        self._settings = settings
        self._runner = runner
        self._spool = spool
        self._ended = ended
        self._as_user = as_user and os.getuid() == 0
        self._lock = threading.Lock()
        self._steps: dict[int, tuple[str, NodeStep, threading.Thread]] = {}
        self._lost: set[int] = set()

    def launch(self, step: int, job: JobRecord) -> None:
        """Start the job on its first node."""
        spool = self._spool / f"job{job.job_id:05d}"
        spool.mkdir(exist_ok=True)
        payload: Mapping[str, Any] = job.spec.payload
        if job.spec.batch:
            script = spool / "slurm_script"
            # A new file each time: a process of an earlier attempt that is still being killed may execute the old one.
            script.unlink(missing_ok=True)
            script.write_text(payload["script"], encoding="utf-8")
            script.chmod(0o755)
            argv: tuple[str, ...] = (str(script),)
            stdout, stderr = output_path(job, job.spec.stdout), output_path(job, job.spec.stderr)
        else:
            argv = tuple(payload["argv"])
            stdout, stderr = spool / "stdout", spool / "stderr"
        node = job.nodes[0]
        if self._as_user:
            os.chown(spool, job.spec.user_id, -1)
        task = Task(
            argv=argv,
            environment=job_environment(job, self._config),
            directory=job.spec.work_dir,
            stdin=job.spec.stdin,
            stdout=str(stdout),
            stderr=str(stderr),
            node=node,
            cpus=job.cpus[node],
            marker=spool / f"pid.{step}",
            user_id=job.spec.user_id if self._as_user else None,
        )
        asked = bool(job.spec.spank_env.get("JUICE_POOL"))
        restarts = job.restarts if job.spec.batch else None
        launched = NodeStep(Launch(job.job_id, job.spec.user_id, asked, restarts, task), self._settings, self._runner)
        thread = threading.Thread(target=self._run, args=(step, launched), name=f"job {job.job_id}", daemon=True)
        with self._lock:
            self._steps[step] = (node, launched, thread)
        thread.start()

    def kill(self, step: int, job: JobRecord, sig: int) -> None:
        """A signal to all processes of the launch; SIGTERM comes with slurmstepd's line in the job's stderr."""
        with self._lock:
            found = self._steps.get(step)
        if found is None:
            return
        node, launched, _ = found
        if sig == signal.SIGTERM:
            what = f"JOB {job.job_id}" if job.spec.batch else f"STEP {job.job_id}.0"
            due = " DUE TO TIME LIMIT" if job.final is JobState.TIMEOUT else ""
            stamp = datetime.now().strftime("%Y-%m-%dT%H:%M:%S")
            launched.tell(f"slurmstepd-{node}: error: *** {what} ON {node} CANCELLED AT {stamp}{due} ***")
        launched.kill(sig)

    def lose(self, step: int) -> None:
        """The node of that launch is gone: SIGKILL, and its end is not told."""
        with self._lock:
            found = self._steps.get(step)
            if found is not None:
                self._lost.add(step)
        if found is not None:
            found[1].kill(signal.SIGKILL)

    def fail(self, node: str) -> None:
        """A node dies with all that runs on it."""
        with self._lock:
            steps = [step for step, (where, _, _) in self._steps.items() if where == node]
        for step in steps:
            self.lose(step)

    def lose_all_but(self, known: Container[int]) -> None:
        """slurmctld does not know these launches (its saved state was older): slurmd kills them when it registers."""
        with self._lock:
            steps = [step for step in self._steps if step not in known]
        for step in steps:
            self.lose(step)

    def output(self, job_id: int, name: str) -> str:
        """`stdout` or `stderr` of an interactive job; empty when it never ran."""
        path = self._spool / f"job{job_id:05d}" / name
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def stop(self) -> None:
        """Kill everything and wait until it is gone."""
        with self._lock:
            steps = list(self._steps.values())
        for _, launched, _ in steps:
            launched.kill(signal.SIGKILL)
        for _, _, thread in steps:
            thread.join()
        self._runner.close()

    def _run(self, step: int, launched: NodeStep) -> None:
        code, sig = 1, 0
        try:
            code, sig = launched.run()
        finally:
            with self._lock:
                del self._steps[step]
                lost = step in self._lost
                self._lost.discard(step)
            if not lost:
                self._ended(step, code, sig)
