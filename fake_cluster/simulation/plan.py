"""What a run consists of, drawn from its seed before it begins: pools, jobs, faults, and how bad each thing gets.

A plan is plain data, so that a failing one can be cut down (`without`): fewer jobs, fewer faults, and it stays
replayable, for jobs and faults are known by their number and what a run draws comes from a source of its own.
"""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass, field, fields, replace

GIB = 1 << 30
MIB = 1 << 20


@dataclass(frozen=True)
class PoolPlan:
    """One pool: `agents` agents with `gpus` GPUs of `vram` bytes each. `waits`: they use the long poll."""

    name: str
    agents: int
    gpus: int
    vram: int
    waits: bool = True


@dataclass(frozen=True)
class ComponentPlan:
    """What one job (het component) asks for. `vram` bytes, None: whole GPUs. No pool: a job without Juice."""

    pool: str = ""
    gpus: int | None = None
    vram: int | None = None
    strict: bool = False

    @property
    def spank_env(self) -> dict[str, str]:
        """What the plugin passes to the hooks."""
        if not self.pool:
            return {}
        env = {"JUICE_POOL": self.pool, "JUICE_GPU_COUNT": str(self.gpus or 1)}
        if self.vram is not None:
            env["JUICE_VRAM"] = str(self.vram)
        if self.strict:
            env["JUICE_VRAM_STRICT"] = "1"
        return env


@dataclass(frozen=True)
class JobPlan:
    """One submission. Times in seconds; `components` are more than one for a het job; `array` tasks or None."""

    number: int
    at: float
    run_time: float
    user: int
    components: tuple[ComponentPlan, ...]
    array: int | None = None
    array_limit: int = 0
    batch: bool = True
    requeue: bool = True
    time_limit: float | None = None
    ignores_term: bool = False
    cpus: int = 1


@dataclass(frozen=True)
class FaultPlan:
    """One fault at one time; `target` is the number of an agent, node or job, `lasts` seconds."""

    number: int
    kind: str
    at: float
    lasts: float = 0.0
    target: int = 0
    value: float = 0.0

    def __str__(self) -> str:
        details = [f"for {self.lasts:.1f} s"] if self.lasts else []
        details += [f"target {self.target}"] if self.kind in TARGETED else []
        details += [f"by {self.value:+.1f} s"] if self.kind.startswith("clock") else []
        return f"#{self.number} {self.kind} at {self.at:.1f} s" + (f" ({', '.join(details)})" if details else "")


@dataclass(frozen=True)
class Chances:
    """Probabilities of small mishaps, each per opportunity; times in seconds. All 0: nothing goes wrong by chance."""

    lost_before: float = 0.0  # a request never arrives
    lost_after: float = 0.0  # its answer never does
    duplicated: float = 0.0  # a request arrives twice
    late: float = 0.0  # a request arrives up to half a minute after its sender gave up
    refused_503: float = 0.0
    refused_429: float = 0.0
    failed_500: float = 0.0  # answered 500 after it took effect
    garbage: float = 0.0  # an answer that is not what it should be
    hook_killed: float = 0.0  # a hook is killed at some effect, as by the kernel when memory is short
    hook_stopped: float = 0.0  # a hook stands still for some seconds at some effect
    disk_error: float = 0.0
    stillborn: float = 0.0
    slow_commit: float = 0.0
    file_delay: float = 0.0  # a new file is not seen on a node for some seconds


@dataclass(frozen=True)
class Plan:
    """One run. `chaos` is when faults stop, in seconds; after it the world must come to rest within `patience`."""

    seed: int
    pools: tuple[PoolPlan, ...]
    jobs: tuple[JobPlan, ...]
    faults: tuple[FaultPlan, ...] = ()
    chances: Chances = field(default_factory=Chances)
    nodes: int = 3
    cpus_per_node: int = 8
    cred_expire: int = 5
    prolog_epilog_timeout: float = 0.0
    wait: float = 20.0
    session_file_wait: float = 10.0
    reconcile_every: float = 30.0
    missing_after: float = 30.0
    removed_after: float = 300.0
    queue_policy: str = "skip"
    policy: str = "first_fit"
    latency: float = 0.004
    skews: tuple[float, float, float] = (0.0, 0.0, 0.0)  # controller, slurmctld's host, nodes
    kill_wait: float = 10.0
    chaos: float = 150.0
    patience: float = 2400.0
    forgetful: bool = False  # kill -9 of slurmctld also loses what it did in the last five seconds

    def without(self, jobs: Collection[int] = (), faults: Collection[int] = (), chances: Collection[str] = ()) -> Plan:
        """The plan without some jobs, faults (by number) and small mishaps (by name)."""
        return replace(
            self,
            jobs=tuple(job for job in self.jobs if job.number not in jobs),
            faults=tuple(fault for fault in self.faults if fault.number not in faults),
            chances=replace(self.chances, **dict.fromkeys(chances, 0.0)),
        )

    @property
    def mishaps(self) -> list[str]:
        """Names of the small mishaps that are on."""
        return [item.name for item in fields(Chances) if getattr(self.chances, item.name) > 0]


FAULTS = (
    "controller_crash",
    "slurmctld_kill",  # -9, hooks die with it
    "slurmctld_kill_hooks_live",  # -9, hooks run on and nobody listens
    "slurmctld_term",
    "power_loss",  # of slurmctld's host, with the disk of the state directory
    "agent_crash",
    "agent_hang",
    "hooks_cut_off",  # no way from slurmctld's host to the controller
    "agent_cut_off",
    "node_fail",
    "scancel",
    "requeue",
    "token_revoked",
    "disk_full",
    "clock_step_hooks",
    "clock_step_controller",
    "latency",  # everything takes up to seconds
)
TARGETED = ("agent_crash", "agent_hang", "agent_cut_off", "node_fail", "scancel", "requeue")


def draw(seed: int, jobs: int | None = None, chaos: float = 150.0) -> Plan:
    """The plan of a seed. `jobs` instead of a drawn number."""
    source = random.Random(f"juice-sim/{seed}/plan")
    pools = _pools(source)
    count = jobs if jobs is not None else source.choice((4, 8, 12, 16, 24))
    plan = Plan(
        seed=seed,
        pools=pools,
        jobs=tuple(_job(source, number, pools, chaos) for number in range(1, count + 1)),
        nodes=source.choice((2, 3, 4)),
        cpus_per_node=source.choice((4, 8, 16)),
        cred_expire=source.choice((2, 5, 10)),
        prolog_epilog_timeout=source.choice((0.0, 0.0, 5.0, 25.0, 40.0)),
        wait=source.choice((2.0, 5.0, 20.0)),
        session_file_wait=source.choice((2.0, 10.0)),
        reconcile_every=source.choice((20.0, 60.0, 120.0)),
        missing_after=source.choice((12.0, 30.0)),
        removed_after=source.choice((10.0, 60.0, 300.0)),
        queue_policy=source.choice(("skip", "skip", "strict_fifo")),
        policy=source.choice(("first_fit", "best_fit")),
        latency=source.choice((0.0005, 0.004, 0.05)),
        skews=(source.uniform(-3, 3), source.uniform(-3, 3), source.uniform(-3, 3)),
        kill_wait=source.choice((3.0, 10.0, 30.0)),
        chaos=chaos,
        forgetful=source.random() < 0.3,
    )
    # One seed in twelve has no fault at all: what fails there is no matter of luck.
    if source.random() < 1 / 12:
        return plan
    return replace(plan, chances=_chances(source), faults=_faults(source, plan))


def _pools(source: random.Random) -> tuple[PoolPlan, ...]:
    pools = []
    for name in ("alpha", "beta")[: source.choice((1, 2, 2))]:
        vram = source.choice((8 * GIB, 24 * GIB, 24 * GIB - 7 * MIB, 16 * GIB + 1))
        pools.append(PoolPlan(name, source.choice((1, 2, 3)), source.choice((1, 2, 4)), vram, source.random() < 0.7))
    return tuple(pools)


def _component(source: random.Random, pools: tuple[PoolPlan, ...]) -> ComponentPlan:
    pool = source.choice(pools)
    kind = source.random()
    if kind < 0.3:
        return ComponentPlan(pool.name, source.choice((None, 1, 1, 2)))
    if kind < 0.36:
        return ComponentPlan(pool.name, 64)  # more than any agent has
    if kind < 0.4:
        return ComponentPlan("nowhere")
    sizes = [
        pool.vram // 2,
        pool.vram // 3,
        pool.vram // 4,
        pool.vram,
        pool.vram * 100 // 93,  # its 93 % are just there
        pool.vram * 100 // 93 + 1,  # its 93 % are one byte more than there is
        pool.vram * 101 // 93,
        2 * pool.vram,
        1,
    ]
    weights = [6, 6, 4, 3, 1, 1, 1, 0.3, 0.5]
    return ComponentPlan(pool.name, 1, source.choices(sizes, weights)[0], source.random() < 0.15)


def _job(source: random.Random, number: int, pools: tuple[PoolPlan, ...], chaos: float) -> JobPlan:
    kind = source.random()
    if kind < 0.07:
        components: tuple[ComponentPlan, ...] = (ComponentPlan(),)
    elif kind < 0.15:
        # Two that fit together whatever the pools are: Slurm would requeue others for ever.
        first = ComponentPlan(pools[0].name, 1, pools[0].vram // source.choice((3, 4)))
        second = ComponentPlan(pools[-1].name, 1, pools[-1].vram // source.choice((3, 4)))
        components = (first, ComponentPlan("nowhere") if source.random() < 0.1 else second)
    else:
        components = (_component(source, pools),)
    batch = source.random() < 0.85
    array = source.choice((2, 3, 5)) if batch and len(components) == 1 and source.random() < 0.1 else None
    return JobPlan(
        number=number,
        at=round(source.uniform(0.0, chaos * 0.75), 3) if source.random() < 0.7 else float(source.choice((0, 20, 60))),
        run_time=round(source.choice((0.2, 2.0, 10.0, 40.0)) * source.uniform(0.5, 1.5), 3),
        user=source.choice((1000, 1000, 1001)),
        components=components,
        array=array,
        array_limit=source.choice((0, 1, 2)) if array else 0,
        batch=batch,
        requeue=source.random() < 0.9,
        time_limit=source.choice((None, None, 5.0)),
        ignores_term=source.random() < 0.15,
        cpus=source.choice((1, 1, 2)),
    )


def _chances(source: random.Random) -> Chances:
    """Each kind of mishap is off in half of the runs, rare in most others, and frequent in a few."""

    def level(most: float) -> float:
        return round(source.choice((0.0, 0.0, 0.1, 0.3, 1.0)) * most * source.uniform(0.5, 1.0), 4)

    return Chances(
        lost_before=level(0.3),
        lost_after=level(0.3),
        duplicated=level(0.4),
        late=level(0.2),
        refused_503=level(0.4),
        refused_429=level(0.3),
        failed_500=level(0.3),
        garbage=level(0.1),
        hook_killed=level(0.5),
        hook_stopped=level(0.3),
        disk_error=level(0.05),
        stillborn=level(0.3),
        slow_commit=level(0.3),
        file_delay=level(0.5),
    )


def _faults(source: random.Random, plan: Plan) -> tuple[FaultPlan, ...]:
    kinds = source.sample(FAULTS, source.choice((1, 2, 4, 8, len(FAULTS))))
    agents = sum(pool.agents for pool in plan.pools)
    faults = []
    for number in range(1, source.choice((1, 3, 6, 12)) + 1):
        kind = source.choice(kinds)
        at = round(source.uniform(0.5, plan.chaos * 0.9), 3)
        lasts = min(source.choice((0.2, 2.0, 10.0, 45.0)) * source.uniform(0.5, 1.5), plan.chaos - at)
        target = 0
        if kind in ("agent_crash", "agent_hang", "agent_cut_off"):
            target = source.randrange(agents)
        elif kind == "node_fail":
            target = source.randrange(plan.nodes)
        elif kind in ("scancel", "requeue"):
            target, lasts = source.randint(1, max(1, len(plan.jobs))), 0.0
            # Aimed at the time in which the job is likely to be in its hooks.
            job = plan.jobs[target - 1] if plan.jobs else None
            if job is not None and source.random() < 0.7:
                at = round(job.at + source.choice((0.02, 0.2, 2.0, 10.0)) * source.uniform(0.1, 1.5), 3)
                at = min(at, plan.chaos)
        value = source.choice((-120.0, -2.0, 2.0, 90.0)) if kind.startswith("clock") else 0.0
        faults.append(FaultPlan(number, kind, at, round(lasts, 3), target, value))
    return tuple(sorted(faults, key=lambda fault: (fault.at, fault.number)))
