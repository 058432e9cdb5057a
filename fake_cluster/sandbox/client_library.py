"""Where the jobs of a sandbox find `libjuicejuda.so`, which the plugin puts into LD_PRELOAD."""

from __future__ import annotations

import ctypes.util
import os
import platform
from pathlib import Path

LIBRARY = "libjuicejuda.so"


def install(directory: Path) -> Path:
    """Make `directory/juice-client` with the library, and return it.

    Without a library, the loader would complain in the stderr of every program of a job. So there is always one: a link
    to the C library, which each program has loaded anyway, changes nothing.
    """
    target = directory / "juice-client"
    target.mkdir(exist_ok=True)
    target.chmod(0o755)
    library = target / LIBRARY
    if not library.exists():
        found = _c_library()
        if found is not None:
            library.symlink_to(found)
    return target


def _c_library() -> Path | None:
    name = ctypes.util.find_library("c")
    if name is None:
        return None
    with open("/proc/self/maps", encoding="utf-8", errors="replace") as file:
        for line in file:
            path = line.split(None, 5)[5].strip() if len(line.split(None, 5)) == 6 else ""
            if os.path.basename(path) == name:
                return Path(path)
    for folder in (f"/lib/{platform.machine()}-linux-gnu", "/lib64", "/usr/lib64", "/usr/lib"):
        if os.path.exists(f"{folder}/{name}"):
            return Path(folder, name)
    return None
