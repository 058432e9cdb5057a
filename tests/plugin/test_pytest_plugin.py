"""The fixtures, used as their users use them: in test files of their own, run by a pytest of their own."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

pytest_plugins = ["pytester"]

README = Path(__file__).parents[2] / "README.md"

THREE_LINES = """
def test_a_job_gets_its_gpu(juice_controller, slurm):
    juice_controller.add_pool("test", agents=1, gpus=2, model="A10")
    job = slurm.wait(slurm.sbatch("#!/bin/sh\\n#SBATCH --juice-pool=test\\nhostname"))
    assert job.state == "COMPLETED"
"""


def run(pytester: pytest.Pytester, *arguments: str) -> pytest.RunResult:
    return pytester.runpytest_subprocess("-q", "-p", "no:cacheprovider", *arguments, timeout=240)


def test_three_lines_run_a_job_on_the_simulated_slurm(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(THREE_LINES)
    run(pytester).assert_outcomes(passed=1)


@pytest.mark.slurm
@pytest.mark.compiler
def test_the_same_three_lines_run_on_a_real_slurm(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(THREE_LINES)
    run(pytester, "--juice-slurm=simulated,real").assert_outcomes(passed=2)


def test_the_readme_shows_a_test_that_passes(pytester: pytest.Pytester) -> None:
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    shown = [block for block in blocks if "def test_" in block]
    assert shown, "README.md shows no test"
    pytester.makepyfile(*shown)
    result = run(pytester)
    assert result.parseoutcomes().get("passed", 0) == sum(block.count("def test_") for block in shown)


def test_a_job_that_can_never_be_served_fails_with_the_reason(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        def test_denied(juice_controller, slurm):
            juice_controller.add_pool("test", agents=1, gpus=2)
            done = slurm.srun(["true"], ["--juice-pool=test", "--juice-gpu-count=3"])
            assert done.returncode == 1
            assert "3 GPUs" in done.stderr or "gpus" in done.stderr
    """)
    run(pytester).assert_outcomes(passed=1)


def test_fixtures_are_apart_under_xdist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.mark.parametrize("number", range(4))
        def test_own_state(number, juice_controller, juice_hooks):
            assert juice_controller.client.pools() == []
            juice_controller.add_pool("test")
            assert [pool.name for pool in juice_controller.client.pools()] == ["test"]
            assert juice_hooks.prolog.exists()
    """)
    run(pytester, "-n", "2").assert_outcomes(passed=4)


def test_nothing_is_left_behind(pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    pytester.makepyfile(THREE_LINES)
    result = run(pytester)
    result.assert_outcomes(passed=1)
    assert [path.name for path in temporary.iterdir() if path.name.startswith("juice")] == []
    mark = f"TMPDIR={temporary}".encode()
    left = []
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            if mark in (process / "environ").read_bytes():
                left.append((process / "cmdline").read_bytes())
        except (FileNotFoundError, PermissionError, ProcessLookupError):
            continue  # ended meanwhile, or another user's
    assert left == []


def test_an_unknown_back_end_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(THREE_LINES)
    result = run(pytester, "--juice-slurm=pbs")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*'pbs'*accepted: simulated, real*"])


@pytest.mark.ray
def test_juice_cluster_serves_sessions_from_ray_actors(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        def test_cluster(juice_cluster):
            with juice_cluster.client() as client:
                assert len(client.agents()) == 2
    """)
    run(pytester).assert_outcomes(passed=1)


def test_a_fixture_slurm_of_somebody_else_is_left_alone(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        import pytest

        @pytest.fixture
        def slurm():
            return "mine"

        def test_mine(slurm):
            assert slurm == "mine"
    """)
    run(pytester).assert_outcomes(passed=1)
