"""The command, a fixed set of seeds, and what a failing run looks like."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from planted import PLANTED

from fake_cluster.simulation import fuzz
from fake_cluster.simulation.checks import could_serve
from fake_cluster.simulation.plan import GIB, Chances, ComponentPlan, JobPlan, Plan, PoolPlan, draw
from fake_cluster.simulation.record import JobAsked
from fake_cluster.simulation.world import World
from juice_sim.cli.main import main

# Seeds that have found something once; what, stands in docs/simulation.md.
FOUND = (15, 36, 308, 327, 343, 430, 764, 765, 1208, 1335, 2058)


@pytest.mark.parametrize("seed", [*range(1, 21), *FOUND])
def test_no_seed_is_violated(seed):
    verdict = fuzz.run_seed(seed)
    assert verdict.ok, "\n".join([*verdict.violations[0][:3], *verdict.violations[0][3]])
    assert verdict.counts["jobs"] > 0
    assert verdict.counts["hooks"] > 0


def calm(jobs, **settings):
    """A plan without faults: one pool of one agent with two GPUs."""
    pools = (PoolPlan("alpha", 1, 2, 24 * GIB),)
    return Plan(1, pools, tuple(jobs), chaos=60.0, **settings)


def test_without_faults_each_job_gets_what_it_asked_for():
    half = ComponentPlan("alpha", 1, 12 * GIB)
    world = World(calm([JobPlan(n, float(n), 5.0, 1000, (half,)) for n in range(1, 5)]))
    record = world.run()
    assert record.quiet
    assert [run.ended - run.started for run in record.programs] == pytest.approx([5.0] * 4)
    assert len({run.session_id for run in record.programs}) == 4
    assert record.leftovers == []


def test_a_request_that_nothing_can_serve_fails_its_job_with_a_denial():
    world = World(calm([JobPlan(1, 0.0, 5.0, 1000, (ComponentPlan("alpha", 3),))]))
    record = world.run()
    assert record.programs == []
    assert [end.verdict for end in record.hooks if end.hook == "prolog"] == ["denied"]
    assert [change.state.value for change in record.jobs][-1] == "FAILED"


def test_an_oom_killed_prolog_never_lets_a_program_run_without_a_session():
    # slurmctld takes a prolog that dies by a signal for a success; the plugin on the node must refuse the job.
    jobs = [JobPlan(n, float(n), 5.0, 1000, (ComponentPlan("alpha", 1, GIB),)) for n in range(1, 41)]
    plan = calm(jobs, chances=Chances(hook_killed=0.9))
    record = World(plan).run()
    assert sum(end.killed for end in record.hooks) > 10
    assert record.quiet
    assert fuzz.check(plan, record) == []


@pytest.mark.parametrize(
    ("gpus", "vram", "strict", "possible"),
    [
        (1, None, False, True),
        (2, None, False, True),
        (3, None, False, False),
        (1, 24 * GIB, True, True),
        (1, 24 * GIB + 1, True, False),
        (1, 24 * GIB * 100 // 93, False, True),
        (1, 24 * GIB * 100 // 93 + 1, False, False),
    ],
)
def test_the_oracle_of_denials(gpus, vram, strict, possible):
    asked = JobAsked(1, 1, 1000, 1, "alpha", gpus, vram, strict)
    assert could_serve(calm([]), asked) is possible


def test_plans_are_of_all_kinds():
    plans = [draw(seed) for seed in range(1, 200)]
    assert {fault.kind for plan in plans for fault in plan.faults} == set(fuzz_kinds())
    assert any(plan.forgetful for plan in plans) and not all(plan.forgetful for plan in plans)
    assert any(not plan.faults and not plan.mishaps for plan in plans)
    assert any(job.array for plan in plans for job in plan.jobs)
    assert any(len(job.components) > 1 for plan in plans for job in plan.jobs)


def fuzz_kinds():
    from fake_cluster.simulation.plan import FAULTS

    return FAULTS


def test_the_command_tells_a_summary_last(capsys):
    assert main(["fuzz", "--seeds", "2", "--workers", "1"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("2 seeds in ")
    assert main(["fuzz", "--seeds", "2", "--workers", "2", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert summary["seeds"] == 2
    assert summary["failed"] == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--seeds", "0"], "--seeds 0"),
        (["--time", "-1"], "--time -1"),
        (["--jobs", "0"], "--jobs 0"),
        (["--without-jobs", "x"], "--without-jobs"),
        (["--without-mishaps", "bad_luck"], "bad_luck"),
        (["--trace", "--seeds", "3"], "--trace"),
    ],
)
def test_bad_input_is_one_line_and_exit_2(options, said, capsys):
    assert main(["fuzz", *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_failing_run_is_cut_down_and_can_be_replayed(tmp_path):
    for name in ("juice_sim", "fake_cluster", "hooks"):
        root = Path(__file__).parents[2]
        shutil.copytree(root / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    next(bug for bug in PLANTED if bug.name == "no_idempotency").apply(tmp_path)

    def run(*options):
        return subprocess.run(
            [sys.executable, "-m", "juice_sim.cli.main", "fuzz", *options],
            cwd=tmp_path, env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True,
            timeout=280,
        )  # fmt: skip

    done = run("--time", "60", "--fail-fast", "--json")
    assert done.returncode == 1, done.stderr
    failure = json.loads(done.stdout.splitlines()[0])
    assert failure["check"] == "keys"
    assert "--without-" in failure["replay"]
    again = run(*failure["replay"].split()[2:])
    assert again.returncode == 1
    assert f"seed {failure['seed']} FAILS: keys: {failure['subject']}: {failure['message']}" in again.stdout
