"""`python -m benchmarks [hooks] [controller] [--json FILE]`: measure, print tables, exit 1 when a target is missed."""

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


def main(arguments: Sequence[str]) -> int:
    known = {"hooks": run_hooks, "controller": run_controller}
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("what", nargs="*", choices=[*known, []], help="default: all")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures as JSON")
    args = parser.parse_args(arguments)
    found = {name: known[name]() for name in args.what or known}
    if args.json:
        args.json.write_text(json.dumps({name: rows for name, (rows, _) in found.items()}, indent=2) + "\n")
    missed = [name for name, (_, ok) in found.items() if not ok]
    if missed:
        print(f"target missed: {', '.join(missed)}", file=sys.stderr)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
