"""A directory tree as a disk keeps it: what is written is seen at once, but only what was synced survives a power loss.

The promises are those of POSIX and a journalling file system, no more: `fsync` of a file keeps its content, `fsync` of
a directory keeps the names in it; without them a crash keeps any prefix of the changes of names in a directory, and of
a file that was not synced nothing, a part, NUL bytes, or all.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass
from random import Random


@dataclass
class Inode:
    """One file. `synced` is its content on the disk, None when it was never synced. `born` true time."""

    data: bytes = b""
    synced: bytes | None = None
    mode: int = 0o600
    changed: float = 0.0
    born: float = 0.0


class Disk:
    """Files by path (`folder/name`, or a bare name at the top). `wall()` stamps changes, as the file server does."""

    def __init__(self) -> None:
        self.files: dict[str, Inode] = {}
        self._kept: dict[str, Inode] = {}  # the names that are on the disk
        self._pending: dict[str, list[tuple[str, Inode | None]]] = {}  # folder -> changes of names since its last sync
        self.full = False

    def _change(self, path: str, inode: Inode | None) -> None:
        if inode is None:
            self.files.pop(path, None)
        else:
            self.files[path] = inode
        self._pending.setdefault(os.path.dirname(path), []).append((path, inode))

    def create(self, path: str, wall: float, now: float) -> Inode:
        """A new, empty file. OSError EEXIST, ENOSPC."""
        if path in self.files:
            raise OSError(errno.EEXIST, os.strerror(errno.EEXIST), path)
        self._room(path)
        inode = Inode(changed=wall, born=now)
        self._change(path, inode)
        return inode

    def write(self, path: str, inode: Inode, data: bytes, wall: float) -> None:
        """Append. OSError ENOSPC."""
        self._room(path)
        inode.data += data
        inode.changed = wall

    def _room(self, path: str) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), path)

    def sync(self, inode: Inode) -> None:
        """fsync of a file."""
        inode.synced = inode.data

    def rename(self, old: str, new: str, now: float) -> None:
        """OSError ENOENT."""
        inode = self.files.get(old)
        if inode is None:
            raise OSError(errno.ENOENT, os.strerror(errno.ENOENT), old)
        # In one folder both happen or neither does: a pair that a crash does not take apart.
        inode.born = now
        self._change(new, inode)
        self._change(old, None)

    def sync_folder(self, folder: str) -> None:
        """fsync of a directory."""
        for path, inode in self._pending.pop(folder, ()):
            self._keep(path, inode)

    def _keep(self, path: str, inode: Inode | None) -> None:
        if inode is None:
            self._kept.pop(path, None)
        else:
            self._kept[path] = inode

    def remove(self, path: str) -> None:
        """No error when there is none."""
        if path in self.files:
            self._change(path, None)

    def read(self, path: str) -> bytes | None:
        inode = self.files.get(path)
        return None if inode is None else inode.data

    def listing(self, folder: str) -> list[tuple[str, float]]:
        """[(name, time of its last change)], sorted by name."""
        start = folder + "/"
        return sorted(
            (path[len(start) :], inode.changed) for path, inode in self.files.items() if path.startswith(start)
        )

    def power_loss(self, source: Random) -> list[str]:
        """What was not synced is lost, or half lost; returns the paths that changed by it."""
        before = {path: inode.data for path, inode in self.files.items()}
        for folder in sorted(self._pending):
            changes = self._pending[folder]
            kept = source.randint(0, len(changes))
            # A rename is two changes side by side and never torn apart.
            if 0 < kept < len(changes) and changes[kept][1] is None and changes[kept - 1][1] is not None:
                kept += 1
            for path, inode in changes[:kept]:
                self._keep(path, inode)
        self._pending.clear()
        self.files = dict(self._kept)
        for path in sorted(self.files):
            inode = self.files[path]
            if inode.synced == inode.data:
                continue
            whole = inode.data
            rest = whole[: source.randint(0, len(whole))]
            inode.data = source.choice((rest, rest + b"\0" * (len(whole) - len(rest)), inode.synced or b"", whole))
            inode.synced = inode.data
        after = {path: inode.data for path, inode in self.files.items()}
        return sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
