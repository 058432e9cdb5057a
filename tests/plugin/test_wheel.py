"""The wheel, installed away from the checkout: what it ships is found and works."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

PROBE = """
import juice_sim, fake_cluster
from juice_sim import resources
assert {away!r} in juice_sim.__file__ and {away!r} in fake_cluster.__file__, juice_sim.__file__
for name in ("juice-config.sh", "juice-prolog.sh", "juice-epilog.sh", "juice_hook.py"):
    assert (resources.hooks_dir() / name).is_file(), name
assert (resources.spank_plugin_dir() / "Makefile").is_file()
assert (resources.scenarios_dir() / "quickstart.yaml").is_file()
assert resources.example_yaml().is_file()
print("complete")
"""

JOB = """
def test_a_job_gets_its_gpu(juice_controller, slurm):
    juice_controller.add_pool("test", agents=1, gpus=2, model="A10")
    job = slurm.wait(slurm.sbatch("#!/bin/sh\\n#SBATCH --juice-pool=test\\nhostname"))
    assert job.state == "COMPLETED"
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content in a directory, its dependencies being those of this environment."""
    work = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(work), str(ROOT)]
    subprocess.run(build, check=True, capture_output=True, timeout=200)
    (wheel,) = work.glob("juice_sim-*.whl")
    target = work / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    subprocess.run(install, check=True, capture_output=True, timeout=200)
    return target


def run(installed: Path, directory: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "PYTHONPATH": str(installed)}
    return subprocess.run(
        [sys.executable, *arguments], cwd=directory, env=env, capture_output=True, text=True, timeout=200
    )


def test_everything_that_ships_is_found(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "-c", PROBE.format(away=str(installed)))
    assert done.stdout == "complete\n", done.stderr


def test_a_job_runs_from_the_installed_wheel(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "test_job.py").write_text(JOB)
    done = run(installed, tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_job.py")
    assert done.returncode == 0 and "1 passed" in done.stdout, done.stdout + done.stderr


def test_the_command_names_the_shipped_scenarios(installed: Path, tmp_path: Path) -> None:
    done = run(installed, tmp_path, "-m", "juice_sim.cli.main", "run", "no-such-scenario")
    assert done.returncode == 2
    assert "quickstart" in done.stderr and "Traceback" not in done.stderr
