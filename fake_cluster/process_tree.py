"""Start a program so that everything it ever starts can be found and stopped, and nothing else.

Ray's processes fork, detach, overwrite their environment and outlive their parents, so neither a process group nor a
marker in the environment finds them all. Here a small *keeper* process (this file, run as a script) makes itself the
*subreaper* of what it starts (prctl(2)): orphans are re-parented to it and not to init, so the tree below the keeper is
complete at all times. The keeper watches the process that asked for it, by pidfd and by a pipe; when that one goes,
even by SIGKILL, the keeper stops the tree, removes the directories it was told to and exits.

Linux only. Standard library only: the keeper runs as `python -I -S`, about 9 MB and 20 ms.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36


class Process(NamedTuple):
    """One line of /proc/PID/stat. (pid, start_ticks) names a process for ever, a pid alone does not."""

    pid: int
    ppid: int
    state: str
    start_ticks: int


def read_process(pid: int) -> Process | None:
    """The process now, or None when there is none with that pid."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The name, in parentheses, may itself hold spaces and parentheses: count from the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    return Process(pid, int(fields[1]), fields[0].decode(), int(fields[19]))


def command_line(pid: int) -> list[str]:
    """The argument vector of a process; empty for a zombie or one that is gone."""
    try:
        raw = Path(f"/proc/{pid}/cmdline").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return []
    return [part.decode(errors="replace") for part in raw.split(b"\0") if part]


def descendants(root: int) -> list[Process]:
    """Children, grandchildren ... of `root` (itself excluded), parents before their children, zombies included."""
    children: dict[int, list[Process]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit() and (process := read_process(int(entry))) is not None:
            children.setdefault(process.ppid, []).append(process)
    found: list[Process] = []
    pending = [root]
    while pending:
        for child in children.get(pending.pop(), ()):
            found.append(child)
            pending.append(child.pid)
    return found


def send_signal(process: Process, number: int) -> bool:
    """Signal exactly this process; False when it is gone (its pid may be somebody else's by now)."""
    try:
        fd = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        now = read_process(process.pid)
        if now is None or now.start_ticks != process.start_ticks:
            return False
        signal.pidfd_send_signal(fd, number)
    except ProcessLookupError:
        return False
    finally:
        os.close(fd)
    return True


def kill_with_descendants(root: int) -> list[int]:
    """SIGKILL `root` and all below it at once, as a power loss would. Returns the pids that were killed.

    The root is stopped first so that it can start nothing between the look and the kill.
    """
    process = read_process(root)
    if process is None or not send_signal(process, signal.SIGSTOP):
        return []
    killed = []
    for each in [process, *descendants(root)]:
        if send_signal(each, signal.SIGKILL):
            killed.append(each.pid)
    return killed


class ProcessTree:
    """A program and all that descends from it, kept by a keeper process. Ends with the process that made it.

    `start` runs `command` with exactly the environment `env`; its output goes to `log`. `remove` are directories that
    the keeper deletes after the last process has gone.
    """

    def __init__(self, remove: Iterable[Path] = ()) -> None:
        self._remove = [str(path) for path in remove]
        self._keeper: subprocess.Popen[bytes] | None = None
        self._exit_code: int | None = None
        self._unread = b""

    def start(self, command: Sequence[str], *, env: Mapping[str, str], log: Path) -> None:
        """Start the keeper and, below it, the program. Raises OSError when the program cannot be executed."""
        if self._keeper is not None:
            raise RuntimeError("this process tree has been started already")
        self._keeper = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=dict(env),
            start_new_session=True,  # ^C in the driver's terminal must not reach the tree before the driver decides
        )
        self._send({"start": list(command), "log": str(log), "remove": self._remove})
        reply = self._receive(timeout_s=60)
        if reply is None or "error" in reply:
            self.stop()
            raise OSError(reply["error"] if reply else "the keeper process did not answer")

    @property
    def keeper_pid(self) -> int | None:
        return self._keeper.pid if self._keeper is not None else None

    def exit_code(self) -> int | None:
        """Exit code of the program itself (not of its descendants), None while it runs."""
        while self._exit_code is None and (message := self._receive(timeout_s=0)) is not None:
            self._exit_code = message.get("exited")
        return self._exit_code

    def processes(self) -> list[Process]:
        """All living processes of the tree, the keeper excluded."""
        if self._keeper is None:
            return []
        return [process for process in descendants(self._keeper.pid) if process.state != "Z"]

    def stop(self, grace_s: float = 0.5) -> None:
        """Stop all: SIGTERM, up to `grace_s` seconds, SIGKILL. Returns when the last one is gone. Twice is fine.

        The grace is for programs that clean up; Ray's own daemons wait for each other when all are told to go at once.
        """
        keeper, self._keeper = self._keeper, None
        if keeper is None:
            return
        assert keeper.stdin is not None and keeper.stdout is not None
        with contextlib.suppress(BrokenPipeError):  # the keeper is gone already: its own death stopped the tree
            keeper.stdin.write(json.dumps({"stop": grace_s}).encode() + b"\n")
            keeper.stdin.flush()
        keeper.wait(timeout=grace_s + 60)
        with contextlib.suppress(BrokenPipeError):
            keeper.stdin.close()
        keeper.stdout.close()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._keeper is not None and self._keeper.stdin is not None
        self._keeper.stdin.write(json.dumps(message).encode() + b"\n")
        self._keeper.stdin.flush()

    def _receive(self, timeout_s: float) -> dict[str, Any] | None:
        if self._keeper is None or self._keeper.stdout is None:
            return None
        fd = self._keeper.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            readable, _, _ = select.select([fd], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                return None
            chunk = os.read(fd, 65536)
            if not chunk:
                return None
            self._unread += chunk
        line, self._unread = self._unread.split(b"\n", 1)
        message: dict[str, Any] = json.loads(line)
        return message


# --- the keeper ------------------------------------------------------------------------------------------------------


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def _reap() -> dict[int, int]:
    """Exit codes of the children that ended, orphans that were re-parented to us included."""
    codes: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return codes
        if pid == 0:
            return codes
        codes[pid] = os.waitstatus_to_exitcode(status)


def _stop_all(grace_s: float) -> None:
    """Stop every descendant of this process. New ones may be born meanwhile, so look until none is left."""
    for process in descendants(os.getpid()):
        send_signal(process, signal.SIGTERM)
    deadline = time.monotonic() + grace_s
    while True:
        _reap()
        left = [process for process in descendants(os.getpid()) if process.state != "Z"]
        if not left and not descendants(os.getpid()):
            return
        if time.monotonic() >= deadline:
            for process in left:
                send_signal(process, signal.SIGKILL)
        time.sleep(0.02)


def _keep(driver_pid: int) -> int:
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    driver = os.pidfd_open(driver_pid)
    wakeup_read, wakeup_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.set_wakeup_fd(wakeup_write)
    ending: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda received, frame: ending.append(received))
    signal.signal(signal.SIGCHLD, lambda received, frame: None)
    # Whoever asked for this may have died before the pidfd was opened; then we have another parent by now.
    gone = os.getppid() != driver_pid
    main: subprocess.Popen[bytes] | None = None
    remove: list[str] = []
    grace_s = 0.5
    unread = b""
    while not gone and not ending:
        readable, _, _ = select.select([0, driver, wakeup_read], [], [])
        if driver in readable:
            break
        if wakeup_read in readable:
            with contextlib.suppress(BlockingIOError):
                os.read(wakeup_read, 4096)
            code = _reap().get(main.pid) if main is not None else None
            if code is not None:
                _tell({"exited": code})
        if 0 not in readable:
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            break
        unread += chunk
        while b"\n" in unread:
            line, unread = unread.split(b"\n", 1)
            order = json.loads(line)
            if "stop" in order:
                grace_s, gone = order["stop"], True
            else:
                remove = order["remove"]
                main = _start(order["start"], order["log"])
    _stop_all(grace_s)
    for directory in remove:
        shutil.rmtree(directory, ignore_errors=True)
    return 0


def _start(command: list[str], log: str) -> subprocess.Popen[bytes] | None:
    keeper = os.getpid()

    def follow_the_keeper() -> None:
        # Second line of defence, should the keeper itself be killed: `ray start --block` ends its cluster on SIGTERM.
        _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != keeper:
            os._exit(1)

    try:
        with open(log, "ab") as output:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                preexec_fn=follow_the_keeper,
                start_new_session=True,
            )
    except (OSError, subprocess.SubprocessError) as error:
        _tell({"error": f"cannot start {command[0]}: {error}"})
        return None
    _tell({"started": process.pid})
    return process


def _tell(message: dict[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # nobody listens any more: the driver's end is noticed by its pidfd
        os.write(1, json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(_keep(int(sys.argv[1])))
