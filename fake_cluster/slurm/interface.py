"""What a Slurm back end can do. `simulated.py` and `real.py` implement it; one test suite runs on both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path


class JobState(str, Enum):
    """Slurm's own names, as `squeue` and `scontrol show job` print them."""

    PENDING = "PENDING"
    CONFIGURING = "CONFIGURING"  # the PrologSlurmctld runs
    RUNNING = "RUNNING"
    COMPLETING = "COMPLETING"  # the EpilogSlurmctld runs
    COMPLETED = "COMPLETED"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"
    TIMEOUT = "TIMEOUT"
    NODE_FAIL = "NODE_FAIL"
    BOOT_FAIL = "BOOT_FAIL"

    @property
    def ended(self) -> bool:
        """True when the job will not run (again) by itself."""
        return self not in (JobState.PENDING, JobState.CONFIGURING, JobState.RUNNING, JobState.COMPLETING)


@dataclass(frozen=True)
class SlurmSettings:
    """What a test or a scenario may set. Times in seconds.

    `prolog` and `epilog` are PrologSlurmctld and EpilogSlurmctld (absolute paths, executable). `licenses` is
    slurm.conf's `Licenses=`. `extra_conf` are further slurm.conf lines (real back end only). `plugstack` are the
    lines of plugstack.conf (real back end only: the simulated one applies the plugin's documented rules itself).
    """

    cluster_name: str = "juicesim"
    nodes: int = 2
    cpus_per_node: int = 4
    cred_expire: int = 5
    prolog: Path | None = None
    epilog: Path | None = None
    prolog_epilog_timeout: int = 0  # 0: no limit
    licenses: str = ""
    extra_conf: Sequence[str] = ()
    plugstack: Sequence[str] = ()
    key_file: Path | None = None  # the session key, for the node side
    state_dir: Path | None = None  # juice's shared state directory, for the node side
    session_wait_s: float = 10.0  # how long the node side waits for the session file to appear


@dataclass(frozen=True)
class Job:
    """One job (array task, het component) as `scontrol show job` tells it. Times are Unix times, None when not yet."""

    job_id: int
    name: str
    user_id: int
    state: JobState
    reason: str = ""
    restarts: int = 0
    exit_code: int = 0  # the script's own code
    signal: int = 0
    nodes: tuple[str, ...] = ()
    submit_time: float | None = None
    eligible_time: float | None = None  # BeginTime of a requeued job
    start_time: float | None = None
    end_time: float | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    juice: Mapping[str, str] = field(
        default_factory=dict
    )  # JUICE_POOL, JUICE_GPU_COUNT, JUICE_VRAM as the hooks get them
    stdout: Path | None = None
    stderr: Path | None = None


@dataclass(frozen=True)
class Finished:
    """What an interactive command (srun, salloc, sbatch itself) returned."""

    returncode: int
    stdout: str
    stderr: str


class SubmitError(Exception):
    """The job was refused at submit, as sbatch or srun would: `str(error)` is the text a user reads on stderr."""


class CommandFailed(Exception):
    """A command other than a submission failed, as scontrol, squeue or scancel would: slurmctld does not answer, ..."""


class Slurm(ABC):
    """A running Slurm. Use as a context manager; leaving it stops what it started, by process id, and nothing else."""

    settings: SlurmSettings

    @abstractmethod
    def start(self) -> None:
        """Start slurmctld and the nodes; return when they take jobs. TimeoutError tells the daemons' own errors."""

    @abstractmethod
    def stop(self) -> None:
        """Stop everything this object started. May be called twice."""

    @abstractmethod
    def sbatch(
        self,
        script: str | Path,
        options: Sequence[str] = (),
        *,
        env: Mapping[str, str] | None = None,
        user_id: int | None = None,
        cwd: Path | None = None,
    ) -> int:
        """Submit a batch script (its text, or its path) and return the job id. `options` as on sbatch's command line;
        `#SBATCH` lines in the script count too. Arrays: `--array=0-9%3`; het jobs: `#SBATCH hetjob` in the script (the
        id of component 0 is returned). Raises SubmitError."""

    @abstractmethod
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
        """Run a command as an interactive job and wait for it. ` : ` in `options` separates het components."""

    @abstractmethod
    def scancel(self, job_id: int) -> None:
        """Cancel a job, a whole array or a whole het job."""

    @abstractmethod
    def jobs(self) -> list[Job]:
        """All jobs that slurmctld still knows, ended ones included (MinJobAge is long), one entry per array task."""

    @abstractmethod
    def job(self, job_id: int) -> Job:
        """One job; KeyError when slurmctld does not know it."""

    @abstractmethod
    def wait(self, job_id: int, until: Callable[[Job], bool] | None = None, timeout_s: float = 120.0) -> Job:
        """Wait until the job has ended (or `until` holds) and return it. TimeoutError tells job and slurmctld's log."""

    @abstractmethod
    def release_begin_time(self, job_id: int) -> None:
        """`scontrol update JobId=N StartTime=now`: end the delay of a requeued job."""

    @abstractmethod
    def requeue(self, job_id: int) -> None:
        """`scontrol requeue N` of a running batch job."""

    @abstractmethod
    def kill_slurmctld(self, sig: int = 9) -> None:
        """Send a signal to slurmctld (9: crash, 15: orderly) and wait until it is gone."""

    @abstractmethod
    def start_slurmctld(self) -> None:
        """Start slurmctld again from its saved state and wait until it answers."""

    @abstractmethod
    def fail_node(self, name: str) -> None:
        """The node dies (slurmd and its jobs' processes); slurmctld notices as it would."""

    @abstractmethod
    def resume_node(self, name: str) -> None:
        """The node comes back."""

    @abstractmethod
    def node_states(self) -> dict[str, str]:
        """Node name -> state in lower case (`idle`, `mixed`, `allocated`, `drained`, `down`, ...)."""

    @abstractmethod
    def log(self) -> str:
        """slurmctld's log so far."""

    def __enter__(self) -> Slurm:
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()
