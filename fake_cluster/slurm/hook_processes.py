"""Runs hooks as slurmctld does: each in a process group of its own, output read until nobody holds it open any more.

A hook has ended when its process has exited **and** the pipe at its stdout and stderr is closed everywhere: a child
that it left behind with these descriptors blocks it, as on the real slurmctld. Whatever is left of its process group
then is killed. One thread watches all of them.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_MAX_OUTPUT = 65536

# slurmscriptd gives each hook a process group, not a session. Python 3.10 can do that only with a fork that is unsafe
# beside threads; a session, which is a group too, is the next best.
_OWN_GROUP: dict[str, Any] = {"process_group": 0} if sys.version_info >= (3, 11) else {"start_new_session": True}


class _Running:
    def __init__(self, run_id: int, process: subprocess.Popen[bytes], pidfd: int) -> None:
        self.run_id = run_id
        self.process = process
        self.pidfd = pidfd
        self.output = b""
        self.exited = False
        self.closed = False


class HookProcesses:
    """Start and kill hooks by run id; `ended(run_id, exit code, signal, output)` is called from the watching thread."""

    def __init__(self, directory: Path, ended: Callable[[int, int, int, str], None]) -> None:
        self._directory = directory
        self._ended = ended
        self._lock = threading.Lock()
        self._running: dict[int, _Running] = {}
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_read, False)
        self._selector.register(self._wake_read, selectors.EVENT_READ, None)
        self._new: list[_Running] = []
        self._stopping = False
        self._thread = threading.Thread(target=self._watch, name="slurmctld-hooks", daemon=True)
        self._thread.start()

    def start(self, run_id: int, executable: Path, environment: Mapping[str, str]) -> None:
        """Start a hook. OSError when the executable cannot be run."""
        process = subprocess.Popen(
            [str(executable)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=self._directory,
            **_OWN_GROUP,
        )
        running = _Running(run_id, process, os.pidfd_open(process.pid))
        with self._lock:
            self._running[run_id] = running
            self._new.append(running)
        os.write(self._wake_write, b"x")

    def kill(self, run_id: int) -> None:
        """SIGKILL to the process group; nothing when it has ended. Its end is still told."""
        with self._lock:
            running = self._running.get(run_id)
            if running is not None:
                self._kill_group(running)

    def pids(self) -> dict[int, int]:
        """Run id -> process id of the hooks that run."""
        with self._lock:
            return {run_id: running.process.pid for run_id, running in self._running.items()}

    def stop(self) -> None:
        """Kill all that still run and end the thread."""
        with self._lock:
            self._stopping = True
            for running in self._running.values():
                self._kill_group(running)
        os.write(self._wake_write, b"x")
        self._thread.join()
        for descriptor in (self._wake_read, self._wake_write):
            os.close(descriptor)
        self._selector.close()

    def _kill_group(self, running: _Running) -> None:
        # Until it is reaped, which happens under the lock, its process id cannot belong to anybody else.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(running.process.pid, signal.SIGKILL)

    def _watch(self) -> None:
        while True:
            with self._lock:
                for running in self._new:
                    assert running.process.stdout is not None
                    os.set_blocking(running.process.stdout.fileno(), False)
                    self._selector.register(running.pidfd, selectors.EVENT_READ, (running, "exit"))
                    self._selector.register(running.process.stdout, selectors.EVENT_READ, (running, "output"))
                self._new.clear()
                if self._stopping:
                    for running in list(self._running.values()):
                        # A child in a session of its own may hold the pipe for ever.
                        running.process.wait()
                        self._forget(running)
                    return
            for key, _ in self._selector.select():
                if key.data is None:
                    os.read(self._wake_read, 4096)
                    continue
                running, what = key.data
                if what == "exit":
                    running.exited = True
                    self._selector.unregister(running.pidfd)
                else:
                    self._read(running)
                if running.exited and running.closed:
                    self._reap(running)

    def _read(self, running: _Running) -> None:
        assert running.process.stdout is not None
        part = os.read(running.process.stdout.fileno(), 65536)
        if part:
            running.output = (running.output + part)[-_MAX_OUTPUT:]
        else:
            self._selector.unregister(running.process.stdout)
            running.closed = True

    def _reap(self, running: _Running) -> None:
        with self._lock:
            self._kill_group(running)
            status = running.process.wait()
            self._forget(running)
        code, sig = (status, 0) if status >= 0 else (0, -status)
        self._ended(running.run_id, code, sig, running.output.decode("utf-8", "replace"))

    def _forget(self, running: _Running) -> None:
        del self._running[running.run_id]
        os.close(running.pidfd)
        assert running.process.stdout is not None
        running.process.stdout.close()
