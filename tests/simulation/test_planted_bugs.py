"""The fuzzer finds bugs: each of five, planted into a copy of the tree, within a minute."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from planted import PLANTED

ROOT = Path(__file__).parents[2]


def fuzz(tree: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command of that tree, and of no other."""
    return subprocess.run(
        [sys.executable, "-m", "juice_sim.cli.main", "fuzz", "--json", "--no-shrink", *options],
        cwd=tree,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=240,
    )


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of what the simulation runs."""
    for name in ("juice_sim", "fake_cluster", "hooks"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.name)
def test_a_planted_bug_is_found_within_a_minute(bug, tree):
    bug.apply(tree)
    done = fuzz(tree, "--time", "60", "--fail-fast")
    assert done.returncode == 1, done.stdout[-2000:] + done.stderr[-2000:]
    *failures, summary = [json.loads(line) for line in done.stdout.splitlines()]
    assert summary["failed"]
    assert {check for failure in failures for check in failure["checks"]} & set(bug.seen_by), failures[0]
    assert f"--first-seed {failures[0]['seed']}" in failures[0]["replay"]
    assert failures[0]["story"]
