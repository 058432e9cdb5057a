"""`juice-sim simulate`: a scenario, a trace or a synthetic load in virtual time."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import Any

FULL_UP_TO = 20_000  # jobs; above, the record of a run is not kept in memory and report.html is not written
REPORT_DIR = "juice-sim-report"


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "simulate",
        help="run a scenario or a trace in virtual time",
        description="Run jobs through the real rules of Slurm, the real hooks, controller and agents in virtual time: "
        "as fast as the logic can be computed, without faults, without processes. What runs is a scenario, a trace "
        "(openb CSV, Standard Workload Format, sacct --parsable2), or, with --jobs and --agents alone, a synthetic "
        "load. Writes results.json and jobs.csv, and for scenarios of up to 20,000 jobs the report of `juice-sim run`. "
        "Exit code: 0 when all checks hold, 1 when one fails, 2 for bad input, 130 when interrupted.",
    )
    parser.add_argument(
        "what", nargs="?", metavar="SCENARIO|TRACE", help="a scenario (file or shipped name) or a trace file"
    )
    parser.add_argument("--jobs", type=int, metavar="N", help="synthetic load: so many jobs; else: only the first N")
    parser.add_argument("--agents", type=int, metavar="N", help="agents (synthetic load and traces; default: 100)")
    parser.add_argument("--gpus", type=int, default=8, metavar="N", help="GPUs of each agent (default: %(default)s)")
    parser.add_argument("--model", default="A100-80", help="their model (default: %(default)s)")
    parser.add_argument("--mapping", type=Path, metavar="FILE", help="which jobs of a trace use which pool and slice")
    parser.add_argument("--occupancy", type=float, default=0.85, metavar="X", help="synthetic: share of GPUs kept busy")
    parser.add_argument("--run-time", type=float, default=600.0, metavar="S", help="synthetic: mean run time of jobs")
    parser.add_argument("--policy", default="first_fit", help="placement policy (default: %(default)s)")
    parser.add_argument("--seed", type=int, metavar="N", help="default: the scenario's own, else 1")
    parser.add_argument("--report", type=Path, metavar="DIR", help=f"where the files go (default: {REPORT_DIR}/NAME)")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the summary")
    parser.set_defaults(parser=parser)


def _refuse(text: object) -> int:
    print(f"juice-sim simulate: error: {text}", file=sys.stderr)
    return 2


def run(args: argparse.Namespace) -> int:
    """Run the simulation; returns the exit code."""
    from fake_cluster.strict_yaml import BadInput
    from juice_sim.core.placement import POLICIES
    from juice_sim.gpu_profiles import UnknownModel, profile_named

    for name, low, high in (("jobs", 1, 10**8), ("agents", 1, 10**6), ("gpus", 1, 1024), ("seed", 0, 2**31 - 1)):
        value = getattr(args, name)
        if value is not None and not low <= value <= high:
            return _refuse(f"--{name} {value}: accepted: a whole number from {low} to {high}")
    if not 0 < args.occupancy <= 10:
        return _refuse(
            f"--occupancy {args.occupancy:g}: accepted: more than 0, at most 10 (above 1: more than there is)"
        )
    if not 0 < args.run_time < 1e9:
        return _refuse(f"--run-time {args.run_time:g}: accepted: more than 0 seconds")
    if args.policy not in POLICIES:
        return _refuse(f"--policy {args.policy}: accepted: {', '.join(sorted(POLICIES))}")
    if args.what is None and args.jobs is None:
        return _refuse("what to simulate is missing; give a scenario, a trace, or --jobs N for a synthetic load")
    try:
        profile_named(args.model)
        load, scenario = _load(args)
    except (BadInput, UnknownModel, ValueError, OSError) as error:
        return _refuse(" ".join(str(error).split()))
    return _run(args, load, scenario)


def _load(args: argparse.Namespace) -> tuple[Any, Any]:
    """(load, scenario or None)."""
    from dataclasses import replace
    from itertools import islice

    from fake_cluster.scenario_load import BadInput, find_scenario, load_scenario
    from fake_cluster.simulation import simulate as s

    seed = args.seed
    if args.what is None:
        load = s.synthetic(
            args.jobs, args.agents or 100, args.gpus, seed or 1, args.occupancy, args.run_time, args.model
        )
        return replace(load, policy=args.policy), None
    path = Path(args.what)
    if path.suffix in (".yaml", ".yml") or not path.exists():
        scenario = load_scenario(find_scenario(args.what))
        load = s.of_scenario(scenario, seed)
        if scenario.faults and not args.quiet:
            print(
                f"{len(scenario.faults)} faults of the scenario are left out: virtual time runs have none",
                file=sys.stderr,
            )
        if args.jobs is not None:
            load = replace(load, jobs=islice(load.jobs, args.jobs), count=None)
        return replace(load, policy=args.policy), scenario
    from fake_cluster.traces import load_trace

    trace = load_trace(path, mapping=args.mapping)
    for line in trace.tally.lines():
        print(line, file=sys.stderr)
    jobs = trace.jobs[: args.jobs] if args.jobs is not None else trace.jobs
    if not jobs:
        raise BadInput(f"{path}: no job is left to simulate")
    names = sorted({job.pool for job in jobs if job.pool})
    share = max(1, (args.agents or 100) // max(1, len(names)))
    pools = tuple(s.PoolSize(name, share, args.gpus, args.model) for name in names)
    load = s.of_trace(jobs, path.name.partition(".")[0] or "trace", pools, max(1, (args.agents or 100) // 8), seed or 1)
    return replace(load, policy=args.policy, count=len(jobs)), None


def _run(args: argparse.Namespace, load: Any, scenario: Any) -> int:
    from fake_cluster.simulation.simulate import simulate
    from fake_cluster.slurm.interface import SubmitError

    directory: Path = args.report if args.report is not None else Path(REPORT_DIR) / f"{load.name}-virtual"
    full = load.count is not None and load.count <= FULL_UP_TO
    try:
        finished = simulate(load, directory, full, scenario, None if args.quiet else _Progress(load.count))
    except KeyboardInterrupt:
        print("\njuice-sim simulate: interrupted", file=sys.stderr)
        return 130
    except SubmitError as error:
        return _refuse(" ".join(str(error).split()))
    except OSError as error:
        return _refuse(f"--report {directory}: {error.strerror}; give a directory that can be written")
    _summary(finished)
    return 0 if finished.ok else 1


class _Progress:
    """A line on standard error, rewritten about twice a second where somebody looks."""

    def __init__(self, total: int | None) -> None:
        self._total = total
        self._shown = 0.0
        self._began = time.monotonic()

    def __call__(self, simulation: Any) -> None:
        now = time.monotonic()
        if now - self._shown < 0.5 or not sys.stderr.isatty():
            return
        self._shown = now
        tally = simulation.tally
        ended = sum(tally.states.values())
        of = f" of {self._total}" if self._total is not None else ""
        print(
            f"\r{ended}{of} jobs, {tally.running} running, {tally.jobs_open - tally.running} waiting, "
            f"{tally.in_use} GPUs in use, virtual time {simulation.kernel.now - tally.began:.0f} s, "
            f"{ended / max(now - self._began, 0.001):.0f} jobs/s  ",
            end="",
            file=sys.stderr,
            flush=True,
        )


def _summary(finished: Any) -> None:
    results = finished.results
    if sys.stderr.isatty():
        print("\r" + " " * 110 + "\r", end="", file=sys.stderr)
    jobs, gpus, waits, speed = results["jobs"], results["gpus"], results["waits"], results["speed"]

    def seconds(value: float | None) -> str:
        return "-" if value is None else f"{value:.1f} s"

    states = ", ".join(f"{count} {state}" for state, count in jobs["by_state"].items())
    print(f"jobs      {jobs['submitted']}: {states or 'none'}; {jobs['requeues']} requeues, {jobs['refused']} refused")
    print(f"GPUs      {gpus['count']}; {gpus['mean_in_use']:.1f} in use on average, {gpus['peak_in_use']} at most")
    print(f"waiting   median {seconds(waits['queue_p50_s'])}, p99 {seconds(waits['queue_p99_s'])}, "
          f"longest {seconds(waits['queue_max_s'])}")  # fmt: skip
    print(f"time      {results['virtual_s']:.0f} s virtual in {results['wall_s']:.1f} s, {speed['cpu_s']:.1f} s of CPU "
          f"({speed['jobs_per_cpu_s']} jobs per CPU second)")  # fmt: skip
    for violation in results["invariants"]["violations"][:10]:
        print(f"VIOLATED  {violation['check']}: {violation['subject']}: {violation['message']}")
    for file in finished.files:
        print(f"written   {file}")
