"""The plugin, built from source once per worker and Slurm, in a real private Slurm whose prolog seals session files.

A test with `juice_slurm` or `build` runs on the installed Slurm and on that of the tree in $JUICE_SIM_SLURM_TREE.
"""

from __future__ import annotations

import json
import os
import pwd
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from fake_cluster.slurm.interface import Finished, Job, SlurmSettings, SubmitError
from fake_cluster.slurm.real import RealSlurm
from fake_cluster.slurm.trixie_tree import TREE_VARIABLE, tree_missing
from juice_sim.machine import REQUIRE_VARIABLE

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "spank-plugin"
PROLOG = Path(__file__).with_name("sealing_prolog.py")


@pytest.fixture(scope="session")
def open_directory() -> Iterator[Callable[[str], Path]]:
    """Make directories that every user can enter; pytest's own are closed to jobs of other users."""
    made: list[Path] = []

    def make_one(name: str) -> Path:
        made.append(Path(tempfile.mkdtemp(prefix=f"juice-{name}-")))
        made[-1].chmod(0o755)
        return made[-1]

    yield make_one
    for directory in made:
        shutil.rmtree(directory)


def copy_of_source(parent: Path) -> Path:
    ignored = shutil.ignore_patterns("build", "*.so", "*.deb")
    return Path(shutil.copytree(SOURCE, parent / "spank-plugin", ignore=ignored))


def run_make(source: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run make there; TESTS= leads to this repository's tests."""
    command = ["make", "-C", str(source), f"TESTS={ROOT / 'tests'}", f"PYTHON={sys.executable}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=250)


@pytest.fixture(scope="session")
def plugin_tree(open_directory: Callable[[str], Path]) -> Path:
    """A copy of the plugin's source: workers that run side by side must not build in one place."""
    return copy_of_source(open_directory("plugin"))


@pytest.fixture(scope="session")
def make(plugin_tree: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run make in the copy."""
    return lambda *targets: run_make(plugin_tree, *targets)


@pytest.fixture(scope="session")
def plugin(make: Callable[..., subprocess.CompletedProcess[str]], plugin_tree: Path) -> Path:
    """Built for the installed Slurm."""
    done = make("juice.so")
    assert done.returncode == 0, done.stderr
    return plugin_tree / "juice.so"


def slurm_tree() -> Path:
    """The tree of another Slurm; without one the test is skipped, or failed where JUICE_SIM_REQUIRE demands it."""
    if (reason := tree_missing()) is not None:
        if "slurm-tree" in os.environ.get(REQUIRE_VARIABLE, ""):
            pytest.fail(f"{REQUIRE_VARIABLE} demands slurm-tree: {reason}", pytrace=False)
        pytest.skip(reason)
    return Path(os.environ[TREE_VARIABLE]).absolute()


@pytest.fixture(scope="session")
def tree_build(open_directory: Callable[[str], Path]) -> Build:
    """Built against the headers of the tree, whose Slurm it is for."""
    tree = slurm_tree()
    source = copy_of_source(open_directory("plugin-24.11"))
    done = run_make(source, f"SLURM_CPPFLAGS=-I{tree}/usr/include", "juice.so")
    assert done.returncode == 0, done.stderr
    return Build(source / "juice.so", tree)


@dataclass(frozen=True)
class Build:
    """A plugin, and where the Slurm is that it was built for (None: the installed one)."""

    plugin: Path
    prefix: Path | None


@pytest.fixture(scope="session", params=[pytest.param("installed", marks=pytest.mark.slurm), "24.11"])
def build(request: pytest.FixtureRequest) -> Build:
    if request.param == "installed":
        return Build(request.getfixturevalue("plugin"), None)
    found: Build = request.getfixturevalue("tree_build")
    return found


@dataclass
class JuiceSlurm:
    """A real Slurm with the plugin. Jobs run as a plain user where that is possible."""

    slurm: RealSlurm
    directory: Path
    user_id: int | None

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def library(self) -> str:
        return f"{self.directory}/juice/libjuicejuda.so"

    def srun(self, *command: str, options: Sequence[str] = (), env: dict[str, str] | None = None) -> Finished:
        return self.slurm.srun(command, options, env=env, user_id=self.user_id)

    def sbatch(self, script: str, *options: str, env: dict[str, str] | None = None) -> int:
        options = ("--output=job-%j.out", "--error=job-%j.err", *options)
        return self.slurm.sbatch(script, options, env=env, user_id=self.user_id)

    def batch(self, script: str, *options: str, env: dict[str, str] | None = None) -> tuple[Job, str, str]:
        """Submit, wait for the end; the job, its output and its errors."""
        job_id = self.sbatch(script, *options, env=env)
        job = self.slurm.wait(job_id)
        return job, self.output(job_id), self.output(job_id, "err")

    def output(self, job_id: int, stream: str = "out") -> str:
        path = self.slurm.layout.work / f"job-{job_id}.{stream}"
        return path.read_text("utf-8", "replace") if path.exists() else ""

    def refused(self, *options: str, env: dict[str, str] | None = None) -> str:
        """What sbatch says when it refuses the options."""
        with pytest.raises(SubmitError) as raised:
            self.sbatch("true", *options, env=env)
        return str(raised.value)

    def seen(self, job_id: int) -> dict[str, str]:
        """The environment of the job's prolog."""
        found: dict[str, str] = json.loads((self.directory / "seen" / f"{job_id}.json").read_text())
        return found

    def wishes(self, job_id: int) -> dict[str, str]:
        """What the plugin handed to the prolog."""
        prefix = "SPANK_JUICE_"
        return {name.removeprefix(prefix): value for name, value in self.seen(job_id).items() if prefix in name}

    def shell(self, script: str, *arguments: str, env: dict[str, str] | None = None) -> Finished:
        """Run a shell script as the user, with Slurm's commands on its PATH."""
        user = self.slurm._user(self.user_id)
        uid, gid, groups = user or (None, None, None)
        done = subprocess.run(
            ["/bin/sh", "-c", script, "sh", *arguments],
            env=self.slurm.user_environment(env, self.user_id),
            cwd=self.slurm.layout.work,
            user=uid,
            group=gid,
            extra_groups=groups,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=120,
        )
        return Finished(done.returncode, done.stdout, done.stderr)

    def check_nodes(self) -> None:
        states = set(self.slurm.node_states().values())
        assert states <= {"idle", "mixed", "allocated", "completing"}, states


def plain_user() -> int | None:
    """Somebody else than root, so that a test sees what a user can and cannot read."""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None


def make_slurm(directory: Path, build: Build, arguments: Sequence[str] = ("wait=2",)) -> JuiceSlurm:
    """Not started. `arguments` follow the two paths in plugstack.conf; key= is added."""
    for name in ("state/sessions", "seen", "juice"):
        (directory / name).mkdir(parents=True, exist_ok=True)
    key = directory / "session.key"
    if not key.exists():
        key.touch(mode=0o600)
        key.write_bytes(secrets.token_bytes(32))
    prolog = directory / "prolog"
    prolog.write_text(f"#!{sys.executable} -I\n{PROLOG.read_text().replace('{directory}', str(directory))}")
    prolog.chmod(0o755)
    line = f"required {build.plugin} {directory}/juice/juice {directory}/state key={key} {' '.join(arguments)}"
    settings = replace(SlurmSettings(), prolog=prolog, plugstack=[line], cpus_per_node=8)
    return JuiceSlurm(RealSlurm(settings, prefix=build.prefix), directory, plain_user())


@pytest.fixture(scope="session")
def juice_slurm(build: Build, open_directory: Callable[[str], Path]) -> Iterator[JuiceSlurm]:
    running = make_slurm(open_directory("state"), build)
    with running.slurm:
        done = running.srun("true")
        assert done.returncode == 0, f"not even a job without options runs: {done.stderr}"
        yield running
