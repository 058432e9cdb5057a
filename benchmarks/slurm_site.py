"""A site with everything real but the GPUs: slurmctld, slurmd, the plugin, the hooks, and a durable controller process.

What the trials, the throughput benchmark and the tests of all parts together run in.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

from fake_cluster.scenario import HooksSpec, PoolSpec, Scenario, SlurmSpec
from fake_cluster.slurm.real import RealSlurm
from fake_cluster.world import World
from juice_sim.client import Client

POOL = "test"
TIMER = "squeue -a -o '%A %T' | {hooks}/juice_hook.py reconcile --queue -"
"""What the timer of docs/deploy.md runs."""


class Site(World):
    """A real Slurm with one pool, `test`, of `agents` times `gpus` A10. Use as a context manager.

    `grace` (seconds; None: as shipped) replaces the age from which the installed hooks' `reconcile` judges by Slurm's
    list of jobs, so that a trial need not wait for five minutes. `timed` puts the wrapper of scenario runs around the
    hooks, which notes when each ran; without it slurm.conf names the hooks themselves.
    """

    def __init__(
        self,
        *,
        agents: int = 1,
        gpus: int = 4,
        nodes: int = 2,
        cpus_per_node: int = 16,
        wait: float = 10.0,
        grace: float | None = None,
        timed: bool = False,
        extra_conf: Sequence[str] = (),
        directory: Path | None = None,
    ) -> None:
        scenario = Scenario(
            name="site",
            pools=[PoolSpec(POOL, agents=agents, gpus=gpus, model="A10")],
            jobs=[],
            slurm=SlurmSpec(nodes=nodes, cpus_per_node=cpus_per_node),
            hooks=HooksSpec(wait=wait, session_file_wait=5.0),
        )
        super().__init__(scenario, slurm_kind="real", cluster_kind="none", directory=directory, extra_conf=extra_conf)
        self._grace = grace
        self._timed = timed

    def _install_hooks(self) -> None:
        super()._install_hooks()
        if not self._timed:
            self.prolog, self.epilog = self.hooks_dir / "juice-prolog.sh", self.hooks_dir / "juice-epilog.sh"
        if self._grace is not None:
            hook = self.hooks_dir / "juice_hook.py"
            text, found = re.subn(r"(?m)^GRACE = 300\.0", f"GRACE = {self._grace:g}", hook.read_text("utf-8"))
            if found != 1:
                raise RuntimeError(f"{hook} does not set GRACE = 300.0 once")
            hook.write_text(text, "utf-8")

    @property
    def real(self) -> RealSlurm:
        """The Slurm, as what it is."""
        assert isinstance(self.slurm, RealSlurm)
        return self.slurm

    def client(self) -> Client:
        """An admin's client of the controller; the caller closes it."""
        return Client(self.service.url, self.service.calls.token)

    def shell(self, script: str, *, timeout_s: float = 120.0) -> subprocess.CompletedProcess[str]:
        """Run a shell script as the admin, with this Slurm's commands on its PATH. Output and errors come together."""
        return subprocess.run(
            ["/bin/sh", "-c", script],
            env=self.real.user_environment(),
            cwd=self.work_dir,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            timeout=timeout_s,
        )

    def timer(self) -> subprocess.CompletedProcess[str]:
        """Run what the timer runs, once."""
        return self.shell(TIMER.format(hooks=self.hooks_dir))

    def submit(self, script: str = "true", *options: str, name: str = "job", user_id: int | None = None) -> int:
        """Submit a batch job with a slice of 1 GiB, output to nowhere unless `options` say more; its id."""
        given = (f"--job-name={name}", f"--juice-pool={POOL}", "--juice-vram=1", "--output=/dev/null", *options)
        return self.slurm.sbatch(script, given, user_id=user_id)

    def open_sessions(self) -> dict[str, tuple[int, int]]:
        """Id -> (job id, restart count) of the hooks' sessions that the controller holds open."""
        with self.client() as client:
            sessions = client.sessions()
        found = {}
        for session in sessions:
            parts = session.name.rsplit("/", 2)
            if len(parts) == 3:
                found[session.id] = int(parts[1]), int(parts[2])
        return found

    def leftovers(self) -> list[str]:
        """Open sessions, journals and session files whose job has ended or is unknown to Slurm."""
        alive = {job.job_id for job in self.slurm.jobs() if not job.state.ended}
        left = [f"session {name} of job {job}" for name, (job, _) in self.open_sessions().items() if job not in alive]
        for path in sorted((*self.state_dir.glob("journal/*"), *self.state_dir.glob("sessions/*"))):
            number = path.name.partition(".")[0]
            if not number.isdigit() or int(number) not in alive:
                left.append(f"{path.parent.name}/{path.name}")
        return left
