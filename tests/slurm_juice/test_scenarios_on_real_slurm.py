"""The shipped scenarios through real slurmctld, real slurmd, the real plugin and the real hooks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fake_cluster.scenario_load import load_scenario, shipped
from fake_cluster.scenario_run import run_scenario

pytestmark = [pytest.mark.slurm, pytest.mark.compiler, pytest.mark.slow, pytest.mark.timeout(600)]


def results_of(name: str, directory: Path) -> dict[str, Any]:
    outcome = run_scenario(load_scenario(shipped()[name]), slurm="real", cluster="none", report_dir=directory)
    results: dict[str, Any] = json.loads((directory / "results.json").read_text())
    violations = results["invariants"]["violations"]
    assert violations == [], "\n".join([violations[0]["message"], *violations[0]["story"]])
    assert outcome.ok and outcome.directory is None
    assert results["slurm"] == "real"
    assert results["sessions"]["leaked"] == 0
    assert results["gpus"]["overcommitted_bytes"] == 0
    return results


def test_contention(tmp_path: Path) -> None:
    results = results_of("contention", tmp_path)
    assert results["jobs"]["completed"] == results["jobs"]["submitted"] == 120
    assert results["jobs"]["requeues"] >= 40
    assert results["gpus"]["peak_vram_bytes"] == results["gpus"]["vram_bytes"]


def test_quickstart(tmp_path: Path) -> None:
    results = results_of("quickstart", tmp_path)
    assert results["jobs"]["completed"] == results["jobs"]["submitted"] == 100
    assert results["sessions"]["granted"] == 84


def test_bad_day(tmp_path: Path) -> None:
    """A slurmctld killed with signal 9 forgets jobs, so that fewer than all are known at the end."""
    results = results_of("bad-day", tmp_path)
    assert results["jobs"]["completed"] >= 60
    assert results["jobs"]["unfinished"] == 0
