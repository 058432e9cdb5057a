"""`python -m benchmarks [hooks] [controller] [slurm] [trials] [--json FILE]`: measure, print tables, exit 1 on a miss.

`slurm` (jobs per second) and `trials` (interrupted prologs) start a real Slurm, and run only when named.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from . import controller, hooks

SIZES = ((1, 0), (10, 0), (100, 0), (100, 10_000))
CYCLES_TARGET = 500.0
"""Cycles per second; the open-source controller reaches 17-18 with 1 or 10 agents on two cores, and fails at 100."""


def _table(title: str, header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    table = Table(*header, title=title, title_justify="left")
    for row in rows:
        table.add_row(*row)
    Console(width=120).print(table)


def run_hooks() -> tuple[list[dict[str, Any]], bool]:
    """Both tables of `hooks.py`; (rows, all targets met)."""
    measured = [(row, "sh -c :", 2.0) for row in hooks.without_juice()]
    measured += [(row, "python3 -I -S -c pass", 5.0) for row in hooks.with_juice()]
    kinds = ["without Juice options"] * 2 + ["granted", "released"]
    _table(
        "CPU of a hook process, against a yardstick in the same run",
        ("hook", "job", "yardstick", "CPU ms", "ratio (10-90 %)", "target"),
        [
            (
                row.name,
                kind,
                yardstick,
                f"{row.cpu_s * 1000:.2f}",
                f"{row.ratio:.2f} ({row.ratio_low:.2f}-{row.ratio_high:.2f})",
                f"{target:g}",
            )
            for (row, yardstick, target), kind in zip(measured, kinds, strict=True)
        ],
    )
    rows = [{**asdict(row), "yardstick": yardstick, "target": target} for row, yardstick, target in measured]
    return rows, all(row.ratio <= target for row, _, target in measured)


def run_controller() -> tuple[list[dict[str, Any]], bool]:
    """Cycles per second at each size; (rows, all targets met)."""
    measured = [controller.measure(agents, queued) for agents, queued in SIZES]
    _table(
        "Request, assign, activate, release over HTTP, durable; 32 connections, agents of 8 GPUs",
        ("agents", "queued", "cycles/s", "bare POSTs/s", "ratio", "to active p50 ms", "p99 ms", "target"),
        [
            (
                str(row.agents),
                f"{row.queued:,}",
                f"{row.rate:.0f}",
                f"{row.bare_rate:.0f}",
                f"{row.ratio:.3f}",
                f"{row.active_p50_ms:.1f}",
                f"{row.active_p99_ms:.1f}",
                f"{CYCLES_TARGET:g}/s",
            )
            for row in measured
        ],
    )
    return [asdict(row) for row in measured], all(row.rate >= CYCLES_TARGET for row in measured)


def run_slurm() -> tuple[list[dict[str, Any]], bool]:
    """Jobs per second through a real slurmctld; (rows, all targets met)."""
    from . import slurm_throughput

    measured = slurm_throughput.measure()
    _table(
        f"Jobs per second through slurmctld with {slurm_throughput.NODES} slurmd",
        ("hooks", "jobs/s (least-most)", "ratio", "to", "target"),
        [
            (
                row.name,
                f"{row.rate:.1f} ({min(row.rates):.1f}-{max(row.rates):.1f})",
                f"{row.ratio:.2f}",
                row.yardstick,
                "" if row.target is None else f"{row.target:g}",
            )
            for row in measured
        ],
    )
    return [asdict(row) for row in measured], all(row.ok for row in measured)


def run_trials() -> tuple[list[dict[str, Any]], bool]:
    """A hundred interruptions of each kind on a real Slurm; (rows, nothing left and no session lost)."""
    from . import trials

    measured = trials.measure()
    _table(
        "Prologs interrupted at random moments; left: sessions, journals and session files whose job is gone",
        ("kind", "trials", "jobs", "left before reconcile", "after", "looks at running jobs", "without session"),
        [
            (
                row.name,
                str(row.trials),
                str(row.jobs),
                str(len(row.left_before)),
                str(len(row.left_after)),
                str(row.beats),
                str(len(row.without_session)),
            )
            for row in measured
        ],
    )
    courses = [(row.name, course, str(count)) for row in measured for course, count in sorted(row.variants.items())]
    _table("What was seen", ("kind", "course", "times"), courses)
    return [asdict(row) for row in measured], all(row.ok for row in measured)


ALWAYS = {"hooks": run_hooks, "controller": run_controller}
NEED_SLURM = {"slurm": run_slurm, "trials": run_trials}


def main(arguments: Sequence[str]) -> int:
    known = {**ALWAYS, **NEED_SLURM}
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("what", nargs="*", choices=[*known, []], help=f"default: {', '.join(ALWAYS)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    args = parser.parse_args(arguments)
    found = {name: known[name]() for name in args.what or ALWAYS}
    if args.json:
        args.json.write_text(json.dumps({name: rows for name, (rows, _) in found.items()}, indent=2) + "\n")
    missed = [name for name, (_, ok) in found.items() if not ok]
    if missed:
        print(f"target missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
