"""`python -m benchmarks.licenses [SCENARIO]`: one load on the real private Slurm, without and with `licenses sync`.

Tells prologs per completed job, how many of them were in vain, and how long all took.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from fake_cluster.sandbox.places import Place
from fake_cluster.sandbox.server import Sandbox
from fake_cluster.sandbox.spec import SandboxSpec
from fake_cluster.scenario import Scenario
from fake_cluster.scenario_load import find_scenario, load_scenario
from fake_cluster.scenario_workload import submissions
from fake_cluster.slurm.interface import JobState


@dataclass(frozen=True)
class Outcome:
    """One run. `prologs` are those of jobs with Juice options; `in_vain` those that did not end in a session."""

    licenses: bool
    jobs: int
    completed: int
    requeues: int
    prologs: int
    in_vain: int
    prologs_per_completed: float
    makespan_s: float
    mean_wait_s: float
    prolog_busy_s: float


def measure(scenario: Scenario, *, licenses: bool, cred_expire: int, time_limit_s: float) -> Outcome:
    """Run the scenario's jobs (its faults are left out) and count."""
    with tempfile.TemporaryDirectory(prefix="juice-b-") as folder:
        spec = SandboxSpec(
            name="benchmark",
            slurm="real",
            pools=scenario.pools,
            nodes=scenario.slurm.nodes,
            cpus_per_node=scenario.slurm.cpus_per_node,
            cred_expire=cred_expire,
            wait=scenario.hooks.wait,
            licenses=licenses,
        )
        sandbox = Sandbox(Place("benchmark", Path(folder)), spec)
        try:
            sandbox.start()
            return _load(sandbox, scenario, licenses, time_limit_s)
        finally:
            sandbox.stop()


def _load(sandbox: Sandbox, scenario: Scenario, licenses: bool, time_limit_s: float) -> Outcome:
    slurm, world = sandbox.world.slurm, sandbox.world
    todo = submissions(scenario, scenario.seed)
    began = time.monotonic()
    submitted: dict[int, float] = {}  # slurmctld's own time of submission is that of the last requeue
    for one in todo:
        time.sleep(max(0.0, began + one.at - time.monotonic()))
        env = {"PATH": "/usr/bin:/bin", **one.env}
        options = ["--output=/dev/null", *one.options]
        asked = time.time()
        submitted[slurm.sbatch(one.script, options, env=env, cwd=world.work_dir)] = asked
    while True:
        jobs = [job for job in slurm.jobs() if job.job_id in submitted]
        if all(job.state.ended for job in jobs) or time.monotonic() - began > time_limit_s:
            break
        time.sleep(0.5)
    runs = [run for run in world.hook_runs() if run.hook == "prolog" and run.verdict != "nothing"]
    done = [job for job in jobs if job.state is JobState.COMPLETED]
    first = min(submitted.values())
    waits = [(job.start_time or 0.0) - submitted[job.job_id] for job in done]
    return Outcome(
        licenses=licenses,
        jobs=len(submitted),
        completed=len(done),
        requeues=sum(job.restarts for job in jobs),
        prologs=len(runs),
        in_vain=sum(run.verdict != "granted" for run in runs),
        prologs_per_completed=len(runs) / max(1, len(done)),
        makespan_s=max(job.end_time or 0.0 for job in done) - first if done else 0.0,
        mean_wait_s=sum(waits) / max(1, len(waits)),
        prolog_busy_s=sum(run.duration or 0.0 for run in runs),
    )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.licenses", description=__doc__)
    parser.add_argument("scenario", nargs="?", default="contention")
    parser.add_argument("--cred-expire", type=int, default=None, metavar="S", help="default: the scenario's")
    parser.add_argument("--time-limit", type=float, default=600.0, metavar="S")
    parser.add_argument("--only", choices=("with", "without"), help="one of the two runs")
    args = parser.parse_args()
    scenario = load_scenario(find_scenario(args.scenario))
    cred = scenario.slurm.cred_expire if args.cred_expire is None else args.cred_expire
    for licenses in (False, True):
        if args.only is not None and licenses != (args.only == "with"):
            continue
        outcome = measure(scenario, licenses=licenses, cred_expire=cred, time_limit_s=args.time_limit)
        print(json.dumps(asdict(outcome)), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
