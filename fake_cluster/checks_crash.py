"""What a crash of a real slurmctld makes untrue of the record, and what checks must therefore not believe.

slurmctld saves its state at most every five seconds (docs/slurm-observed.md, hazards 2 and 3). Killed with signal 9 it
comes back without the jobs that it had just acknowledged, gives their ids to others, and shows as running what had
ended. None of that says anything about the hooks. The simulated Slurm of a run forgets nothing, so nothing is excused
there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from .history import FaultInjected, History
from .history_views import JobLife, Spell, Views

FORGETS_S = 8.0
"""Seconds between two savings of the state, with what a busy machine adds."""
WATCHED_S = 1.5
"""How old the last look at Slurm may be at a crash."""


def crashes(history: History) -> list[float]:
    """When a real slurmctld was killed without a chance to save its state."""
    if history.started.slurm != "real":
        return []
    return [
        fault.at
        for fault in history.of(FaultInjected)
        if fault.kind == "slurmctld_killed" and "signal 9" in fault.detail
    ]


def may_be_forgotten(views: Views, submitted_at: float) -> bool:
    """Whether a crash may have taken the memory of a job that was submitted then."""
    return any(submitted_at - 1.0 <= at <= submitted_at + FORGETS_S for at in crashes(views.history))


def believable_spells(views: Views, job: JobLife) -> Iterator[Spell]:
    """The spells of a job without those that are slurmctld's false memory: of a start that had been seen to end before
    a crash. A spell that spans a crash is cut before it: whether the job still ran then is what slurmctld may have
    forgotten. None when the id stood for two jobs: what the record says of them cannot be told apart."""
    instants = crashes(views.history)
    if instants and len({seen.name for seen in job.observed}) > 1:
        return
    ended: dict[int, float] = {}  # restart count -> when that start was seen to have ended
    for spell in job.spells(views.end):
        before = ended.get(spell.restarts)
        if before is not None and any(before <= at <= spell.last for at in instants):
            continue
        if spell.state.ended:
            ended.setdefault(spell.restarts, spell.first)
        for at in instants:
            if spell.first < at < spell.last:
                spell = replace(spell, last=max(spell.first, at - WATCHED_S))
        yield spell
