"""Where a job's processes run: on this host, or as a Ray task on a CPU node of a fake cluster."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import subprocess
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_BUSY_TRIES = 100
STEP_VARIABLE = "JUICE_SIM_STEP"  # marks what belongs to a task, whatever session or group it has moved to


@dataclass(frozen=True)
class Task:
    """One command of a job on one node, in a process group of its own. `stdout` and `stderr` may be the same file.

    `user_id` None: as whoever runs the simulation. `marker` is a file in which a remote runner leaves the process id.
    """

    argv: tuple[str, ...]
    environment: Mapping[str, str]
    directory: str
    stdin: str
    stdout: str
    stderr: str
    node: str
    cpus: int
    marker: Path
    user_id: int | None = None


class Running(ABC):
    """A task that runs or has run."""

    @abstractmethod
    def wait(self) -> tuple[int, int]:
        """(exit code, signal) when all is over; one of them is 0. OSError when it could not be started elsewhere."""

    @abstractmethod
    def kill(self, sig: int) -> None:
        """A signal to the task's process group; nothing when it has ended."""


class Runner(ABC):
    """A kind of place for tasks."""

    @abstractmethod
    def start(self, task: Task) -> Running:
        """Start a task. OSError when it cannot be started (no such program, no such directory)."""

    def close(self) -> None:
        """Give up what the runner holds itself; tasks must have ended."""
        return


def spawn(task: Task) -> subprocess.Popen[bytes]:
    """Start the task's process here. When it runs as another user, its output files are given to that user."""
    for attempt in range(_BUSY_TRIES):
        try:
            return _spawn(task)
        except OSError as error:
            # A process that another thread is just forking holds the descriptor through which the script was written
            # until its own exec: a matter of milliseconds.
            if error.errno != errno.ETXTBSY or attempt == _BUSY_TRIES - 1:
                raise
            time.sleep(0.01)
    raise AssertionError("not reached")


def _spawn(task: Task) -> subprocess.Popen[bytes]:
    same = task.stdout == task.stderr
    with contextlib.ExitStack() as stack:
        stdin = stack.enter_context(open(task.stdin, "rb"))
        stdout = stack.enter_context(open(task.stdout, "ab"))
        stderr = stdout if same else stack.enter_context(open(task.stderr, "ab"))
        identity: dict[str, Any] = {}
        if task.user_id is not None and task.user_id != os.getuid():
            identity = {"user": task.user_id, "group": _group_of(task.user_id), "extra_groups": []}
            for file in {task.stdout, task.stderr}:
                if os.path.isfile(file):
                    os.chown(file, identity["user"], identity["group"])
        return subprocess.Popen(
            list(task.argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env={**task.environment, STEP_VARIABLE: str(task.marker)},
            cwd=task.directory,
            start_new_session=True,
            **identity,
        )


def _group_of(user_id: int) -> int:
    import pwd

    try:
        return pwd.getpwuid(user_id).pw_gid
    except KeyError:
        return user_id


def _ending(status: int) -> tuple[int, int]:
    return (status, 0) if status >= 0 else (0, -status)


def _end_strays(marker: Path) -> None:
    """Kill what the task has left in sessions of its own: a node's proctrack plugin would not let it live, either."""
    mark = f"{STEP_VARIABLE}={marker}\0".encode()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError):  # it has ended meanwhile, or is somebody else's
            process = os.pidfd_open(int(entry))
            try:
                # Read after the descriptor was opened: so the environment is that of the process that is killed.
                if mark in Path(f"/proc/{entry}/environ").read_bytes():
                    signal.pidfd_send_signal(process, signal.SIGKILL)
            finally:
                os.close(process)


class _Local(Running):
    def __init__(self, process: subprocess.Popen[bytes], marker: Path) -> None:
        self._process = process
        self._marker = marker
        self._lock = threading.Lock()

    def wait(self) -> tuple[int, int]:
        # Not reaped before the rest of its group is gone, and never while a kill is under way: until then its id
        # cannot belong to anybody else.
        os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with self._lock:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            _end_strays(self._marker)
            return _ending(self._process.wait())

    def kill(self, sig: int) -> None:
        with self._lock:
            if self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, sig)


class LocalRunner(Runner):
    """Processes of this host, children of this process."""

    def start(self, task: Task) -> Running:
        return _Local(spawn(task), task.marker)


def run_in_ray(task: Task) -> tuple[int, int]:
    """The body of the Ray task: run the command, leave its process id in the marker file, wait."""
    process = spawn(task)
    part = task.marker.with_suffix(".part")
    part.write_text(f"{process.pid} {_start_time(process.pid)}")
    part.rename(task.marker)
    running = _Local(process, task.marker)
    try:
        return running.wait()
    except BaseException:
        running.kill(signal.SIGKILL)
        process.wait()
        raise


def _start_time(pid: int) -> str:
    """When a process was started, in the kernel's ticks: with the id, it names one process for good."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


class _InRay(Running):
    def __init__(self, task: Task, reference: Any) -> None:
        self._task = task
        self._reference = reference

    def wait(self) -> tuple[int, int]:
        import ray

        try:
            code, sig = ray.get(self._reference)
        except (ray.exceptions.TaskCancelledError, ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError):
            return 0, int(signal.SIGKILL)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, OSError):
                raise error.cause from None  # it could not be started, as if it had been here
            raise
        return code, sig

    def kill(self, sig: int) -> None:
        import ray

        try:
            pid, started = self._task.marker.read_text().split()
            if _start_time(int(pid)) == started:
                os.killpg(int(pid), sig)
        except FileNotFoundError:
            # Not started yet, or on a host whose processes cannot be seen from here.
            ray.cancel(self._reference, force=True)
        except ProcessLookupError:
            return


class RayRunner(Runner):
    """Ray tasks on the CPU nodes of a cluster; `ray.init` is the caller's.

    `resources(node)` names the custom resources that pin a task to the Ray node that stands for a Slurm node, e.g.
    `{"slurm_node1": 0.001}`; the default asks for CPUs only. `cpus_per_task` None: as many Ray CPUs as the job has.
    """

    def __init__(
        self, resources: Callable[[str], Mapping[str, float]] | None = None, cpus_per_task: float | None = None
    ) -> None:
        import ray

        if not ray.is_initialized():
            raise RuntimeError("RayRunner needs a cluster: call ray.init first")
        self._resources = resources or (lambda node: {})
        self._cpus = cpus_per_task
        # Once: each remote() call would export the function again.
        self._remote = ray.remote(max_retries=0)(run_in_ray)

    def start(self, task: Task) -> Running:
        task.marker.unlink(missing_ok=True)
        options = self._remote.options(
            num_cpus=task.cpus if self._cpus is None else self._cpus,
            resources=dict(self._resources(task.node)),
            name=f"slurm {task.node} {Path(task.argv[0]).name}",
        )
        return _InRay(task, options.remote(task))
