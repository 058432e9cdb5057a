"""A few of the trials of `python -m benchmarks trials`: prologs interrupted at random moments on a real Slurm."""

from __future__ import annotations

import pytest

from benchmarks.trials import KINDS, measure

pytestmark = [pytest.mark.slurm, pytest.mark.compiler, pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_left_and_no_running_job_loses_its_session(kind: str) -> None:
    (figures,) = measure(5, (kind,), seed=7)
    assert figures.left_after == []
    assert figures.without_session == []
    assert figures.trials >= 5 and figures.beats > 0
    assert figures.jobs >= figures.trials
