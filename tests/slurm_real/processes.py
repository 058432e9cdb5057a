"""Looking at processes from outside."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from pathlib import Path


def alive(pids: Iterable[int]) -> list[int]:
    """Those of the processes that exist and are not just waiting to be reaped."""
    found = []
    for pid in pids:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if state != "Z":
            found.append(pid)
    return found


def eventually(holds: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, f"waited {timeout_s:.0f} s in vain until {what}"
        time.sleep(0.02)
