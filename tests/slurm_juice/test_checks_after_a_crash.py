"""What checks believe of a record in which a real slurmctld was killed."""

from __future__ import annotations

import pytest

from fake_cluster.checks_crash import believable_spells, crashes, may_be_forgotten
from fake_cluster.history import FaultInjected, History, JobObserved, RunEnded, RunStarted
from fake_cluster.history_views import Views
from fake_cluster.slurm.interface import JobState

CRASH = 20.0


def seen(at: float, state: JobState, *, name: str = "a", restarts: int = 0) -> JobObserved:
    return JobObserved(
        at=at, asked=at - 0.1, held_until=at - 0.5, job_id=7, name=name, state=state, group=name, user_id=0,
        reason="", restarts=restarts, exit_code=0, signal=0, nodes=(), submit_time=1.0, eligible_time=None,
        start_time=None, end_time=None, array_job_id=None, array_task_id=None, het_job_id=None, het_offset=None,
        juice={},
    )  # fmt: skip


def views(*entries: object, slurm: str = "real", detail: str = "signal 9") -> Views:
    history = History()
    history.add(RunStarted(0.0, "s", 1, "none", slurm, "v"))
    history.add(FaultInjected(CRASH, 0, "slurmctld_killed", "slurmctld killed", "slurmctld", detail))
    for entry in entries:
        history.add(entry)
    history.add(RunEnded(100.0, "all jobs ended"))
    return Views(history)


def states(found: Views) -> list[tuple[JobState, float]]:
    return [(spell.state, spell.last) for spell in believable_spells(found, found.jobs[7])]


def test_a_job_that_comes_back_from_the_dead_does_not_run() -> None:
    found = views(seen(5, JobState.RUNNING), seen(10, JobState.COMPLETED), seen(25, JobState.RUNNING))
    assert [state for state, _ in states(found)] == [JobState.RUNNING, JobState.COMPLETED]


def test_a_spell_ends_before_the_crash() -> None:
    found = views(seen(5, JobState.RUNNING), seen(30, JobState.COMPLETED))
    assert states(found)[0] == (JobState.RUNNING, CRASH - 1.5)


def test_another_start_after_the_crash_counts() -> None:
    found = views(
        seen(5, JobState.COMPLETED), seen(30, JobState.RUNNING, restarts=1), seen(40, JobState.COMPLETED, restarts=1)
    )
    assert (JobState.RUNNING, 39.5) in states(found)


def test_an_id_that_stood_for_two_jobs_says_nothing() -> None:
    found = views(seen(5, JobState.RUNNING), seen(30, JobState.RUNNING, name="b"))
    assert states(found) == []


@pytest.mark.parametrize(("slurm", "detail"), [("simulated", "signal 9"), ("real", "signal 15")])
def test_nothing_is_excused_without_a_crash_of_a_real_slurmctld(slurm: str, detail: str) -> None:
    found = views(seen(5, JobState.COMPLETED), seen(30, JobState.RUNNING), slurm=slurm, detail=detail)
    assert crashes(found.history) == []
    assert states(found)[-1] == (JobState.RUNNING, 100.0)
    assert not may_be_forgotten(found, CRASH - 2.0)


def test_what_may_be_forgotten() -> None:
    found = views()
    assert may_be_forgotten(found, CRASH - 4.0) and may_be_forgotten(found, CRASH)
    assert not may_be_forgotten(found, CRASH - 20.0) and not may_be_forgotten(found, CRASH + 5.0)
