"""compare.html: the outcome of a study as one self-contained page without scripts."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from statistics import mean, median
from typing import Any

import jinja2
import markupsafe

from juice_sim import __version__

from .charts import COLOURS, Line, line_chart
from .published import LEVELS, published_for
from .run import Point
from .study import Finding, Study, Summary
from .table import spread_text

LATE = 80.0  # percent arrived from where on policies differ
Value = Callable[[Point], float]


def write_report(path: Path, study: Study, found: Sequence[Finding], tallies: Sequence[str] = ()) -> None:
    """Write the page under a temporary name and rename it. Raises OSError."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(render(study, found, tallies), encoding="utf-8")
    temporary.replace(path)


def render(study: Study, found: Sequence[Finding], tallies: Sequence[str] = ()) -> str:
    """The page as text. `tallies` are lines about the files that were read."""
    kinds = sorted({kind for summary in study.summaries for run in summary.runs for kind in run.failed})
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    return environment.from_string(_asset("compare.html.j2")).render(
        study=study,
        findings=found,
        wrong=[finding for finding in found if not finding.ok],
        published=bool(published_for(study.pods, study.ratio)),
        levels=LEVELS,
        kinds=kinds,
        rows=[_row(study, summary, index, kinds) for index, summary in enumerate(study.summaries)],
        charts=_charts(study),
        tallies=tallies,
        version=__version__,
        style=markupsafe.Markup("\n" + _asset("report.css")),
    )


def _asset(name: str) -> str:
    return resources.files("fake_cluster").joinpath("data").joinpath(name).read_text(encoding="utf-8")


def _row(study: Study, summary: Summary, index: int, kinds: Sequence[str]) -> dict[str, Any]:
    theirs = published_for(study.pods, study.ratio).get(summary.policy)
    cells = []
    for position, level in enumerate(LEVELS):
        ours, spread = summary.levels.get(level), theirs[position] if theirs else None
        inside = ours is None or spread is None or spread.holds(ours.median)
        cells.append({"ours": spread_text(ours), "published": spread_text(spread), "inside": inside})
    return {
        "policy": summary.policy,
        "colour": index % COLOURS,
        "cells": cells,
        "placed": f"{mean(run.placed for run in summary.runs):.0f} of {mean(run.tasks for run in summary.runs):.0f}",
        "cpu_s": summary.cpu_s,
        "failed": [mean(run.failed.get(kind, 0) for run in summary.runs) for kind in kinds],
    }


def _charts(study: Study) -> list[dict[str, Any]]:
    demand = "demand of the tasks that have arrived, % of all GPUs"
    return [
        {
            "title": "GPUs in use",
            "about": "Median of the seeds; the pale band is from the least to the most.",
            "markup": line_chart(_lines(study, _allocated, LATE), demand, "GPUs in use, %"),
        },
        {
            "title": "Fragmentation",
            "about": "Idle parts of GPUs that the typical task could not use, % of all GPUs.",
            "markup": line_chart(_lines(study, _fragmented, 0.0), demand, "fragmented, % of all GPUs", 0.0),
        },
        {
            "title": "Share of what is idle that is fragmented",
            "about": "100 %: no typical task fits anywhere any more.",
            "markup": line_chart(_lines(study, _idle_share, 0.0), demand, "fragmented, % of idle", 0.0),
        },
        {
            "title": "Tasks that wait",
            "about": "Tasks that had found no room so far; nothing ever ends in this study.",
            "markup": line_chart(_lines(study, _waiting, LATE), demand, "tasks that wait", 0.0),
        },
    ]


def _allocated(point: Point) -> float:
    return point.allocated


def _fragmented(point: Point) -> float:
    return point.fragmented


def _idle_share(point: Point) -> float:
    idle = 100.0 - point.allocated
    return min(100.0, 100.0 * point.fragmented / idle) if idle > 0 else 100.0


def _waiting(point: Point) -> float:
    return float(point.waiting)


def _lines(study: Study, value: Value, since: float) -> list[Line]:
    lines = []
    for index, summary in enumerate(study.summaries):
        by_level: dict[int, list[float]] = {}
        for run in summary.runs:
            for point in run.points:
                if point.arrived >= since:
                    by_level.setdefault(point.arrived, []).append(value(point))
        levels = sorted(by_level)
        middle = [(float(level), median(by_level[level])) for level in levels]
        band = [(float(level), min(by_level[level]), max(by_level[level])) for level in levels]
        lines.append(Line(summary.policy, index, middle, band if len(summary.runs) > 1 else ()))
    return lines
