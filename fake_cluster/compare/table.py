"""The outcome of a study on the terminal: our figures beside the published ones."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from .published import LEVELS, Spread, published_for
from .study import Finding, Study


def spread_text(spread: Spread | None) -> str:
    """`92.91 (92.64-93.04)`, or `-`."""
    return "-" if spread is None else f"{spread.median:.2f} ({spread.least:.2f}-{spread.most:.2f})"


def print_study(study: Study, found: list[Finding], console: Console) -> None:
    """The table, and a line for each disagreement with the published figures."""
    published = published_for(study.pods, study.ratio)
    seeds = f"{len(study.seeds)} seeds from {study.seeds[0]}"
    title = f"GPUs in use, % of {study.gpus} on {study.nodes} nodes; median (least-most) of {seeds}"
    console.print(title, soft_wrap=True)
    table = Table()
    table.add_column("policy")
    for level in LEVELS:
        table.add_column(f"{level} % arrived", justify="right", no_wrap=True)
        if published:
            table.add_column("published", justify="right", no_wrap=True)
    table.add_column("CPU s a run", justify="right")
    for summary in study.summaries:
        cells = [summary.policy]
        for position, level in enumerate(LEVELS):
            ours = summary.levels.get(level)
            theirs = published.get(summary.policy)
            spread = theirs[position] if theirs else None
            inside = ours is None or spread is None or spread.holds(ours.median)
            cells.append(spread_text(ours) if inside else f"[red]{spread_text(ours)}[/red]")
            if published:
                cells.append(spread_text(spread))
        cells.append(f"{summary.cpu_s:.2f}")
        table.add_row(*cells)
    console.print(table)
    wrong = [finding for finding in found if not finding.ok]
    if found and not wrong:
        console.print(f"all {len(found)} comparisons with the published figures hold")
    for finding in wrong:
        console.print(f"not as published: {finding.text}")
