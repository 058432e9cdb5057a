"""What this machine can run, and how to get what is missing: probes for `juice-sim doctor` and for skipping tests."""

from __future__ import annotations

import ctypes.util
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

REQUIRE_VARIABLE = "JUICE_SIM_REQUIRE"
"""Comma-separated names of capabilities that must be there: a test that lacks one fails instead of being skipped."""


@dataclass(frozen=True)
class Capability:
    """One thing that a machine can or cannot do. `remedy` is one line, empty when `ok`."""

    name: str
    ok: bool
    detail: str
    used_for: str
    remedy: str = ""


def required() -> frozenset[str]:
    """The capabilities that the environment says must be there. Raises ValueError for a name that is none."""
    names = frozenset(name.strip() for name in os.environ.get(REQUIRE_VARIABLE, "").split(",") if name.strip())
    unknown = names - PROBES.keys()
    if unknown:
        raise ValueError(f"{REQUIRE_VARIABLE}: unknown {', '.join(sorted(unknown))}; accepted: {', '.join(PROBES)}")
    return names


def probe(name: str) -> Capability:
    """Look for one capability. Costs up to a few seconds (the Docker engine is asked); nothing is started."""
    return PROBES[name]()


def _debian() -> bool:
    return shutil.which("apt-get") is not None


def _install(packages: str) -> str:
    prefix = "" if os.geteuid() == 0 else "sudo "
    if _debian():
        return f"{prefix}apt-get install {packages}"
    return f"install the equivalents of Debian's packages {packages} with this system's package tool"


def _first_line(*command: str, timeout_s: float = 10.0) -> tuple[bool, str]:
    """Run a command; (it succeeded, the first line it printed)."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired) as error:
        return False, str(error)
    ok = done.returncode == 0
    # A client that fails may still have printed half an answer: its reason is on standard error.
    streams = (done.stdout, done.stderr) if ok else (done.stderr, done.stdout)
    lines = "\n".join(streams).strip().splitlines()
    return ok, lines[0] if lines else f"exit code {done.returncode}"


def _python() -> Capability:
    found = ".".join(map(str, sys.version_info[:3]))
    ok = sys.version_info >= (3, 10)
    return Capability("python", ok, found, "everything", "" if ok else "install Python 3.10 or newer")


def _ray() -> Capability:
    purpose = "the fake multi-node cluster (run --cluster autoscaling)"
    try:
        return Capability("ray", True, version("ray"), purpose)
    except PackageNotFoundError:
        return Capability("ray", False, "not installed", purpose, f"{sys.executable} -m pip install 'ray[default]'")


def _slurm() -> Capability:
    purpose = "the real Slurm back end (run --slurm real)"
    missing = [tool for tool in ("slurmctld", "slurmd", "srun", "munged") if _which(tool) is None]
    if missing:
        remedy = _install("slurmctld slurmd slurm-client munge")
        return Capability("slurm", False, f"not found: {', '.join(missing)}", purpose, remedy)
    ok, text = _first_line(str(_which("slurmctld")), "-V")
    return Capability("slurm", ok, text, purpose, "" if ok else _install("--reinstall slurmctld slurmd"))


def _which(tool: str) -> str | None:
    # Daemons live in sbin, which a plain user's PATH often lacks.
    return shutil.which(tool, path=os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"]))


def spank_plugins(named: Sequence[str]) -> list[Capability]:
    """One capability per SPANK plugin: those `named`, else those that the plugstack.conf of this machine's Slurm
    loads. `ok` means that it was built for the release of that Slurm."""
    from . import spank_build
    from .resources import spank_plugin_dir

    plugins = [Path(name).absolute() for name in named] or spank_build.configured_plugins()
    loaders: dict[str, spank_build.Version] = {}
    # Only these load plugins; slurmctld is asked where there is nothing else.
    for tools in (("srun", "slurmd"), ("slurmctld",)):
        for tool in tools if plugins and not loaders else ():
            path = _which(tool)
            # srun does not even tell its version where there is no slurm.conf.
            ok, text = _first_line(path, "-V") if path else (False, "")
            version = spank_build.version_of(text) if ok else None
            if version is not None:
                loaders[tool] = version
    source = str(spank_plugin_dir())
    judged = [spank_build.judge(plugin, loaders, source) for plugin in plugins]
    return [Capability("juice.so", one.fits, one.detail, "jobs with Juice options", one.remedy) for one in judged]


def _docker() -> Capability:
    purpose = "Ray's fake clusters in containers"
    import docker  # here, because it costs 0.2 s and most commands never ask

    try:
        client = docker.from_env(timeout=10)
        try:
            engine = f"engine {client.version()['Version']}"
        finally:
            client.close()
    except docker.errors.DockerException as error:
        detail = f"no engine: {str(error).partition('(')[0].strip(' :')}"
        return Capability("docker", False, detail, purpose, f"{_install('docker.io')}, then start dockerd")
    compose, text = _first_line("docker", "compose", "version")
    if not compose:
        return Capability("docker", False, f"{engine}, no compose V2", purpose, "install the Docker Compose V2 plugin")
    return Capability("docker", True, f"{engine}, {text}", purpose)


def _compiler() -> Capability:
    purpose = "building the SPANK plugin"
    tools = {tool: shutil.which(tool) for tool in ("cc", "make")}
    header = next((d for d in ("/usr/include", "/usr/local/include") if os.path.exists(f"{d}/slurm/spank.h")), None)
    missing = [tool for tool, path in tools.items() if path is None] + ([] if header else ["slurm/spank.h"])
    if missing:
        remedy = _install("gcc make libslurm-dev libsodium-dev")
        return Capability("compiler", False, f"not found: {', '.join(missing)}", purpose, remedy)
    return Capability("compiler", True, _first_line("cc", "--version")[1], purpose)


def _libsodium() -> Capability:
    purpose = "sealing and opening session files"
    shared = ctypes.util.find_library("sodium")
    if shared:
        return Capability("libsodium", True, shared, purpose)
    if importlib.util.find_spec("nacl"):
        return Capability("libsodium", True, "bundled with PyNaCl (the SPANK plugin needs the library itself)", purpose)
    return Capability("libsodium", False, "not found", purpose, _install("libsodium23 python3-nacl"))


def _slurm_tree() -> Capability:
    purpose = "the tests on a second Slurm release (24.11)"
    # fake_cluster is the layer above; only this probe looks there, because the tree is its business.
    from fake_cluster.slurm.trixie_tree import TREE_VARIABLE, tree_missing

    reason = tree_missing()
    if reason is None:
        return Capability("slurm-tree", True, os.environ[TREE_VARIABLE], purpose)
    remedy = f"{sys.executable} -m fake_cluster.slurm.trixie_tree DIRECTORY, then set {TREE_VARIABLE} to its full path"
    return Capability("slurm-tree", False, reason.partition(";")[0], purpose, remedy)


def _tool(name: str, *, package: str, used_for: str) -> Callable[[], Capability]:
    def look() -> Capability:
        path = shutil.which(name)
        return Capability(name, path is not None, path or "not found", used_for, "" if path else _install(package))

    return look


def hook_python() -> str:
    """The interpreter for the hooks here: the system's when it finds libsodium or PyNaCl, else this one."""
    system = "/usr/bin/python3"
    load = "import ctypes, site; site.main()\ntry: ctypes.CDLL('libsodium.so.23')\nexcept OSError: import nacl.bindings"
    ok, _ = _first_line(system, "-I", "-S", "-c", load)
    return system if ok else os.path.abspath(sys.executable)


PROBES: dict[str, Callable[[], Capability]] = {
    "python": _python,
    "ray": _ray,
    "slurm": _slurm,
    "docker": _docker,
    "compiler": _compiler,
    "libsodium": _libsodium,
    "slurm-tree": _slurm_tree,
    "clang": _tool("clang", package="clang clang-tidy", used_for="fuzzing and linting the SPANK plugin"),
    "valgrind": _tool("valgrind", package="valgrind", used_for="the leak tests of the SPANK plugin"),
}
