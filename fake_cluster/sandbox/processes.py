"""Processes by id and start time, which together name one process for good; and what a killed sandbox left behind."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

JOB_VARIABLE = "JUICE_SIM_SANDBOX_JOB"
"""In the environment of every job of a simulated Slurm: the sandbox's directory."""


@dataclass(frozen=True)
class Process:
    """`started` is in the kernel's ticks since boot."""

    pid: int
    started: int

    @classmethod
    def of(cls, pid: int) -> Process | None:
        """The process that has this id now; None when there is none, or it is a zombie."""
        started = _start_time(pid)
        return None if started is None else cls(pid, started)

    @property
    def alive(self) -> bool:
        return _start_time(self.pid) == self.started

    def send(self, sig: int) -> bool:
        """A signal; False when the process is gone. A pidfd makes sure that no other one gets it."""
        try:
            handle = os.pidfd_open(self.pid)
        except ProcessLookupError:
            return False
        try:
            if not self.alive:
                return False
            signal.pidfd_send_signal(handle, sig)
            return True
        except ProcessLookupError:
            return False
        finally:
            os.close(handle)

    def wait(self, timeout_s: float) -> bool:
        """Whether it is gone within the time. It need not be a child."""
        deadline = time.monotonic() + timeout_s
        while self.alive:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        return True


def _start_time(pid: int) -> int | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return None if fields[0] in (b"Z", b"X") else int(fields[19])


def left_behind(directory: str) -> list[Process]:
    """Processes that a sandbox in this directory started and that outlived all who should have ended them.

    A simulated Slurm's jobs carry JOB_VARIABLE; a real one's daemons, slurmstepd and jobs carry its SLURM_CONF beside
    what slurmd gives them; hooks run in the directory of the log. Whatever else only works in the directory (a shell,
    an editor) is not ours.
    """
    return [process for process in _all() if process.pid != os.getpid() and _is_ours(process.pid, directory)]


def _all() -> Iterator[Process]:
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            process = Process.of(int(entry))
            if process is not None:
                yield process


def _is_ours(pid: int, directory: str) -> bool:
    home = directory.encode()
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            variables = file.read().split(b"\0")
        if f"{JOB_VARIABLE}={directory}".encode() in variables:
            return True
        if any(variable.startswith(b"JUICE_SIM_NODE=" + home + b"/slurm:") for variable in variables):
            return True
        in_job = any(variable.startswith(b"SLURM_JOB_ID=") for variable in variables)
        if in_job and b"SLURM_CONF=" + home + b"/slurm/etc/slurm.conf" in variables:
            return True
        with open(f"/proc/{pid}/cmdline", "rb") as file:
            words = file.read().split(b"\0")
        where = os.readlink(f"/proc/{pid}/cwd").encode()
        return where.startswith(home + b"/slurm/log") and any(word.startswith(home + b"/hooks/") for word in words)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def kill_all(processes: Iterable[Process], timeout_s: float = 10.0) -> list[Process]:
    """SIGKILL to each, and wait; those that are still there."""
    found = list(processes)
    for process in found:
        process.send(signal.SIGKILL)
    deadline = time.monotonic() + timeout_s
    return [process for process in found if not process.wait(max(0.0, deadline - time.monotonic()))]
