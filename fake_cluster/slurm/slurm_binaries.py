"""Where Slurm's programs are: on PATH, below a prefix, or in a relocated tree of another Debian release."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

DAEMONS = ("slurmctld", "slurmd", "slurmstepd")
COMMANDS = ("sbatch", "srun", "scancel", "scontrol", "squeue", "sinfo")
SYSTEM_DIRECTORIES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
PREFIX_DIRECTORIES = ("sbin", "bin", "usr/sbin", "usr/bin", "usr/local/sbin", "usr/local/bin")
RELOCATED = "relocated"  # made by trixie_tree.py in its tree: programs that run where they stand, without chroot


class SlurmNotFound(Exception):
    """A program is missing; `str(error)` says which and how to get it."""


@dataclass(frozen=True)
class SlurmBinaries:
    """The programs of one Slurm installation, by name, with the version that it states."""

    programs: dict[str, Path]
    version: tuple[int, int, int]
    plugin_dir: Path | None = None  # None: what was compiled in

    @property
    def version_text(self) -> str:
        """As Slurm's releases are called, e.g. `22.05.8`."""
        return "{}.{:02}.{}".format(*self.version)

    def __getitem__(self, name: str) -> Path:
        return self.programs[name]

    def link_daemons(self, directory: Path) -> dict[str, Path]:
        """Links to the daemons under their own names. Slurm looks at the name under which it was started: Debian's
        `slurmctld-wlm`, started as that, silently runs neither PrologSlurmctld nor EpilogSlurmctld."""
        directory.mkdir(parents=True, exist_ok=True)
        links = {}
        for name in DAEMONS:
            links[name] = directory / name
            links[name].symlink_to(self.programs[name].resolve())
        return links


def remedy(prefix: Path | None) -> str:
    if prefix is None:
        return "on Debian or Ubuntu: apt-get install slurmctld slurmd slurm-client munge; elsewhere put Slurm on PATH"
    return f"{prefix} should hold sbin/slurmctld and bin/srun of an installed Slurm, or a tree made by trixie_tree.py"


def _search(prefix: Path | None) -> list[Path]:
    if prefix is None:
        paths = [Path(entry) for entry in os.environ.get("PATH", "").split(os.pathsep) if entry]
        return [*paths, *(Path(entry) for entry in SYSTEM_DIRECTORIES)]
    if (prefix / RELOCATED).is_dir():
        return [prefix / RELOCATED]
    return [prefix / entry for entry in PREFIX_DIRECTORIES]


def _find(name: str, directories: list[Path]) -> Path | None:
    for directory in directories:
        for candidate in (directory / name, directory / f"{name}-wlm"):
            # Not Path.is_file: a directory on PATH may be closed to us.
            if os.path.isfile(candidate) and os.access(candidate, os.X_OK):
                return candidate
    return None


def find_slurm(prefix: Path | None = None) -> SlurmBinaries:
    """Find every program that a private Slurm needs. munged may come from the system also when a prefix is given:
    its protocol is the same. Raises SlurmNotFound."""
    directories = _search(prefix)
    programs: dict[str, Path] = {}
    missing = []
    for name in (*DAEMONS, *COMMANDS):
        found = _find(name, directories)
        if found is None:
            missing.append(name)
        else:
            programs[name] = found
    for name in ("munged", "mungekey"):
        found = _find(name, directories) or _find(name, _search(None))
        if found is not None:
            programs[name] = found
        elif name == "munged":
            missing.append(name)
    if missing:
        where = "on PATH or in the system's directories" if prefix is None else f"below {prefix}"
        raise SlurmNotFound(f"no {', '.join(missing)} {where}; {remedy(prefix)}")
    plugins = prefix / RELOCATED / "plugins" if prefix is not None else None
    return SlurmBinaries(programs, _version(programs["slurmctld"]), plugins if plugins and plugins.is_dir() else None)


def _version(slurmctld: Path) -> tuple[int, int, int]:
    try:
        text = subprocess.run([slurmctld, "-V"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SlurmNotFound(f"{slurmctld} -V does not work: {error}") from None
    found = re.search(r"(\d+)\.(\d+)\.(\d+)", text)
    if found is None:
        raise SlurmNotFound(f"{slurmctld} -V printed {text!r}, which holds no version")
    return int(found[1]), int(found[2]), int(found[3])
