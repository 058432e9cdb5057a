"""What a simulation writes down beside the entries of `fake_cluster/history.py`: what only a simulation can see.

All times are true times, in seconds since the run began. The checkers read nothing else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from juice_sim.core.events import Event

from ..slurm.interface import JobState


@dataclass
class ProgramRun:
    """One run of a job's program on its node. `session_id` "" for a job without Juice; `ended` None while it runs.
    `agent_died`: when the process that held the GPU for it died, which may be before the program itself notices."""

    job_id: int
    restarts: int
    incarnation: int
    user: int
    session_id: str
    address: str
    started: float
    ended: float | None = None
    agent_died: float | None = None


@dataclass
class HookEnd:
    """One run of a hook. `killed`: by a signal, or with its host. `session_id`: what a granting prolog was given."""

    hook: str
    job_id: int
    restarts: int
    incarnation: int
    started: float
    ended: float
    code: int
    killed: bool
    verdict: str = ""
    session_id: str = ""
    fault: str = ""


@dataclass(frozen=True)
class JobChange:
    """slurmctld's view of a job. `incarnation` tells jobs apart that have had the same id."""

    at: float
    job_id: int
    incarnation: int
    restarts: int
    state: JobState
    reason: str = ""
    exit_code: int = 0
    signal: int = 0
    final: JobState | None = None


@dataclass(frozen=True)
class JobAsked:
    """What one job, array task or component asked for, by incarnation."""

    incarnation: int
    job_id: int
    user: int
    number: int  # of the plan
    pool: str
    gpus: int
    vram: int | None
    strict: bool


@dataclass
class Record:
    """The record of one run. `events` are the controller's durable events with their true times."""

    events: list[tuple[float, Event]] = field(default_factory=list)
    jobs: list[JobChange] = field(default_factory=list)
    asked: dict[int, JobAsked] = field(default_factory=dict)
    lost: dict[int, float] = field(default_factory=dict)  # incarnation -> when slurmctld forgot it
    programs: list[ProgramRun] = field(default_factory=list)
    hooks: list[HookEnd] = field(default_factory=list)
    faults: list[tuple[float, str]] = field(default_factory=list)
    log: list[tuple[float, int, str]] = field(default_factory=list)  # (time, job id, what a hook logged)
    ended: float = 0.0
    quiet: bool = False
    leftovers: list[str] = field(default_factory=list)  # files of jobs in the state directory at the end
    crash: str = ""  # a fault of the program itself: an invariant, an exception

    listeners: list[Callable[[Event, float], None]] = field(default_factory=list)
