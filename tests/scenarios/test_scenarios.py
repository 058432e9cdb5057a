"""The shipped scenarios hold what they promise, and the controller keeps what it has acknowledged."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fake_cluster.history import ControllerEvent, FaultInjected, History, HookRun, LogCompared
from fake_cluster.scenario import Fault, When
from fake_cluster.scenario_load import load_scenario, shipped
from fake_cluster.scenario_run import Outcome, run_scenario

pytestmark = pytest.mark.slow


def figures(outcome: Outcome) -> dict[str, Any]:
    """results.json as it stands on disk, after what must hold in every run has been asserted."""
    results: dict[str, Any] = json.loads((outcome.report_dir / "results.json").read_text())
    assert results["invariants"]["violations"] == [], results["invariants"]["violations"][0]["story"]
    assert results["sessions"]["leaked"] == 0
    assert results["gpus"]["overcommitted_bytes"] == 0
    assert results["jobs"]["unfinished"] == 0
    assert outcome.ok
    assert outcome.directory is None  # a run without fault leaves nothing behind
    html = (outcome.report_dir / "report.html").read_text()
    assert "checks hold" in html and "://" not in html.split("<pre>")[0].replace("data:,", "")
    return results


@pytest.mark.timeout(200)
def test_quickstart(tmp_path: Path) -> None:
    results = figures(run_scenario(load_scenario(shipped()["quickstart"]), cluster="none", report_dir=tmp_path))
    assert results["jobs"]["completed"] == results["jobs"]["submitted"] == 100
    assert results["sessions"]["granted"] == 84
    assert results["waits"]["prolog_p50_s"] > 0


@pytest.mark.timeout(300)
def test_contention(tmp_path: Path) -> None:
    results = figures(run_scenario(load_scenario(shipped()["contention"]), cluster="none", report_dir=tmp_path))
    assert results["jobs"]["completed"] == results["jobs"]["submitted"] == 120
    assert results["jobs"]["requeues"] >= 40
    assert results["gpus"]["peak_vram_bytes"] == results["gpus"]["vram_bytes"]


@pytest.mark.timeout(300)
def test_bad_day(tmp_path: Path) -> None:
    scenario = load_scenario(shipped()["bad-day"])
    outcome = run_scenario(scenario, cluster="none", report_dir=tmp_path)
    results = figures(outcome)
    injected = {fault.kind for fault in History.load(tmp_path / "history.jsonl").of(FaultInjected)}
    assert injected == {fault.kind for fault in scenario.faults}
    assert results["jobs"]["submitted"] == 102
    assert results["sessions"]["denied"] == 2
    hopeless = [job for job in outcome.views.jobs.values() if job.group == "hopeless"]
    assert len(hopeless) == 2
    for job in hopeless:
        assert "gpu" in "\n".join(outcome.views.job_story(job.job_id)).lower()


@pytest.mark.timeout(400)
def test_a_controller_killed_twenty_times_loses_nothing_that_it_has_acknowledged(tmp_path: Path) -> None:
    contention = load_scenario(shipped()["contention"])
    kills = Fault("controller_killed", When(at=2.0, every=1.8, times=20), lasts=0.3)
    scenario = replace(
        contention,
        faults=[kills],
        jobs=[replace(group, count=28) for group in contention.jobs],
        hooks=replace(contention.hooks, wait=5.0),
        checks=replace(contention.checks, min_requeues=None),
        time_limit=300.0,
    )
    outcome = run_scenario(scenario, cluster="none", report_dir=tmp_path)
    results = figures(outcome)
    history = History.load(tmp_path / "history.jsonl")
    assert len(history.of(FaultInjected)) == 20
    assert results["jobs"]["completed"] == 84
    # Every event that anybody was told is in the log at the end, unchanged, and nothing was left out of it.
    (compared,) = history.of(LogCompared)
    assert compared.differences == ()
    numbers = [entry.seq for entry in history.of(ControllerEvent)]
    assert sorted(numbers) == list(range(1, compared.events + 1))
    # Every session that a prolog was given is there, and was closed.
    given = {run.session_id[:8] for run in history.of(HookRun) if run.verdict == "granted"}
    closed = {session.id[:8] for session in outcome.views.sessions.values() if session.closed_at is not None}
    assert len(given) >= 80 and given <= closed


@pytest.mark.ray
@pytest.mark.timeout(400)
@pytest.mark.parametrize("name", ["quickstart", "contention"])
def test_on_a_fake_ray_cluster(name: str, tmp_path: Path) -> None:
    pytest.importorskip("ray")
    results = figures(run_scenario(load_scenario(shipped()[name]), cluster="autoscaling", report_dir=tmp_path))
    assert results["jobs"]["completed"] == results["jobs"]["submitted"]
    assert results["cluster"] == "autoscaling"
