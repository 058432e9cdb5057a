"""Brings up all that a scenario runs in: Juice service, hooks, Slurm; and takes it down again, by process id.

Everything lies in one temporary directory. `World` knows no jobs, faults or checks; it is also what a sandbox needs.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from juice_sim import resources
from juice_sim.hooks_install import install_hooks
from juice_sim.machine import hook_python

from . import client_library
from .history import HookRun
from .hook_timing import boot_time, hook_runs, read_hook_log, wrap_hook
from .scenario import Scenario
from .slurm.interface import JobState, Slurm, SlurmSettings
from .world_service import LocalService, Service, WorldError, child_environment

if TYPE_CHECKING:
    from .slurm.real import RealSlurm

CLUSTER_NAME = "juicesim"
SLURM_KINDS = ("simulated", "real")
CLUSTER_KINDS = ("autoscaling", "none")
BUILD_TIMEOUT_S = 300.0
RECONCILE_TIMEOUT_S = 120.0

# The hooks' own reconcile, with the age at which it may judge by the queue shortened to the scenario's scale.
_RECONCILE = """import sys
sys.path.insert(0, sys.argv.pop(1))
import juice_hook
juice_hook.GRACE = float(sys.argv.pop(1))
sys.exit(juice_hook.main(sys.argv[1:]))"""


@dataclass(frozen=True)
class Reconciled:
    """One run of `reconcile`: its exit code and what it printed."""

    returncode: int
    text: str


class World:
    """A running Juice service with hooks and Slurm. Use as a context manager.

    `slurm_kind` is `simulated` or `real`, `cluster_kind` `none` or `autoscaling`. `seed` is for what the simulated
    Slurm draws. `juice_dir` is where jobs find Juice's client library, `extra_conf` are further lines of a real Slurm's
    slurm.conf. After `stop` the directory is still there; `remove` takes it away.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        slurm_kind: str = "simulated",
        cluster_kind: str = "none",
        seed: int = 0,
        directory: Path | None = None,
        juice_dir: Path | None = None,
        extra_conf: Sequence[str] = (),
    ) -> None:
        self.scenario = scenario
        self._given_juice_dir = juice_dir
        self._extra_conf = tuple(extra_conf)
        self.slurm_kind = slurm_kind
        self.cluster_kind = cluster_kind
        self.seed = seed
        self.directory = directory or Path(tempfile.mkdtemp(prefix="juice-run-"))
        self.hooks_dir = self.directory / "hooks"
        self.state_dir = self.directory / "state"
        self.work_dir = self.directory / "work"
        self.service: Service
        self.slurm: Slurm
        self.slurmctld_up = threading.Event()
        self._token_user = ""
        self._service: Service | None = None
        self._slurm: Slurm | None = None
        self._offset = boot_time()
        self._reconciling = threading.Lock()

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Bring everything up. Raises WorldError; what was started is stopped again then."""
        try:
            self.directory.chmod(0o755)  # jobs of other users must get through to the session files
            self.work_dir.mkdir(exist_ok=True)
            self.work_dir.chmod(0o1777)
            self._service = self.service = self._make_service()
            self.service.start()
            self._install_hooks()
            self.juice_dir = self._given_juice_dir or client_library.install(self.directory)
            self._slurm = self.slurm = self._make_slurm()
            self.slurm.start()
            self.slurmctld_up.set()
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """Stop what was started, in reverse order. May be called twice."""
        slurm, self._slurm = self._slurm, None
        service, self._service = self._service, None
        try:
            if slurm is not None:
                slurm.stop()
        finally:
            if service is not None:
                service.stop()

    def remove(self) -> None:
        """Remove the directory."""
        shutil.rmtree(self.directory, ignore_errors=True)

    def __enter__(self) -> World:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def _make_service(self) -> Service:
        if self.cluster_kind == "none":
            return LocalService(self.scenario, self.directory / "juice")
        if self.cluster_kind == "autoscaling":
            from .world_ray import RayService

            return RayService(self.scenario, self.directory / "juice")
        raise WorldError(f"cluster {self.cluster_kind!r} is unknown; accepted: {', '.join(CLUSTER_KINDS)}")

    # -- hooks --------------------------------------------------------------------------------------------------------

    def _install_hooks(self) -> None:
        self.key_file = self.directory / "session.key"
        settings = {name.removeprefix("JUICE_").lower(): value for name, value in self.scenario.hooks.settings.items()}
        token = None
        if self.scenario.controller.auth:
            token = self._new_token(lifetime_s=86400.0)
        install_hooks(
            self.hooks_dir,
            controller_url=self.service.url,
            token=token,
            state_dir=self.state_dir,
            key_file=self.key_file,
            **{"wait": f"{self.scenario.hooks.wait:g}", "python": hook_python(), "cluster": CLUSTER_NAME, **settings},
        )
        timing = self.directory / "hook-timing.log"
        self._timing = timing
        try:
            self.prolog = wrap_hook(self.hooks_dir, "prolog", self.hooks_dir / "juice-prolog.sh", timing)
            self.epilog = wrap_hook(self.hooks_dir, "epilog", self.hooks_dir / "juice-epilog.sh", timing)
        except ValueError as error:
            raise WorldError(f"{error}: set TMPDIR") from None

    def _new_token(self, lifetime_s: float) -> str:
        permissions = [
            {"permission": "create_session", "poolId": pool_id} for pool_id in self.service.pool_ids.values()
        ]
        # The same user each time, so that a new token can release what an old one has asked for.
        _, secret, self._token_user = self.service.calls.create_token(
            "slurm hooks", permissions, lifetime_s=lifetime_s, user_id=self._token_user
        )
        return secret

    def replace_token(self, lifetime_s: float = 86400.0) -> None:
        """Give the hooks a new token, as an admin who renews it would."""
        from juice_sim.hooks_install import write_private

        write_private(self.hooks_dir / "token", self._new_token(lifetime_s).encode() + b"\n", 0o400)

    def hook_log(self) -> str:
        """What the hooks have logged."""
        path = self.state_dir / "hooks.log"
        return path.read_text(encoding="utf-8", errors="replace") if path.exists() else ""

    def hook_runs(self) -> list[HookRun]:
        """The hook runs so far."""
        return hook_runs(self._timing.read_text(errors="replace"), read_hook_log(self.hook_log()), self._offset)

    def reconcile(self) -> Reconciled | None:
        """Run the hooks' `reconcile` once, as the timer would; None while slurmctld is down and there is no queue."""
        with self._reconciling:
            if not self.slurmctld_up.is_set():
                return None
            queue = self.directory / "queue.txt"
            lines = ["JOBID RESTARTS STATE"]
            for job in self.slurm.jobs():
                # squeue -a shows what has not ended.
                if not job.state.ended:
                    lines.append(f"{job.job_id} {job.restarts} {job.state.value}")
            queue.write_text("\n".join(lines) + "\n")
            config = self.scenario.hooks
            environment = {
                "JUICE_CONTROLLER": self.service.url,
                "JUICE_STATE_DIR": str(self.state_dir),
                "JUICE_KEY_FILE": str(self.key_file),
                "JUICE_WAIT": f"{config.wait:g}",
                "JUICE_CLUSTER": CLUSTER_NAME,
                "JUICE_TOKEN_FD": "0",
                **{name: value for name, value in config.settings.items()},
            }
            if self.scenario.controller.auth:
                environment["JUICE_TOKEN_FILE"] = str(self.hooks_dir / "token")
            done = subprocess.run(
                [
                    *(hook_python(), "-I", "-S", "-c", _RECONCILE, self.hooks_dir, f"{config.reconcile_grace:g}"),
                    *("reconcile", "--queue", str(queue)),
                ],
                env=environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=RECONCILE_TIMEOUT_S,
                start_new_session=True,
            )
            return Reconciled(done.returncode, (done.stdout + done.stderr).strip())

    # -- Slurm --------------------------------------------------------------------------------------------------------

    def _make_slurm(self) -> Slurm:
        spec = self.scenario.slurm
        settings = SlurmSettings(
            cluster_name=CLUSTER_NAME,
            nodes=spec.nodes,
            cpus_per_node=spec.cpus_per_node,
            cred_expire=spec.cred_expire,
            prolog=self.prolog,
            epilog=self.epilog,
            prolog_epilog_timeout=spec.prolog_epilog_timeout,
            licenses=spec.licenses,
            key_file=self.key_file,
            state_dir=self.state_dir,
            session_wait_s=self.scenario.hooks.session_file_wait,
            plugstack=self._plugstack() if self.slurm_kind == "real" else (),
            extra_conf=(*_FAST_SCHEDULING, *self._extra_conf) if self.slurm_kind == "real" else (),
        )
        if self.slurm_kind == "real":
            from .slurm.real import RealSlurm, available

            problem = available()
            if problem is not None:
                raise WorldError(f"no real Slurm can run here: {problem}")
            return RealSlurm(settings, directory=self.directory / "slurm")
        if self.slurm_kind != "simulated":
            raise WorldError(f"Slurm {self.slurm_kind!r} is unknown; accepted: {', '.join(SLURM_KINDS)}")
        from .slurm.simulated import SimulatedSlurm

        return SimulatedSlurm(
            settings,
            runner=self.service.runner(),
            directory=self.directory / "slurm",
            release=spec.version,
            kill_wait=5.0,
            stillborn_epilog=spec.epilog_kill_probability,
            crash="either",
            seed=self.seed,
            juice_dir=self.juice_dir,
        )

    @property
    def real_slurm(self) -> RealSlurm:
        """The Slurm of a world of kind `real`."""
        from .slurm.real import RealSlurm

        assert isinstance(self.slurm, RealSlurm), f"this world's Slurm is {self.slurm_kind}"
        return self.slurm

    def _plugstack(self) -> list[str]:
        """Build the SPANK plugin for this Slurm; the line of plugstack.conf."""
        source, build = resources.spank_plugin_dir(), self.directory / "spank-plugin"
        shutil.copytree(source, build, ignore=shutil.ignore_patterns("build", "*.o", "*.so"))
        try:
            done = subprocess.run(
                ["make", "-C", str(build), "juice.so"],
                env=child_environment(),
                capture_output=True,
                text=True,
                timeout=BUILD_TIMEOUT_S,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise WorldError(f"the SPANK plugin cannot be built: {error}") from None
        found = sorted(build.rglob("juice.so"))
        if done.returncode != 0 or not found:
            raise WorldError(
                f"the SPANK plugin cannot be built: {' | '.join(done.stderr.strip().splitlines()[-3:])}; "
                "`juice-sim doctor` says what is missing"
            )
        wait = max(1, round(self.scenario.hooks.session_file_wait))
        return [f"required {found[0]} {self.juice_dir}/juice {self.state_dir} key={self.key_file} wait={wait}"]


_FAST_SCHEDULING = (
    # After a crash slurmctld may bring back an allocation whose srun has ended; without a limit it would stay for ever.
    "InactiveLimit=20",
    "SchedulerParameters=batch_sched_delay=0,sched_interval=1,sched_min_interval=0,bf_interval=1,default_queue_depth=10000",
)


def open_jobs(slurm: Slurm) -> int:
    """How many jobs have not ended."""
    return sum(not job.state.ended for job in slurm.jobs())


def in_prolog(slurm: Slurm) -> list[int]:
    """Ids of the jobs whose prolog runs now."""
    return [job.job_id for job in slurm.jobs() if job.state is JobState.CONFIGURING]


def wait_until(holds: object, timeout_s: float, interval_s: float = 0.1) -> bool:
    """Wait for a condition; False when the time is over."""
    assert callable(holds)
    deadline = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_s)
    return True
