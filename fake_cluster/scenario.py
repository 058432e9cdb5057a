"""A scenario: what a run consists of. Plain data; `load_scenario` reads it from YAML and checks it.

All times are seconds, all sizes of VRAM bytes. What each key means stands in `scenario_schema.py` and, for users, in
docs/scenarios.md.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class PoolSpec:
    """One pool and its agents, all alike. With `max_agents` above `agents` an autoscaling cluster may start more."""

    name: str
    agents: int = 1
    gpus: int = 1
    model: str = "A10"
    vram: int | None = None  # None: what the model has
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Mapping[str, str] = field(default_factory=dict)
    min_agents: int = 0
    max_agents: int | None = None  # None: the same as `agents`
    policy: str = ""

    @property
    def may_grow_to(self) -> int:
        return self.agents if self.max_agents is None else self.max_agents


@dataclass(frozen=True)
class ControllerSpec:
    """`quirks` are names of faults of the old controller that are switched on; `auth` False takes any caller."""

    auth: bool = True
    quirks: Sequence[str] = ()
    missing_after: float | None = None
    removed_after: float | None = None


@dataclass(frozen=True)
class SlurmSpec:
    nodes: int = 4
    cpus_per_node: int = 16
    cred_expire: int = 5
    prolog_epilog_timeout: int = 0
    epilog_kill_probability: float = 0.0
    version: str = "22.05"
    licenses: str = ""


@dataclass(frozen=True)
class HooksSpec:
    """`settings` are further lines of juice-config.sh (JUICE_... names)."""

    wait: float = 20.0
    session_file_wait: float = 10.0
    reconcile_every: float = 10.0
    reconcile_grace: float = 15.0
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class RunTime:
    """Distribution of a job's run time. `draw` gives seconds."""

    distribution: str = "fixed"
    seconds: float = 1.0
    low: float = 0.0
    high: float = 0.0
    mean: float = 1.0
    median: float = 1.0
    sigma: float = 0.5
    least: float = 0.0
    most: float = 86400.0 * 30

    def draw(self, source: random.Random) -> float:
        if self.distribution == "fixed":
            value = self.seconds
        elif self.distribution == "uniform":
            value = source.uniform(self.low, self.high)
        elif self.distribution == "exponential":
            value = source.expovariate(1.0 / self.mean)
        else:
            value = self.median * 2.718281828459045 ** (self.sigma * source.gauss(0.0, 1.0))
        return min(max(value, self.least), self.most)


@dataclass(frozen=True)
class Arrival:
    """When the jobs of a group are submitted. `times` gives one time per job, in order, from the start of the run."""

    process: str = "at"
    at: float = 0.0
    start: float = 0.0
    end: float = 0.0
    rate: float = 1.0
    size: int = 1
    every: float = 1.0

    def times(self, count: int, source: random.Random) -> list[float]:
        if self.process == "at":
            return [self.at] * count
        if self.process == "uniform":
            return sorted(source.uniform(self.start, self.end) for _ in range(count))
        if self.process == "burst":
            return [self.start + (position // self.size) * self.every for position in range(count)]
        times, now = [], self.start
        for _ in range(count):
            now += source.expovariate(self.rate)
            times.append(now)
        return times


@dataclass(frozen=True)
class Component:
    """What one job, or one component of a het job, asks of Juice. No pool: a job without Juice options."""

    pool: str = ""
    gpu_count: int | None = None
    vram: str = ""  # as the user writes it: `2.5`, `4GiB`


@dataclass(frozen=True)
class JobGroup:
    """Jobs that are alike. `script` is a real batch script; without one, one is written from the other keys.

    `expect` are the end states that a job of the group may have; empty: any, as far as the checks say nothing else.
    """

    name: str
    count: int = 1
    ask: Component = field(default_factory=Component)
    script: str = ""
    script_path: Path | None = None
    arrival: Arrival = field(default_factory=Arrival)
    run_time: RunTime = field(default_factory=RunTime)
    array: str = ""
    het: Sequence[Component] = ()
    interactive: bool = False
    requeue: bool = True
    cpus: int = 1
    options: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    expect: Sequence[str] = ()


@dataclass(frozen=True)
class When:
    """At `at` seconds, or once `count` events of the kind `event` have been seen; then again `times - 1` times."""

    at: float | None = None
    event: str = ""
    count: int = 1
    every: float = 0.0
    times: int = 1


@dataclass(frozen=True)
class Fault:
    """One fault. Which fields count depends on `kind`; see the reference of the format."""

    kind: str
    when: When
    pool: str = ""
    agent: int | None = None  # position in the pool; None: one that has sessions, if there is one
    node: str = ""
    lasts: float | None = None  # None: until the end, or until another fault undoes it
    signal: int = 9
    jobs: int = 1
    delay: float = 0.0
    rule: Mapping[str, object] = field(default_factory=dict)
    position: int = 0  # in the file, from 0

    @property
    def label(self) -> str:
        words = [self.kind.replace("_", " ")]
        if self.kind == "replies":
            words = [f"replies: {self.rule.get('action')}"]
            if self.rule.get("status"):
                words.append(str(self.rule["status"]))
        return " ".join(words)


@dataclass(frozen=True)
class CheckSpec:
    """Checks beyond those that are always made. None: not checked."""

    all_completed: bool = False
    max_requeues: int | None = None
    min_requeues: int | None = None
    max_restarts_per_job: int | None = None
    max_queue_wait: float | None = None
    max_prolog: float | None = None
    max_release_delay: float | None = None
    min_completed: int | None = None
    gpus_shared: bool = False


@dataclass(frozen=True)
class Scenario:
    name: str
    pools: Sequence[PoolSpec]
    jobs: Sequence[JobGroup]
    description: str = ""
    seed: int = 0
    time_limit: float = 300.0
    controller: ControllerSpec = field(default_factory=ControllerSpec)
    slurm: SlurmSpec = field(default_factory=SlurmSpec)
    hooks: HooksSpec = field(default_factory=HooksSpec)
    faults: Sequence[Fault] = ()
    checks: CheckSpec = field(default_factory=CheckSpec)
    text: str = ""  # the file as it was read
    source: str = ""

    def pool(self, name: str) -> PoolSpec:
        return next(pool for pool in self.pools if pool.name == name)
