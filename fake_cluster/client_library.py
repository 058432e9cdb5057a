"""Where jobs find `libjuicejuda.so`, which the plugin puts into LD_PRELOAD, and the command `juice`."""

from __future__ import annotations

import ctypes.util
import logging
import os
import platform
from pathlib import Path

from juice_sim.client_build import LIBRARY, ClientBuildError, install_client

log = logging.getLogger("client library")


def install(directory: Path) -> Path:
    """Make `directory/juice-client` with the stand-in for Juice's client library, and return it.

    Without a compiler there is none, and the loader would complain in the stderr of every program of a job. Then a link
    to the C library, which each program has loaded anyway, stands there and changes nothing.
    """
    target = directory / "juice-client"
    target.mkdir(exist_ok=True)
    target.chmod(0o755)
    library = target / LIBRARY
    try:
        install_client(target)
    except ClientBuildError as error:
        log.warning("programs do not connect to their agents: %s", error)
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
