"""The nouns of the Slurm rules: what was submitted, what slurmctld remembers of it, and what it wants done.

Pure data. Times are seconds on the clock of whoever drives the rules; CPUs are whole numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from fake_cluster.slurm.interface import JobState


@dataclass(frozen=True)
class ClusterConfig:
    """The part of slurm.conf that changes what the rules do.

    `nodes` maps a node's name to its CPUs, in slurm.conf's order. `licenses` maps a name to its count.
    `cred_expire` (s) is AuthInfo's option: a requeued job waits `cred_expire + 1`. `prolog_epilog_timeout` 0 means no
    limit. `kill_wait` (s) passes between SIGTERM and SIGKILL. `stillborn_epilog` is the probability that scancel inside
    a prolog also kills the epilog before its first line (3 of 23 trials on 22.05, 0 of 15 on 24.11).
    `release` is the Slurm release whose behaviour is copied.
    """

    nodes: Mapping[str, int]
    cluster_name: str = "juicesim"
    partition: str = "debug"
    prolog: bool = True
    epilog: bool = True
    cred_expire: int = 120
    prolog_epilog_timeout: float = 0.0
    licenses: Mapping[str, int] = field(default_factory=dict)
    kill_wait: float = 30.0
    stillborn_epilog: float = 0.0
    release: str = "22.05"
    max_array_size: int = 1001


@dataclass(frozen=True)
class JobSpec:
    """One component of a submission, as slurmctld gets it.

    `time_limit` in seconds, None: none. `array_tasks` are the task ids of an array, `array_limit` its `%N` (0: none).
    `dependencies` are (kind, job id) with kind `after`, `afterany`, `afterok`, `afternotok`. `spank_env` is what the
    plugin passed by `spank_job_control_setenv`, `spank_options` are the raw options `{"juice_juice_pool": value}`.
    `payload` is the driver's own (script, environment, ...): the rules never look at it, but it must be JSON.
    """

    name: str
    user_id: int
    batch: bool = True
    user_name: str = ""
    group_id: int = 0
    group_name: str = ""
    account: str = ""
    work_dir: str = "/"
    stdin: str = "/dev/null"
    stdout: str = ""
    stderr: str = ""
    comment: str = ""
    requeue: bool = True
    ntasks: int = 1
    cpus_per_task: int = 1
    nodes: int = 0
    time_limit: float | None = None
    licenses: Mapping[str, int] = field(default_factory=dict)
    begin: float | None = None
    dependencies: tuple[tuple[str, int], ...] = ()
    array_tasks: tuple[int, ...] | None = None
    array_limit: int = 0
    spank_env: Mapping[str, str] = field(default_factory=dict)
    spank_options: Mapping[str, str] = field(default_factory=dict)
    payload: Mapping[str, Any] = field(default_factory=dict)


class Hook(str, Enum):
    """The two hooks on slurmctld's host. The values are those of SLURM_SCRIPT_CONTEXT."""

    PROLOG = "prolog_slurmctld"
    EPILOG = "epilog_slurmctld"


@dataclass
class JobRecord:
    """What slurmctld remembers of one job, array task or het component.

    `state` is what `squeue` shows. While it is COMPLETING, `final` is the state that follows (PENDING: requeued).
    `prolog_run` and `epilog_run` are the runs of hooks that are under way, `step` the launch that is on the nodes.
    `cpus` maps a node to the job's CPUs there; they are held while `holding`, and readable after the end.
    `licensed`: licenses are held. `lingering_prologs`: prologs of earlier attempts that still run, killed by nobody.
    """

    job_id: int
    spec: JobSpec
    sequence: int
    submit_time: float
    state: JobState = JobState.PENDING
    final: JobState | None = None
    reason: str = "None"
    restarts: int = 0
    exit_code: int = 0
    signal: int = 0
    derived_code: int = 0
    cpus: dict[str, int] = field(default_factory=dict)
    holding: bool = False
    licensed: bool = False
    eligible_time: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    prolog_run: int | None = None
    prolog_done: bool = False
    lingering_prologs: int = 0
    epilog_run: int | None = None
    step: int | None = None
    unmet: tuple[tuple[str, int], ...] = ()

    @property
    def nodes(self) -> tuple[str, ...]:
        """Names of the nodes of the job's present or last run."""
        return tuple(self.cpus)


@dataclass
class HookRun:
    """One process of a hook. `abandoned`: its end changes nothing any more (killed, or of a crashed slurmctld)."""

    run_id: int
    job_id: int
    hook: Hook
    deadline: float | None = None
    timed_out: bool = False
    abandoned: bool = False
    killed: bool = False


# What the rules want done, in this order. The driver carries it out and reports back.


@dataclass(frozen=True)
class StartHook:
    """Start the hook's executable with exactly this environment; report with `hook_ended(run_id, ...)`.

    `stillborn`: it is killed before its first line, i.e. report it as ended by SIGKILL without running anything.
    """

    run_id: int
    job_id: int
    hook: Hook
    environment: Mapping[str, str]
    stillborn: bool = False


@dataclass(frozen=True)
class KillHook:
    """SIGKILL to the process group of that run."""

    run_id: int
    job_id: int


@dataclass(frozen=True)
class LaunchStep:
    """Launch the job on its first node; report with `step_ended(step, ...)`."""

    step: int
    job_id: int


@dataclass(frozen=True)
class KillStep:
    """Send a signal to all processes of that launch. Its end is still to be reported."""

    step: int
    job_id: int
    signal: int


@dataclass(frozen=True)
class LoseStep:
    """The node of that launch is gone, its processes with it: SIGKILL and forget; its end is not to be reported."""

    step: int
    job_id: int


@dataclass(frozen=True)
class TellUser:
    """A message to the srun or salloc that waits for the job."""

    job_id: int
    text: str


@dataclass(frozen=True)
class LogLine:
    """A line of slurmctld's log, without its time stamp."""

    text: str


@dataclass(frozen=True)
class Changed:
    """The job's state has changed (for those who wait, and for the story)."""

    job_id: int
    state: JobState


Instruction = StartHook | KillHook | LaunchStep | KillStep | LoseStep | TellUser | LogLine | Changed
