"""Where sandboxes are: one private directory of the user's with an entry for each, found by name.

`BASE/NAME.json` says in which directory sandbox NAME lies (`BASE/NAME` unless `--directory` said otherwise). In that
directory: `sandbox.json` (what was asked for), `processes.json` (who runs), `ready.json` (once it is up), the control
socket, all logs and all state. What holds ids of sessions or addresses is 0600.
"""

from __future__ import annotations

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .processes import Process
from .spec import DEFAULT_NAME, BadSpec, SandboxSpec, check_name

NAME_VARIABLE = "JUICE_SIM_SANDBOX"
"""In the environment of a sandbox's shell: its name, so that commands there need no `--name`."""


class NoSandbox(Exception):
    """There is no such sandbox, or it does not run; `str(error)` is one line that says what to do."""


def base() -> Path:
    """The user's directory of sandboxes, made when missing. NoSandbox when somebody else owns or may write it."""
    path = Path(tempfile.gettempdir()).resolve() / f"juice-sim-{os.getuid()}"
    try:
        path.mkdir(mode=0o711)
        path.chmod(0o711)  # jobs of other users must get through to session files
    except FileExistsError:
        pass
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise NoSandbox(f"{path} is not a directory that only you can write to; remove it, or set TMPDIR")
    return path


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Write a file that only its owner can read, whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(handle, "w", encoding="utf-8") as file:
        json.dump(value, file, indent=1)
        file.write("\n")
    os.replace(temporary, path)


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        raise NoSandbox(f"{path} cannot be read: {error}") from None
    return value if isinstance(value, dict) else None


@dataclass(frozen=True)
class Place:
    """One sandbox's name and directory; the files in it are made by `up`, its keeper and its server."""

    name: str
    directory: Path

    @property
    def entry(self) -> Path:
        return base() / f"{self.name}.json"

    @property
    def control_socket(self) -> Path:
        return self.directory / "control.sock"

    @property
    def server_log(self) -> Path:
        return self.directory / "sandbox.log"

    @property
    def commands_dir(self) -> Path:
        """The stand-in commands of a simulated Slurm."""
        return self.directory / "bin"

    def spec(self) -> SandboxSpec:
        """NoSandbox when the directory is none of a sandbox."""
        value = _read_json(self.directory / "sandbox.json")
        if value is None:
            raise NoSandbox(f"{self.directory} does not hold a sandbox; run: juice-sim down --name {self.name}")
        return SandboxSpec.from_json(value)

    def ready(self) -> dict[str, Any]:
        """What `server.py` wrote once everything was up; NoSandbox before that."""
        value = _read_json(self.directory / "ready.json")
        if value is None:
            raise NoSandbox(f"sandbox {self.name!r} is not up yet; see: juice-sim logs --name {self.name} sandbox")
        return value

    def record(self, role: str, *pids: int) -> None:
        """Note processes under a role (`keeper`, `server`, `daemons`): the ones to stop, and no others."""
        known = _read_json(self.directory / "processes.json") or {}
        found = [process for process in map(Process.of, pids) if process is not None]
        known[role] = [[process.pid, process.started] for process in found]
        write_json(self.directory / "processes.json", known)

    def processes(self, role: str) -> list[Process]:
        """The processes of a role that live."""
        known = _read_json(self.directory / "processes.json") or {}
        return [process for process in (Process(*pair) for pair in known.get(role, ())) if process.alive]

    @property
    def runs(self) -> bool:
        return bool(self.processes("server") or self.processes("keeper"))

    def remove(self) -> None:
        """Remove directory and entry. Only a directory that `create` has marked is removed."""
        if (self.directory / "sandbox.json").exists():
            # The mark goes last: what an interrupted removal leaves can still be removed.
            for path in self.directory.iterdir():
                if path.name == "sandbox.json":
                    continue
                if path.is_dir() and not path.is_symlink():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
            shutil.rmtree(self.directory, ignore_errors=True)
        self.entry.unlink(missing_ok=True)


def known() -> list[Place]:
    """All sandboxes of this user, by name."""
    places = []
    for path in sorted(base().glob("*.json")):
        value = _read_json(path)
        if value is not None and path.stem == value.get("name"):
            places.append(Place(path.stem, Path(value["directory"])))
    return places


def find(name: str | None) -> Place:
    """The sandbox of that name; without one, that of the shell we are in, or the only one. NoSandbox, BadSpec."""
    places = {place.name: place for place in known()}
    wanted = name if name is not None else os.environ.get(NAME_VARIABLE) or None
    if wanted is not None:
        check_name(wanted)
        if wanted in places:
            return places[wanted]
        there = f"there {'is' if len(places) == 1 else 'are'} {', '.join(places)}" if places else "there is none"
        raise NoSandbox(f"no sandbox {wanted!r}; {there}; to start it: juice-sim up --name {wanted}")
    if DEFAULT_NAME in places:
        return places[DEFAULT_NAME]
    if len(places) == 1:
        return next(iter(places.values()))
    if not places:
        raise NoSandbox("no sandbox is up; start one: juice-sim up")
    raise NoSandbox(f"there are several sandboxes: {', '.join(places)}; choose one with --name")


def create(spec: SandboxSpec, directory: Path | None) -> Place:
    """Make the directory and the entry. NoSandbox when the name is taken, BadSpec for a directory that will not do."""
    taken = next((place for place in known() if place.name == spec.name), None)
    if taken is not None:
        state = "is up already" if taken.runs else "was left by a supervisor that is gone"
        raise NoSandbox(
            f"sandbox {spec.name!r} {state} (in {taken.directory}); use it: juice-sim shell --name {spec.name}, "
            f"stop it: juice-sim down --name {spec.name}, or start another one with --name"
        )
    path = (base() / spec.name) if directory is None else directory.absolute()
    try:
        path.mkdir(parents=True, exist_ok=True)
        if any(path.iterdir()):
            raise BadSpec(f"--directory {path}: it is not empty; accepted: a new or an empty directory")
        path = path.resolve()
        path.chmod(0o755)
        write_json(path / "sandbox.json", spec.as_json())
    except OSError as error:
        raise BadSpec(f"--directory {path}: {error.strerror}") from None
    place = Place(spec.name, path)
    write_json(place.entry, {"name": spec.name, "directory": str(path)})
    return place
