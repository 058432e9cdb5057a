"""`juice-sim run`: run a scenario, check it, write a report."""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
from pathlib import Path
from typing import Any

REPORT_DIR = "juice-sim-report"


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "run",
        help="run a scenario, check it, write a report",
        description="Run a scenario: jobs go through Slurm and the real hooks to a simulated Juice service, faults "
        "included. At the end all checks are made, and results.json and report.html are written. Exit code: 0 when all "
        "checks hold, 1 when one fails, 2 for bad input, 130 when interrupted.",
    )
    parser.add_argument("scenario", metavar="SCENARIO", help="a scenario file, or the name of one that is shipped")
    parser.add_argument("--slurm", default="simulated", choices=("simulated", "real"), help="default: %(default)s")
    parser.add_argument(
        "--cluster",
        default="autoscaling",
        choices=("autoscaling", "none"),
        help="where the service and the jobs run: a fake Ray cluster, or plain processes (default: %(default)s)",
    )
    parser.add_argument(
        "--report", type=Path, metavar="DIR", help=f"where the report goes (default: {REPORT_DIR}/NAME)"
    )
    parser.add_argument("--seed", type=int, metavar="N", help="instead of the scenario's own seed")
    parser.add_argument("--keep", action="store_true", help="keep the temporary directory with all logs")
    parser.add_argument("--quiet", action="store_true", help="no progress, only the table at the end")
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace) -> int:
    """Run the scenario; returns the exit code."""
    from fake_cluster.scenario_load import BadInput, find_scenario, load_scenario

    if args.seed is not None and not 0 <= args.seed < 2**31:
        return _refuse(f"--seed {args.seed}: accepted: a whole number from 0 to {2**31 - 1}")
    try:
        scenario = load_scenario(find_scenario(args.scenario))
    except BadInput as error:
        return _refuse(error)
    report_dir: Path = args.report if args.report is not None else Path(REPORT_DIR) / scenario.name
    try:
        report_dir.mkdir(parents=True, exist_ok=True)
        probe = report_dir / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        return _refuse(f"--report {report_dir}: {error.strerror}; give a directory that can be written")
    return _run(args, scenario, report_dir)


def _run(args: argparse.Namespace, scenario: Any, report_dir: Path) -> int:
    from rich.console import Console

    from fake_cluster.progress import RunProgress, final_table, tell_violations
    from fake_cluster.scenario_run import run_scenario
    from fake_cluster.world_service import WorldError

    console = Console(highlight=False)
    ends = _ends(signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
    before = {number: signal.signal(number, _interrupt) for number in ends}
    try:
        outcome = run_scenario(
            scenario,
            slurm=args.slurm,
            cluster=args.cluster,
            seed=args.seed,
            report_dir=report_dir,
            progress=RunProgress(quiet=args.quiet),
            keep=args.keep,
        )
    except KeyboardInterrupt:
        with contextlib.suppress(OSError):  # the terminal may be gone
            print("juice-sim run: interrupted; everything that was started is stopped", file=sys.stderr)
        return 130
    except WorldError as error:
        print(f"juice-sim run: error: {error}", file=sys.stderr)
        return 1
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    try:
        final_table(outcome.views, outcome.results, outcome.checks, console)
        tell_violations(outcome.checks, console)
        console.print(f"report    {outcome.report_dir / 'report.html'}", soft_wrap=True)
        console.print(f"figures   {outcome.report_dir / 'results.json'}", soft_wrap=True)
        if outcome.directory is not None:
            console.print(f"logs      {outcome.directory}", soft_wrap=True)
    except SystemExit:
        # Whoever read our output (a `head`) has gone, and rich would end with 1; but the checks decide.
        pass
    return 0 if outcome.ok else 1


def _ends(*numbers: signal.Signals) -> list[signal.Signals]:
    """Those of the signals that whoever started this command has not chosen to ignore (nohup, a background job)."""
    return [number for number in numbers if signal.getsignal(number) is not signal.SIG_IGN]


def _interrupt(number: int, frame: object) -> None:
    # Once is enough: a second one would interrupt the stopping of what was started. Not SIG_IGN: children inherit that.
    for other in _ends(signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(other, _heard)
    raise KeyboardInterrupt


def _heard(number: int, frame: object) -> None:
    return


def _refuse(error: object) -> int:
    # Keys and names come from the file: what would steer a terminal, or break the line, is shown as an escape.
    text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in str(error))
    print(f"juice-sim run: error: {text}", file=sys.stderr)
    return 2
