"""Measure commands against a yardstick: taken in turn, so that a machine whose speed drifts moves both alike."""

from __future__ import annotations

import os
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A command to time. `before` and `after` run uncounted around each run (set-up and clean-up of one run)."""

    argv: Sequence[str]
    env: Mapping[str, str]
    before: Callable[[int], Mapping[str, str] | None] | None = None
    after: Callable[[int], None] | None = None


@dataclass(frozen=True)
class Row:
    """One line of a table: CPU seconds of one run (median, children included) and its ratio to the yardstick."""

    name: str
    cpu_s: float
    ratio: float
    ratio_low: float
    ratio_high: float
    runs: int


def cpu_seconds(argv: Sequence[str], env: Mapping[str, str]) -> float:
    """User plus system time of one process and the children it waited for. Raises RuntimeError when it fails."""
    process = subprocess.Popen(
        argv, env=dict(env), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    stderr = process.stderr.read()
    process.stderr.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        raise RuntimeError(
            f"{' '.join(argv)}: exit code {process.returncode}: {stderr.decode(errors='replace')[-500:]}"
        )
    return usage.ru_utime + usage.ru_stime


def compare(
    yardstick: Command, commands: Mapping[str, Command], *, runs: int, repeats: Mapping[str, int] | None = None
) -> list[Row]:
    """Run all commands in turn `runs` times after one warm-up; ratios are paired run by run.

    Short commands (under the kernel's accounting grain) should loop inside their argv; `repeats` then says how many
    times each of them (and the yardstick, under the name "") loops, and the figures are per repetition.
    """
    repeats = repeats or {}
    seconds: dict[str, list[float]] = {name: [] for name in ("", *commands)}
    for number in range(runs + 1):
        for name, command in {"": yardstick, **commands}.items():
            env = dict(command.env)
            if command.before:
                env.update(command.before(number) or {})
            used = cpu_seconds(command.argv, env) / repeats.get(name, 1)
            if command.after:
                command.after(number)
            if number:  # the first round warms the caches
                seconds[name].append(used)
    rows = []
    for name in commands:
        ratios = sorted(used / base for used, base in zip(seconds[name], seconds[""], strict=True))
        rows.append(
            Row(
                name,
                statistics.median(seconds[name]),
                statistics.median(seconds[name]) / statistics.median(seconds[""]),
                ratios[len(ratios) // 10],
                ratios[-1 - len(ratios) // 10],
                runs,
            )
        )
    return rows
