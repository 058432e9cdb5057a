"""pytest fixtures: `juice_controller`, `juice_hooks`, `slurm`, `juice_cluster`.

All listen on free ports, keep their state in the test's own directory, work side by side under xdist and leave nothing
running. `slurm` runs a test once per back end: `--juice-slurm simulated,real` (or the ini option `juice_slurm`) chooses
them; the default is `simulated`.
"""

from __future__ import annotations

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from fake_cluster.juice_on_ray import JuiceOnRay
    from fake_cluster.slurm.interface import Slurm

    from .local import LocalJuice

BACK_ENDS = ("simulated", "real")


def pytest_addoption(parser: pytest.Parser) -> None:
    text = f"Slurm back ends of the fixture `slurm`, separated by commas: {', '.join(BACK_ENDS)}"
    parser.getgroup("juice-sim").addoption("--juice-slurm", metavar="NAME,..", default=None, help=text)
    parser.addini("juice_slurm", text, default="simulated")


def _back_ends(config: pytest.Config) -> list[str]:
    chosen = config.getoption("--juice-slurm") or config.getini("juice_slurm")
    names = [name.strip() for name in chosen.split(",") if name.strip()]
    if not names or not set(names) <= set(BACK_ENDS):
        raise pytest.UsageError(f"--juice-slurm {chosen!r}: accepted: {', '.join(BACK_ENDS)}, separated by commas")
    return names


def pytest_configure(config: pytest.Config) -> None:
    _back_ends(config)  # a wrong name is told at once, not as an error in each test


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "juice_slurm_back_end" in metafunc.fixturenames:
        metafunc.parametrize("juice_slurm_back_end", _back_ends(metafunc.config), indirect=True)


@dataclass(frozen=True)
class InstalledHooks:
    """The four files as an admin installs them, with a configuration for the test's controller."""

    directory: Path
    state_dir: Path
    key_file: Path

    @property
    def prolog(self) -> Path:
        """What slurm.conf calls PrologSlurmctld."""
        return self.directory / "juice-prolog.sh"

    @property
    def epilog(self) -> Path:
        """What slurm.conf calls EpilogSlurmctld."""
        return self.directory / "juice-epilog.sh"

    @property
    def log(self) -> str:
        """What the hooks have logged so far."""
        path = self.state_dir / "hooks.log"
        return path.read_text(errors="replace") if path.exists() else ""


@pytest.fixture
def juice_controller() -> Iterator[LocalJuice]:
    """A controller without agents, in this process; `juice_controller.add_pool("test", agents=1, gpus=2)` adds some."""
    from .local import LocalJuice

    with LocalJuice() as juice:
        yield juice


@pytest.fixture
def juice_directory() -> Iterator[Path]:
    """A directory with a short path that all users can enter, for state that hooks, nodes and sockets share."""
    directory = Path(tempfile.mkdtemp(prefix="juice-"))
    directory.chmod(0o755)
    yield directory
    shutil.rmtree(directory)


@pytest.fixture
def juice_hooks(juice_controller: LocalJuice, juice_directory: Path) -> InstalledHooks:
    """The real hooks, installed for `juice_controller` with its own state directory and key."""
    from .hooks_install import install_hooks
    from .machine import hook_python

    target = juice_directory / "hooks"
    state_dir = juice_directory / "state"
    install_hooks(
        target,
        controller_url=juice_controller.url,
        token=juice_controller.token,
        state_dir=state_dir,
        wait=20,
        python=hook_python(),
    )
    return InstalledHooks(target, state_dir, target / "session.key")


@pytest.fixture
def juice_slurm_back_end(request: pytest.FixtureRequest) -> str:
    """The name of the back end that `slurm` is of. A name of its own: other plugins may have a fixture `slurm` too."""
    return str(request.param)


@pytest.fixture
def slurm(
    request: pytest.FixtureRequest, juice_slurm_back_end: str, juice_hooks: InstalledHooks, juice_directory: Path
) -> Iterator[Slurm]:
    """A Slurm of two nodes of four CPUs whose PrologSlurmctld and EpilogSlurmctld are the real hooks."""
    from fake_cluster import client_library
    from fake_cluster.slurm.interface import SlurmSettings

    juice_dir = client_library.install(juice_directory)
    settings: dict[str, Any] = {
        "prolog": juice_hooks.prolog,
        "epilog": juice_hooks.epilog,
        "key_file": juice_hooks.key_file,
        "state_dir": juice_hooks.state_dir,
    }
    made: Slurm
    if juice_slurm_back_end == "simulated":
        from fake_cluster.slurm.simulated import SimulatedSlurm

        made = SimulatedSlurm(SlurmSettings(**settings), juice_dir=juice_dir)
    else:
        from fake_cluster.slurm.real import RealSlurm, available

        reason = available()
        if reason:
            _cannot("slurm", reason)
        plugin = _build_plugin(request)
        line = f"required {plugin} {juice_dir / 'juice'} {juice_hooks.state_dir} key={juice_hooks.key_file}"
        made = RealSlurm(SlurmSettings(plugstack=[line], **settings))
    with made:
        yield made


@pytest.fixture
def juice_cluster(juice_directory: Path) -> Iterator[JuiceOnRay]:
    """A fake Ray cluster with a controller actor and pool `test`: two agents of two A10 each, on a node each."""
    import ray

    from fake_cluster.autoscaling import AutoscalingCluster
    from fake_cluster.juice_on_ray import start_juice
    from fake_cluster.node_types import GpuPool, gpu_node_types

    if ray.is_initialized():
        pytest.fail("juice_cluster starts a Ray cluster, but this process is connected to one: call ray.shutdown()")
    pools = [GpuPool("test", agents=2, gpus=2, model="A10")]
    with AutoscalingCluster(head_resources={"CPU": 2}, worker_node_types=gpu_node_types(pools)) as cluster:
        try:
            with start_juice(pools, data_dir=juice_directory / "data", cluster=cluster) as juice:
                yield juice
        finally:
            ray.shutdown()


def _cannot(capability: str, reason: str) -> None:
    """Skip the test, or fail it where JUICE_SIM_REQUIRE demands the capability."""
    from . import machine

    if capability in machine.required():
        pytest.fail(f"{machine.REQUIRE_VARIABLE} demands {capability}: {reason}", pytrace=False)
    pytest.skip(f"{capability}: {reason}")


_plugin: Path | None = None


def _build_plugin(request: pytest.FixtureRequest) -> Path:
    """Build juice.so once per process, in a directory of its own that goes with the process's last test."""
    global _plugin
    if _plugin is None:
        from . import machine
        from .resources import spank_plugin_dir

        capability = machine.probe("compiler")
        if not capability.ok:
            _cannot("compiler", f"{capability.detail}; to get it: {capability.remedy}")
        directory = Path(tempfile.mkdtemp(prefix="juice-plugin-"))
        directory.chmod(0o755)
        request.config.add_cleanup(lambda: shutil.rmtree(directory))
        ignored = shutil.ignore_patterns("build", "*.so", "*.deb")
        tree = Path(shutil.copytree(spank_plugin_dir(), directory / "source", ignore=ignored))
        built = subprocess.run(["make", "-C", str(tree)], capture_output=True, text=True, timeout=300)
        if built.returncode != 0:
            pytest.fail(f"the SPANK plugin does not build:\n{built.stdout}{built.stderr}", pytrace=False)
        _plugin = tree / "juice.so"
    return _plugin
