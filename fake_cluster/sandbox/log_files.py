"""The logs of a sandbox: which files they are, their ends, and what is added to them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from .places import Place

POLL_S = 0.2
_PATTERNS = {
    "controller": ("juice/controller.log",),
    "agents": ("juice/agent-*.out",),
    "hooks": ("state/hooks.log",),
    "slurmctld": ("slurm/log/slurmctld.log",),
    "slurmd": ("slurm/log/slurmd-*.log",),
    "munged": ("slurm/log/munged.log",),
    "sandbox": ("sandbox.log",),
}


def _label(source: str, path: Path) -> str:
    """`agents` and `slurmd` are several: the file's name tells which."""
    return path.stem.removeprefix("agent-").removeprefix("slurmd-") if source in ("agents", "slurmd") else source


def log_files(directory: Path, sources: Sequence[str]) -> list[tuple[str, Path]]:
    """(label, file) of those that are there now."""
    return [
        (_label(source, path), path)
        for source in sources
        for pattern in _PATTERNS[source]
        for path in sorted(directory.glob(pattern))
    ]


def tail(path: Path, lines: int) -> tuple[str, int]:
    """The last lines, and the offset up to which the file was read: the end of its last whole line."""
    size = 64 * 1024
    with path.open("rb") as file:
        end = file.seek(0, 2)
        while True:
            start = max(0, end - size)
            file.seek(start)
            data = file.read(end - start)
            if start == 0 or data.count(b"\n") > lines:
                break
            size *= 4
    whole = data[: data.rfind(b"\n") + 1]
    chosen = whole.splitlines()[-lines:] if lines else []
    return b"\n".join(chosen).decode("utf-8", "replace"), end - (len(data) - len(whole))


class Follower:
    """Tells what is added to the logs, files that appear later included. `seen` says where to begin."""

    def __init__(self, directory: Path, sources: Sequence[str]) -> None:
        self._directory = directory
        self._sources = sources
        self._offsets: dict[Path, int] = {}

    def seen(self, path: Path, offset: int) -> None:
        self._offsets[path] = offset

    def poll(self, tell: Callable[[str, str], None]) -> None:
        """Tell each new whole line once."""
        for label, path in log_files(self._directory, self._sources):
            offset = self._offsets.get(path, 0)
            try:
                with path.open("rb") as file:
                    if file.seek(0, 2) < offset:
                        offset = 0  # begun anew
                    file.seek(offset)
                    data = file.read()
            except FileNotFoundError:
                continue
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = offset + len(whole)
            for line in whole.splitlines():
                tell(label, line.decode("utf-8", "replace"))

    def follow(self, tell: Callable[[str, str], None], place: Place) -> None:
        """Until the sandbox is down."""
        while True:
            runs = place.runs
            self.poll(tell)
            if not runs:
                return
            time.sleep(POLL_S)
