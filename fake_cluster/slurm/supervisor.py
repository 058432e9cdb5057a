"""The process that owns a private Slurm: it starts the daemons, and ends all of them when its owner goes.

Run as `python -I -S supervisor.py FD OWNER_PID`; stdlib only. FD is one end of a stream socketpair; requests and
replies are JSON objects, one a line. The supervisor is the subreaper of all that it starts, so a daemon, a slurmstepd
that detached itself, a hook's child in its own session and a task of a job all stay its descendants. When the owner
asks for it, closes its end, or dies in whatever way (kill -9 included), the supervisor kills every descendant, removes
the directories that it was told to remove, and exits. Should the supervisor itself be killed, the kernel kills its
direct children, the daemons.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import shutil
import signal
import socket
import sys
import time
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
libc = ctypes.CDLL(None, use_errno=True)


def prctl(option: int, value: int) -> None:
    if libc.prctl(option, ctypes.c_ulong(value), 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}, {value})")


def processes() -> dict[int, list[int]]:
    """Process id -> ids of its children, of all processes that can be seen now."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        try:
            with open(f"/proc/{entry}/stat", "rb") as file:
                # The name, in parentheses, may hold anything; what follows the last one is fixed.
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if fields[0] != b"Z":
            children.setdefault(int(fields[1]), []).append(int(entry))
    return children


def descendants(root: int, children: dict[int, list[int]] | None = None) -> list[int]:
    """All living descendants of a process, parents before children, itself not included."""
    tree = processes() if children is None else children
    found: list[int] = []
    queue = list(tree.get(root, ()))
    while queue:
        pid = queue.pop(0)
        found.append(pid)
        queue.extend(tree.get(pid, ()))
    return found


def has_variable(pid: int, variables: set[bytes]) -> bool:
    """True when the environment with which the process was started holds one of the `NAME=value` exactly."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return not variables.isdisjoint(file.read().split(b"\0"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def sockets_below(directory: str) -> set[str]:
    """Unix sockets bound to a path below the directory, as /proc/PID/fd shows them."""
    found = set()
    with open("/proc/net/unix", encoding="utf-8", errors="replace") as file:
        for line in file:
            fields = line.rstrip("\n").split(None, 7)  # ..., inode, path (when bound)
            if len(fields) == 8 and fields[7].startswith(directory + "/"):
                found.add(f"socket:[{fields[6]}]")
    return found


def has_socket(pid: int, sockets: set[str]) -> bool:
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{name}") in sockets for name in os.listdir(f"/proc/{pid}/fd"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False


def kill(pid: int, sig: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, sig)


class Supervisor:
    def __init__(self, connection: socket.socket, owner: int) -> None:
        self.connection = connection
        self.owner = owner
        self.returncodes: dict[int, int | None] = {}  # of the processes started here; None while they run
        self.remove: list[str] = []

    def spawn(self, request: dict[str, Any]) -> int:
        """Fork and exec; raises OSError with the child's own error when it cannot get as far as the program."""
        failed_r, failed_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                self.become(request)
            except BaseException as error:
                os.write(failed_w, f"{type(error).__name__}: {error}".encode()[:4000])
            os._exit(127)
        os.close(failed_w)
        with os.fdopen(failed_r, "rb") as pipe:
            problem = pipe.read()  # end of file when the exec succeeded
        if problem:
            os.waitpid(pid, 0)
            raise OSError(f"{request['argv'][0]}: {problem.decode(errors='replace')}")
        self.returncodes[pid] = None
        return pid

    @staticmethod
    def become(request: dict[str, Any]) -> None:
        """In the child: take on session, files, user and directory, then run the program."""
        os.setsid()
        signal.set_wakeup_fd(-1)
        for sig in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGCHLD):
            signal.signal(sig, signal.SIG_DFL)
        stdin = os.open("/dev/null", os.O_RDONLY)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        stdout = os.open(request["stdout"], flags, 0o600)
        stderr = stdout if request["stderr"] == request["stdout"] else os.open(request["stderr"], flags, 0o600)
        for number, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
            os.dup2(number, target)
        os.umask(request["umask"])
        if request["uid"] is not None:
            os.setgroups(request["groups"])
            os.setgid(request["gid"])
            os.setuid(request["uid"])
        os.chdir(request["cwd"])
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)  # after setuid, which clears it
        os.execve(request["argv"][0], request["argv"], request["env"])

    def reap(self) -> None:
        """Collect every child that has ended, adopted ones too."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in self.returncodes:
                self.returncodes[pid] = os.waitstatus_to_exitcode(status)

    def kill_marked(self, variables: set[bytes], directory: str) -> list[int]:
        """Kill the descendants whose environment holds one of the variables or that have a unix socket below the
        directory, and all that descends from them, until none is left. All are stopped first, so that none can fork
        away or tell of another's death in between."""
        killed: list[int] = []
        while True:
            tree = processes()
            sockets = sockets_below(directory)
            doomed: dict[int, None] = {}
            for pid in descendants(os.getpid(), tree):
                if pid not in doomed and (has_variable(pid, variables) or has_socket(pid, sockets)):
                    doomed.update(dict.fromkeys([pid, *descendants(pid, tree)]))
            if not doomed:
                return killed
            for pid in doomed:
                kill(pid, signal.SIGSTOP)
            for pid in doomed:
                kill(pid, signal.SIGKILL)
            killed.extend(doomed)
            self.reap()
            time.sleep(0.005)

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        op = request["op"]
        if op == "spawn":
            try:
                return {"pid": self.spawn(request)}
            except OSError as error:
                return {"error": str(error)}
        if op == "poll":
            self.reap()
            return {"returncode": self.returncodes[request["pid"]]}
        if op == "kill":
            self.reap()
            alive = self.returncodes.get(request["pid"], 0) is None
            if alive:  # not reaped yet, so the id is still this process's
                os.kill(request["pid"], request["signal"])
            return {"sent": alive}
        if op == "kill_marked":
            variables = {variable.encode() for variable in request["variables"]}
            return {"killed": self.kill_marked(variables, request["directory"])}
        if op == "descendants":
            return {"pids": descendants(os.getpid())}
        if op == "remove_at_end":
            self.remove.append(request["path"])
            return {}
        return {"error": f"unknown op {op!r}"}

    def serve(self) -> None:
        """Answer until the owner is gone or says `end`."""
        wake_r, wake_w = os.pipe()
        os.set_blocking(wake_w, False)
        signal.set_wakeup_fd(wake_w)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        watched: list[Any] = [self.connection, wake_r]
        # The socket alone does not tell: a fork of the owner may hold a copy of its end.
        owner = os.pidfd_open(self.owner) if hasattr(os, "pidfd_open") else None
        if owner is not None:
            watched.append(owner)
        buffer = b""
        while True:
            readable = select.select(watched, [], [])[0]
            if wake_r in readable:
                os.read(wake_r, 4096)
                self.reap()
            if owner is not None and owner in readable:
                return
            if self.connection not in readable:
                continue
            data = self.connection.recv(1 << 16)
            if not data:
                return
            buffer += data
            while b"\n" in buffer:
                line, buffer = buffer.split(b"\n", 1)
                request = json.loads(line)
                if request["op"] == "end":
                    return
                self.connection.sendall(json.dumps(self.answer(request)).encode() + b"\n")

    def end(self) -> None:
        """Kill all descendants until none is left, then remove what was to be removed."""
        while True:
            doomed = descendants(os.getpid())
            if not doomed:
                break
            for pid in doomed:  # parents first: a slurmd or slurmctld must not start anew what is killed here
                kill(pid, signal.SIGKILL)
            self.reap()
            time.sleep(0.005)
        self.reap()
        for path in self.remove:
            shutil.rmtree(path, ignore_errors=True)


def main() -> int:
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.set_inheritable(False)
    for sig in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE, signal.SIGTERM):
        signal.signal(sig, signal.SIG_IGN)  # it ends with its owner, not before
    prctl(PR_SET_CHILD_SUBREAPER, 1)
    supervisor = Supervisor(connection, int(sys.argv[2]))
    try:
        supervisor.serve()
    except OSError:
        pass  # the owner went away in the middle of a reply
    finally:
        supervisor.end()
    return 0


if __name__ == "__main__":
    sys.exit(main())
