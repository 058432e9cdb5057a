"""Same seed, same run: byte for byte, in another process, whatever the hash seed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fake_cluster.simulation import fuzz
from fake_cluster.simulation.plan import draw

ROOT = Path(__file__).parents[2]
SEEDS = (4, 16, 178)  # quiet, forgetful, crowded


def trace(seed: int) -> list[str]:
    lines: list[str] = []
    fuzz.trace_lines(draw(seed), lines.append)
    return lines


@pytest.mark.parametrize("seed", SEEDS)
def test_two_runs_of_one_seed_are_the_same(seed):
    first = trace(seed)
    assert len(first) > 100
    assert first == trace(seed)


def test_a_trace_has_fixed_columns_and_times_that_never_go_back():
    before = 0.0
    for line in trace(4):
        at = float(line[:12])
        assert at >= before
        assert line[12] == " " and line[13] != " " and "\n" not in line
        before = at


def test_the_hash_seed_changes_nothing():
    outputs = []
    for hash_seed in ("0", "1", "4711"):
        done = subprocess.run(
            [sys.executable, "-m", "juice_sim.cli.main", "fuzz", "--first-seed", "16", "--trace"],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            capture_output=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stderr
        outputs.append(done.stdout)
    assert outputs[0] == outputs[1] == outputs[2]
    assert outputs[0].decode().splitlines() == [*trace(16), outputs[0].decode().splitlines()[-1]]


def test_another_seed_is_another_run():
    assert trace(4) != trace(5)


def test_tracing_does_not_change_a_run():
    lines: list[str] = []
    with_trace = fuzz.run_plan(draw(16), lines.append)
    assert fuzz.run_plan(draw(16)) == with_trace


def test_leaving_out_what_never_happens_leaves_the_rest_alone():
    plan = draw(16)
    assert fuzz.planned(16, None, fuzz.Cut()) == plan
    fewer = plan.without(jobs=[plan.jobs[0].number], faults=[fault.number for fault in plan.faults])
    assert fewer.jobs == plan.jobs[1:]
    assert fewer.faults == ()
    assert fewer.chances == plan.chances
