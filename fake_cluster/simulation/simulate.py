"""Long runs in virtual time without faults: a scenario, a trace or a synthetic load through the full hook logic.

Effects and messages take no time here, and no time is lost: what a run takes is what the logic costs. History goes to
disk as it comes (one row per job); what stays in memory is bounded by what runs and waits at one time.
"""

from __future__ import annotations

import csv
import gc
import random
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any

from juice_sim.core import events as ev
from juice_sim.core.commands import CreatePool, GrantPermission, RegisterAgent
from juice_sim.core.model import Gpu, Permission
from juice_sim.core.settings import Settings
from juice_sim.gpu_profiles import make_gpus, profile_named

from ..checks import run_checks
from ..history_views import Views
from ..report import write_report
from ..results import compute_results, write_json
from ..scenario import Scenario
from ..scenario_workload import submissions
from ..slurm.batch_script import read_batch_script, read_srun
from ..slurm.interface import SubmitError
from ..slurm.node_side import hook_module
from ..slurm.rules_jobs import ClusterConfig, JobSpec
from ..traces import TraceJob
from .agent_host import AgentHost
from .controller_host import ControllerHost
from .disk import Disk
from .hook_process import Host
from .kernel import Kernel
from .network import Network
from .node_host import Launch, Step, kill_program
from .plan import Chances
from .slurm_host import SlurmHost
from .tally import Tally
from .world import AGENT_USER, CLUSTER, HOOK_USER

# Longest wait of an agent's report at the controller, and the silence after which an agent is missing. Nothing is lost
# in these runs, so heartbeats only cost time.
HEARTBEAT_S = 300.0
MISSING_AFTER_S = 900.0
PACE_S = 0.002  # an agent takes that long to turn to what there is to do
USER = {"user_id": 1000, "user_name": "user", "group_id": 1000, "group_name": "user"}


@dataclass(frozen=True)
class PoolSize:
    """One pool of alike agents. `vram` bytes per GPU; None: what the model has."""

    name: str
    agents: int
    gpus: int
    model: str = "A10"
    vram: int | None = None
    policy: str = ""
    labels: Mapping[str, str] | None = None
    taints: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Arrival:
    """One submission: seconds from the start, its components, the group that a report shows it under."""

    at: float
    specs: tuple[JobSpec, ...]
    group: str = ""
    index: int = 0
    run_time: float = 0.0


@dataclass(frozen=True)
class Load:
    """What a simulation runs: pools, a cluster, and jobs in the order of their arrival."""

    name: str
    seed: int
    pools: tuple[PoolSize, ...]
    nodes: int
    cpus_per_node: int
    jobs: Iterable[Arrival]
    count: int | None = None
    wait: float = 20.0
    cred_expire: int = 5
    prolog_epilog_timeout: float = 0.0
    queue_policy: str = "skip"
    policy: str = "first_fit"
    time_limit: float | None = None


def synthetic(
    jobs: int,
    agents: int,
    gpus: int = 8,
    seed: int = 1,
    occupancy: float = 0.85,
    run_time: float = 600.0,
    model: str = "A100-80",
) -> Load:
    """Whole GPUs and slices mixed, Poisson arrivals that keep `occupancy` of the GPUs busy, exponential run times (mean
    `run_time` seconds)."""
    vram = profile_named(model).vram
    # (share of jobs, GPUs, slice)
    kinds = [
        (0.35, 1, None), (0.05, min(2, gpus), None), (0.02, min(4, gpus), None), (0.2, 1, vram // 2),
        (0.2, 1, vram // 4), (0.18, 1, vram // 8),
    ]  # fmt: skip
    taken = sum(share * count * (1.0 if size is None else size / vram) for share, count, size in kinds)
    rate = occupancy * agents * gpus / (taken * run_time)

    def arrivals() -> Iterator[Arrival]:
        source = random.Random(f"juice-sim/{seed}/synthetic")
        shares = [share for share, _, _ in kinds]
        at = 0.0
        for number in range(1, jobs + 1):
            at += source.expovariate(rate)
            _, count, size = source.choices(kinds, shares)[0]
            seconds = round(source.expovariate(1.0 / run_time), 3)
            env = {"JUICE_POOL": "main", "JUICE_GPU_COUNT": str(count)}
            if size is not None:
                env["JUICE_VRAM"] = str(size)
            payload = {"number": number, "run_time": seconds}
            yield Arrival(
                at, (JobSpec(name="job", user_id=1000, spank_env=env, payload=payload),), "synthetic", number, seconds
            )

    pool = PoolSize("main", agents, gpus, model)
    return Load("synthetic", seed, (pool,), max(1, agents // 8), 1 << 16, arrivals(), jobs)


def of_scenario(scenario: Scenario, seed: int | None = None) -> Load:
    """The load of a scenario. Its scripts are read as sbatch reads them, but not run: a job takes the run time that was
    drawn for it. Faults are left out. Raises SubmitError."""
    seed = scenario.seed if seed is None else seed

    def arrivals() -> Iterator[Arrival]:
        for number, submission in enumerate(submissions(scenario, seed), 1):
            if submission.interactive:
                specs = read_srun(submission.command, submission.options, environment={}, user=USER, cwd=Path("/"))
            else:
                specs = read_batch_script(
                    submission.script, submission.options, environment=dict(submission.env), user=USER, cwd=Path("/")
                )
            payload = {"number": number, "run_time": submission.run_time}
            yield Arrival(
                submission.at,
                tuple(replace(spec, payload=payload) for spec in specs),
                submission.group,
                submission.index,
                submission.run_time,
            )

    return Load(
        scenario.name,
        seed,
        tuple(
            PoolSize(pool.name, pool.agents, pool.gpus, pool.model, pool.vram, pool.policy, pool.labels, pool.taints)
            for pool in scenario.pools
        ),
        scenario.slurm.nodes,
        scenario.slurm.cpus_per_node,
        arrivals(),
        sum(submission.tasks for submission in submissions(scenario, seed)),
        scenario.hooks.wait,
        scenario.slurm.cred_expire,
        float(scenario.slurm.prolog_epilog_timeout),
        time_limit=None,
    )


def of_trace(jobs: Iterable[TraceJob], name: str, pools: tuple[PoolSize, ...], nodes: int, seed: int = 1) -> Load:
    """The load of a recorded workload, on pools of a given size. Jobs must come in the order of their submission."""

    def arrivals() -> Iterator[Arrival]:
        for number, job in enumerate(jobs, 1):
            env = {}
            if job.pool:
                env = {"JUICE_POOL": job.pool, "JUICE_GPU_COUNT": str(max(1, job.gpus))}
                if job.vram is not None:
                    env["JUICE_VRAM"] = str(job.vram)
            spec = JobSpec(
                name=job.name or "job",
                user_id=1000,
                cpus_per_task=max(1, round(job.cpus)),
                spank_env=env,
                payload={"number": number, "run_time": job.run_s},
            )
            yield Arrival(job.submit_s, (spec,), job.pool or "no Juice", number, job.run_s)

    return Load(name, seed, pools, nodes, 1 << 16, arrivals())


class Simulation:
    """One run. `tally` gets what happens; `rows` is the file that gets one line of CSV per job."""

    def __init__(self, load: Load, tally: Tally, rows: IO[str] | None = None) -> None:
        self.load = load
        self.tally = tally
        self.kernel = kernel = Kernel(load.seed)
        settings = Settings(
            default_policy=load.policy,
            policies={pool.name: pool.policy for pool in load.pools if pool.policy},
            default_queue_policy=load.queue_policy,
            missing_after_s=MISSING_AFTER_S,
            history_s=120.0,  # closed sessions are forgotten soon: a run of a day would keep a million
            story_events=8,
        )
        self.controller = ControllerHost(kernel, settings, self._published, commit_s=0.0)
        self.network = Network(kernel, Chances(), 0.0, direct=True)
        self.disk = Disk()
        hook = hook_module()
        self.host = Host(kernel, self.disk, self.network, self.controller, hook, Chances(), instant=True)
        self.hook_settings = hook.Settings(
            {"JUICE_CONTROLLER": "https://juice.example", "JUICE_WAIT": f"{load.wait:g}"}
        )
        config = ClusterConfig(
            nodes={f"node{number}": load.cpus_per_node for number in range(1, load.nodes + 1)},
            cluster_name=CLUSTER,
            cred_expire=load.cred_expire,
            prolog_epilog_timeout=load.prolog_epilog_timeout,
        )
        self.slurm = SlurmHost(
            kernel,
            config,
            self.host,
            self.hook_settings,
            tally,
            self._launch,
            forget_ended=True,  # type: ignore[arg-type]
        )
        self.agents: dict[str, AgentHost] = {}
        self.programs: dict[tuple[str, str], Step] = {}
        self._arrivals = iter(load.jobs)
        self.submitted = 0
        self.refused = 0
        self._more = True
        tally.bind(kernel, self.slurm, csv.writer(rows) if rows is not None else None)

    def _published(self, event: ev.Event, at: float) -> None:
        self.tally.controller_event(event, at)

    def _launch(self, launch: Launch, ended: Callable[[Step, int, int], None]) -> Step:
        return Step(
            self.kernel, self.host, self.agents, self.programs, launch, 10.0, CLUSTER, self._step_ended(ended),
            self.tally.programs.append,
        )  # fmt: skip

    def _step_ended(self, ended: Callable[[Step, int, int], None]) -> Callable[[Step, int, int], None]:
        def over(step: Step, code: int, signal: int) -> None:
            if step.refusal:
                self.tally.refused_step(step.launch.job_id, step.refusal)
            ended(step, code, signal)

        return over

    def _kill_program(self, agent: AgentHost, session_id: str, connection_id: str) -> None:
        kill_program(self.programs, self.kernel, agent, session_id, connection_id)

    def set_up(self) -> None:
        """Pools and agents; returns when all have registered."""
        controller = self.controller
        pool_ids = []
        agents = []
        for pool in self.load.pools:
            pool_id = controller.handle(CreatePool(pool.name)).id
            pool_ids.append(pool_id)
            controller.handle(GrantPermission(Permission.REGISTER_AGENT, AGENT_USER.user_id, pool_id))
            for position in range(pool.agents):
                number = len(agents)
                gpus: tuple[Gpu, ...] = make_gpus(
                    pool.model, pool.gpus, vram=pool.vram, identity=f"{pool.name}-{position}"
                )
                template = RegisterAgent(
                    f"{pool.name}-{position + 1}",
                    f"10.{number >> 16}.{(number >> 8) & 255}.{number & 255}:43210",
                    pool_id,
                    gpus,
                    labels=dict(pool.labels or {}),
                    taints=dict(pool.taints or {}),
                )
                agent = AgentHost(
                    self.kernel, self.network, controller, number, template, AGENT_USER, True, self._kill_program,
                    HEARTBEAT_S, PACE_S,
                )  # fmt: skip
                agents.append(agent)
                self.agents[template.address] = agent
        controller.make_token(HOOK_USER.user_id, pool_ids)
        self.host.token = controller.secret
        for agent in agents:
            agent.start()
        self.kernel.run(1.0)
        assert all(agent.core.agent_id for agent in agents), "an agent has not registered"
        self.tally.begin(self.kernel.now)
        self._next()

    def _next(self) -> None:
        arrival = next(self._arrivals, None)
        if arrival is None:
            self._more = False
            return
        self.kernel.at(self.tally.began + arrival.at, self._submit, arrival)

    def _submit(self, arrival: Arrival) -> None:
        try:
            job_id = self.slurm.submit(list(arrival.specs))
        except SubmitError as error:
            self.refused += 1
            self.tally.refused_submission(arrival, str(error))
        else:
            self.submitted += 1
            self.tally.submitted_job(arrival, job_id)
        self._next()

    @property
    def done(self) -> bool:
        """Whether all jobs have come and gone, and every session is closed."""
        return not self._more and self.tally.jobs_open == 0 and self.tally.sessions_open == 0

    @property
    def stuck(self) -> bool:
        """Whether no job, no hook and no timer of slurmctld is left that could set anything off."""
        return not self.slurm.busy and not self.host.processes and self.tally.sessions_open == 0

    def run(self, progress: Callable[[Simulation], None] | None = None) -> float:
        """Play it to its end; CPU seconds that it took."""
        began = time.process_time()
        self.set_up()
        kernel = self.kernel
        # What is there now stays; the collector need not look at it again and again, nor as often as by default.
        gc.collect()
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        limit = self.load.time_limit
        while not self.done:
            kernel.run(kernel.now + 5.0)
            if progress is not None:
                progress(self)
            if limit is not None and kernel.now - self.tally.began > limit:
                break
            if not self._more and self.stuck:
                break
        return time.process_time() - began


@dataclass(frozen=True)
class Finished:
    """What came of a run: `results` as in results.json, and the names of the files that were written."""

    results: dict[str, Any]
    files: tuple[Path, ...]
    ok: bool


def simulate(
    load: Load,
    directory: Path,
    full: bool,
    scenario: Scenario | None = None,
    progress: Callable[[Simulation], None] | None = None,
) -> Finished:
    """Run a load and write `results.json` and `jobs.csv` into `directory`. With `full` (for runs of some thousand jobs)
    and a scenario, all checks of `juice-sim run` are made and its report is written too."""
    directory.mkdir(parents=True, exist_ok=True)
    tally = Tally(load.name, load.seed, full and scenario is not None)
    began = time.monotonic()
    with open(directory / "jobs.csv", "w", encoding="utf-8", newline="") as rows:
        simulation = Simulation(load, tally, rows)
        cpu_s = simulation.run(progress)
    tally.finish("all jobs ended" if simulation.done else "nothing more could happen")
    results = tally.results(cpu_s, time.monotonic() - began)
    files = [directory / "results.json", directory / "jobs.csv"]
    if tally.history is not None and scenario is not None:
        files.append(directory / "report.html")
        results = _with_report(tally, scenario, results, directory / "report.html")
    write_json(directory / "results.json", results)
    return Finished(results, tuple(files), not results["invariants"]["violations"])


def _with_report(tally: Tally, scenario: Scenario, results: dict[str, Any], path: Path) -> dict[str, Any]:
    """The report of `juice-sim run`, and the results with its checks in place of the tally's own."""
    assert tally.history is not None
    views = Views(tally.history)
    # Faults are left out in virtual time, and so is the check that each took place.
    checks = run_checks(views, replace(scenario, faults=()))
    whole = compute_results(views, checks)
    merged = {**whole, **{name: results[name] for name in ("wall_s", "virtual_s", "speed", "timeline")}}
    merged["gpus"] = {**whole["gpus"], **{name: results["gpus"][name] for name in ("mean_in_use", "mean_vram_bytes")}}
    write_report(path, views, checks, whole)
    return merged
