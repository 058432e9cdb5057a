"""Processes that cannot outlive their owner: the owner's side of `supervisor.py`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


class Daemons:
    """Starts processes under a supervisor and ends them by id. Thread-safe.

    Whatever becomes of this process, also kill -9, the supervisor then kills all that descends from it, detached
    processes included, and removes the directories given to `remove_at_end`.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [
                    sys.executable,
                    "-I",
                    "-S",
                    str(Path(__file__).with_name("supervisor.py")),
                    str(theirs.fileno()),
                    str(os.getpid()),
                ],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                cwd="/",
                env={"PATH": os.defpath},
                start_new_session=True,  # Ctrl-C at the terminal is the owner's business
            )
        self._socket = ours
        self._replies = ours.makefile("rb")
        self._lock = threading.Lock()

    @property
    def supervisor_pid(self) -> int:
        return self._process.pid

    def _ask(self, op: str, **fields: Any) -> dict[str, Any]:
        with self._lock:
            try:
                self._socket.sendall(json.dumps({"op": op, **fields}).encode() + b"\n")
                line = self._replies.readline()
            except OSError:
                line = b""
        if not line:
            raise RuntimeError(
                f"the supervisor of the Slurm daemons (process {self._process.pid}) is gone; its daemons ended with it"
            )
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise OSError(reply["error"])
        return reply

    def spawn(
        self,
        argv: Sequence[str | Path],
        *,
        env: Mapping[str, str],
        cwd: Path,
        stdout: Path,
        stderr: Path | None = None,
        user: tuple[int, int, Sequence[int]] | None = None,
        umask: int = 0o022,
    ) -> int:
        """Start a program (absolute path) in a session of its own and return its process id. stdin is /dev/null, output
        is appended to the files; `user` is (uid, gid, groups). Raises OSError when it cannot be run."""
        uid, gid, groups = user if user else (None, None, ())
        return int(
            self._ask(
                "spawn",
                argv=[str(arg) for arg in argv],
                env=dict(env),
                cwd=str(cwd),
                stdout=str(stdout),
                stderr=str(stderr or stdout),
                uid=uid,
                gid=gid,
                groups=list(groups),
                umask=umask,
            )["pid"]
        )

    def returncode(self, pid: int) -> int | None:
        """None while the process runs; negative when a signal ended it."""
        code: int | None = self._ask("poll", pid=pid)["returncode"]
        return code

    def send(self, pid: int, sig: int) -> None:
        """Send a signal to a process that was started here; nothing happens when it has ended already."""
        self._ask("kill", pid=pid, signal=int(sig))

    def wait(self, pid: int, timeout_s: float) -> int | None:
        """Wait for the end of a process; None when the time is over."""
        deadline = time.monotonic() + timeout_s
        pause = 0.002
        while (code := self.returncode(pid)) is None and time.monotonic() < deadline:
            time.sleep(pause)
            pause = min(pause * 1.5, 0.1)
        return code

    def kill(self, pid: int, sig: int = signal.SIGKILL, timeout_s: float = 60.0) -> None:
        """Signal a process and wait until it is gone. Raises TimeoutError."""
        self.send(pid, sig)
        if self.wait(pid, timeout_s) is None:
            raise TimeoutError(f"process {pid} still runs {timeout_s:.0f} s after signal {int(sig)}")

    def kill_marked(self, variables: Mapping[str, str], directory: Path) -> list[int]:
        """Kill the descendants whose environment holds one of the variables or that have a unix socket below the
        directory, with all that descends from them; returns their ids."""
        marks = [f"{name}={value}" for name, value in variables.items()]
        return list(self._ask("kill_marked", variables=marks, directory=str(directory))["killed"])

    def descendants(self) -> list[int]:
        """Ids of all living processes that were started here or descend from them."""
        return list(self._ask("descendants")["pids"])

    def remove_at_end(self, path: Path) -> None:
        """Have the supervisor remove a directory after it has ended everything."""
        self._ask("remove_at_end", path=str(path))

    def end(self, timeout_s: float = 60.0) -> None:
        """End everything and wait for it. May be called twice."""
        with self._lock:
            if self._socket.fileno() >= 0:
                self._replies.close()
                self._socket.close()
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise TimeoutError(
                f"the supervisor (process {self._process.pid}) could not end all of its processes in {timeout_s:.0f} s"
            ) from None
