"""`juice-sim compare`: placement policies on a recorded workload, beside published figures."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

DATA_VARIABLE = "JUICE_SIM_OPENB_DIR"
MAX_SEEDS = 10_000


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "compare",
        help="compare placement policies on a trace",
        description="Let the tasks of a recorded workload arrive at its cluster under several placement policies, and "
        "show how much of the GPUs each gets into use: the study of Weng et al. (USENIX ATC 2023) on Alibaba's openb "
        "trace. Its data are not part of this package: https://github.com/alibaba/clusterdata, "
        "cluster-trace-gpu-v2023. With the published seeds the figures are the published ones. Exit code: 0; 1 with "
        "--check when a figure is not as published; 2 for bad input; 130 when interrupted.",
    )
    parser.add_argument("--trace", default="openb", choices=("openb",), help="kind of trace (default: %(default)s)")
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help=f"directory with the trace's CSV files (default: ${DATA_VARIABLE})",
    )
    parser.add_argument(
        "--pods", default="openb_pod_list_default.csv", metavar="FILE", help="task list (default: %(default)s)"
    )
    parser.add_argument(
        "--nodes", default="openb_node_list_gpu_node.csv", metavar="FILE", help="node list (default: %(default)s)"
    )
    parser.add_argument(
        "--policies",
        default="all",
        metavar="all|NAME,..",
        help="Random, DotProd, GpuClustering, GpuPacking, BestFit, FGD (these are `all`), FirstFit",
    )
    parser.add_argument("--seeds", type=int, default=10, metavar="N", help="how many (default: %(default)s)")
    parser.add_argument(
        "--first-seed", type=int, default=42, metavar="K", help="default: %(default)s, as in the published study"
    )
    parser.add_argument(
        "--ratio", type=float, default=1.3, metavar="R", help="tasks are drawn up to R times the GPUs (default: 1.3)"
    )
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="processes (default: %(default)s; 0: one a core)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there")
    parser.add_argument("--report", type=Path, metavar="DIR", help="write compare.html there")
    parser.add_argument("--check", action="store_true", help="fail when a figure is not as published")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the table")
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace) -> int:
    """Run the study; returns the exit code."""
    problem = _check_numbers(args)
    if problem:
        return _refuse(problem)
    try:
        import numpy  # noqa: F401
    except ImportError:
        return _refuse("numpy is needed for the study and is not installed: pip install numpy")
    from fake_cluster.bad_input import BadInput
    from fake_cluster.compare.policies import policies_named
    from fake_cluster.compare.workload import load_openb

    data = args.data if args.data is not None else os.environ.get(DATA_VARIABLE)
    if not data:
        return _refuse(
            f"no --data DIR; accepted: the directory with {args.nodes} and {args.pods} (or ${DATA_VARIABLE})"
        )
    if not Path(data).is_dir():
        return _refuse(f"--data {data}: no such directory")
    try:
        policies = policies_named(args.policies)
        workload = load_openb(Path(data), args.pods, args.nodes)
        for directory in (args.report, args.json.parent if args.json is not None else None):
            if directory is not None:
                directory.mkdir(parents=True, exist_ok=True)
    except (ValueError, BadInput) as error:
        return _refuse(error)
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}; give a place that can be written")
    return _run(args, workload, policies)


def _check_numbers(args: argparse.Namespace) -> str:
    if not 1 <= args.seeds <= MAX_SEEDS:
        return f"--seeds {args.seeds}: accepted: 1 to {MAX_SEEDS}"
    if not 0 <= args.first_seed < 2**31:
        return f"--first-seed {args.first_seed}: accepted: 0 to {2**31 - 1}"
    if not 0.01 <= args.ratio <= 100:
        return f"--ratio {args.ratio:g}: accepted: 0.01 to 100"
    if not 0 <= args.jobs <= 1024:
        return f"--jobs {args.jobs}: accepted: 0 (one a core) to 1024"
    return ""


def _run(args: argparse.Namespace, workload: Any, policies: list[str]) -> int:
    from rich.console import Console

    from fake_cluster.compare.report import write_report
    from fake_cluster.compare.study import as_json, findings, run_study
    from fake_cluster.compare.table import print_study

    told = [line for tally in workload.tallies for line in tally.lines()]
    for tally in workload.tallies:
        if tally.bad_count:
            print("\n".join(tally.lines()), file=sys.stderr)
    seeds = range(args.first_seed, args.first_seed + args.seeds)
    pods = Path(args.pods).name
    jobs = args.jobs or os.cpu_count() or 1
    study = run_study(workload, pods, policies, seeds, args.ratio, jobs, tell=_quiet if args.quiet else _tell)
    found = findings(study)
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=140)
    print_study(study, found, console)
    try:
        if args.json is not None:
            args.json.write_text(json.dumps(as_json(study), indent=1) + "\n", encoding="utf-8")
            console.print(f"figures   {args.json}", soft_wrap=True)
        if args.report is not None:
            write_report(args.report / "compare.html", study, found, told)
            console.print(f"report    {args.report / 'compare.html'}", soft_wrap=True)
    except OSError as error:
        return _refuse(f"{error.filename}: {error.strerror}; give a place that can be written")
    if args.check and not found:
        return _refuse(f"--check: nothing is published for {pods}")
    return 1 if args.check and not all(finding.ok for finding in found) else 0


def _tell(run: Any, done: int, total: int) -> None:
    width = len(str(total))
    last = run.points[-1]
    print(
        f"[{done:{width}}/{total}] {run.policy:<13} seed {run.seed}: {last.allocated:.2f} % in use at "
        f"{last.arrived} % arrived, {run.cpu_s:.2f} s of CPU",
        file=sys.stderr,
        flush=True,
    )


def _quiet(run: Any, done: int, total: int) -> None:
    pass


def _refuse(error: object) -> int:
    print(f"juice-sim compare: error: {error}", file=sys.stderr)
    return 2
