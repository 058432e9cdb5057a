"""What the SPANK plugin does on the compute node, and around it what slurmd does with the job's command.

The same rules and words as `spank-plugin/remote.c`. A job that asked for a pool, or that has a session file anyhow:
wait (bounded) for the session file of this very start of the job, open it, and either fail the job with its reason
(verdict `denied`, or no valid file) or set the environment and run the command. A job without a session just runs.

The client library, when it is where LD_PRELOAD says, connects each process to the agent. Where it is not, this module
does in its place: it connects, tells the command's exit code in the end, and kills the command's processes when the
agent closes the connection.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import ModuleType
from typing import Any

from fake_cluster.slurm.runners import Runner, Running, Task
from juice_sim.client_build import has_client
from juice_sim.resources import hooks_dir

_FAILED = 1
# Faults of a session file that may pass while it arrives over NFS.
_PASSING = ("missing", "empty", "null", "truncated")
_SESSION_VARIABLES = (
    "JUICE_CFG_OVERRIDE",
    "JUICE_SESSION_ID",
    "JUICE_SESSION_POOL",
    "JUICE_SESSION_ADDRESS",
    "JUICE_SESSION_GPUS",
    "JUICE_SESSION_VRAM",
    "CUDA_VISIBLE_DEVICES",
)
_hook: ModuleType | None = None


def hook_module() -> ModuleType:
    """hooks/juice_hook.py as a module: the one implementation of the session file in Python."""
    global _hook
    if _hook is None:
        path = hooks_dir() / "juice_hook.py"
        spec = importlib.util.spec_from_file_location("juice_hook", path)
        if spec is None or spec.loader is None:
            raise ImportError(f"cannot load {path}")
        module = importlib.util.module_from_spec(spec)
        sys.modules.setdefault("juice_hook", module)
        spec.loader.exec_module(module)
        _hook = module
    return _hook


@dataclass(frozen=True)
class NodeSettings:
    """What the plugin has from plugstack.conf and its own configuration. `session_wait_s` bounds the wait for the file.

    `owners`: user ids that may own a session file. `juice_dir`: where libjuicejuda.so is, or would be.
    """

    cluster_name: str
    state_dir: Path | None = None
    key_file: Path | None = None
    session_wait_s: float = 10.0
    owners: tuple[int, ...] = (0,)
    juice_dir: Path = Path("/opt/juice/juice")
    connect_timeout_s: float = 10.0


class NodeRefusal(Exception):
    """The plugin fails the job; the text is for the user."""


def _library(juice_dir: Path) -> str:
    return f"{juice_dir}/libjuicejuda.so"


def _others_preloaded(environment: Mapping[str, str], library: str) -> list[str]:
    """What else LD_PRELOAD names (separated by colons or blanks)."""
    return [item for item in environment.get("LD_PRELOAD", "").replace(":", " ").split() if item != library]


def session_environment(fields: Mapping[str, str], juice_dir: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The job's environment from a granted session file (docs/contracts.md, section 3)."""
    gpus = len(fields["gpu_indexes"].split(","))
    library = _library(juice_dir)
    return {
        **environment,
        "JUICE_CFG_OVERRIDE": fields["config"],
        "JUICE_SESSION_ID": fields["session_id"],
        "JUICE_SESSION_POOL": fields["pool"],
        "JUICE_SESSION_ADDRESS": fields["address"],
        "JUICE_SESSION_GPUS": str(gpus),
        "JUICE_SESSION_VRAM": fields["vram_bytes"],
        "CUDA_VISIBLE_DEVICES": ",".join(str(index) for index in range(gpus)),
        "LD_PRELOAD": ":".join([library, *_others_preloaded(environment, library)]),
    }


def without_inherited_session(environment: Mapping[str, str], juice_dir: Path) -> dict[str, str]:
    """A job submitted from inside a Juice job inherits that one's variables, but not its session: take them away."""
    if "JUICE_SESSION_ID" not in environment:
        return dict(environment)
    kept = {name: value for name, value in environment.items() if name not in _SESSION_VARIABLES}
    others = _others_preloaded(environment, _library(juice_dir))
    kept.pop("LD_PRELOAD", None)
    if others:
        kept["LD_PRELOAD"] = ":".join(others)
    return kept


class AgentConnection:
    """A program's connection to a session at its agent: one POST that is never answered, then held open.

    `on_lost(reason)` is called from another thread when the agent ends it.
    """

    def __init__(self, address: str, session_id: str, process_name: str, timeout_s: float) -> None:
        host, _, port = address.rpartition(":")
        if not host or not port.isdecimal():
            raise NodeRefusal(f"the agent's address {address!r} is not host:port")
        body = json.dumps({"id": str(uuid.uuid4()), "pid": os.getpid(), "processName": process_name}).encode()
        head = (
            f"POST /v1/connect/session/{session_id} HTTP/1.1\r\nHost: {address}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        try:
            self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout_s)
            self._socket.sendall(head.encode() + body)
            self._socket.settimeout(None)
        except OSError as error:
            raise NodeRefusal(f"cannot connect to the agent at {address}: {error}") from None
        self._address = address
        self._closing = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, on_lost: Any) -> None:
        """Begin to listen for the end of the connection."""
        self._thread = threading.Thread(target=self._listen, args=(on_lost,), name="juice-connection", daemon=True)
        self._thread.start()

    def _listen(self, on_lost: Any) -> None:
        answer = b""
        try:
            while part := self._socket.recv(4096):
                answer += part
                if answer.startswith(b"HTTP/") and b"\r\n\r\n" in answer:
                    break
                answer = answer[:4096]
        except OSError:
            answer = b""
        with self._lock:
            if self._closing:
                return
        if answer.startswith(b"HTTP/"):
            on_lost(
                f"the agent at {self._address} refused the session: {answer.splitlines()[0].decode('ascii', 'replace')}"
            )
        else:
            on_lost(f"the agent at {self._address} closed the session")

    def close(self, exit_code: int) -> None:
        """Report the exit code and disconnect. An agent that is gone is no error."""
        with self._lock:
            self._closing = True
        try:
            self._socket.sendall(json.dumps({"exitCode": exit_code}).encode() + b"\n")
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            self._closing = True  # the agent has gone first; there is nobody left to tell
        if self._thread is not None:
            self._thread.join()
        self._socket.close()


@dataclass(frozen=True)
class Launch:
    """One job on its node. `asked`: the submitting side has noted that it asked for a session.

    `restarts` is what slurmctld tells the batch step; None for other steps, which are not told.
    """

    job_id: int
    user_id: int
    asked: bool
    restarts: int | None
    task: Task


class NodeStep:
    """One launch under way. `run` blocks; `kill` may be called from any thread at any time."""

    def __init__(self, launch: Launch, settings: NodeSettings, runner: Runner) -> None:
        self._launch = launch
        self._settings = settings
        self._runner = runner
        self._lock = threading.Lock()
        self._running: Running | None = None
        self._killed = 0
        self._stop = threading.Event()
        self._lost = ""

    def run(self) -> tuple[int, int]:
        """(exit code, signal) of the job's command; (1, 0) with a line in the job's stderr when the plugin fails it."""
        connection: AgentConnection | None = None
        task = self._launch.task
        try:
            if not self._launch.asked and not self._session_exists():
                environment = without_inherited_session(task.environment, self._settings.juice_dir)
                task = replace(task, environment=environment)
            else:
                fields = self._session()
                environment = session_environment(fields, self._settings.juice_dir, task.environment)
                task = replace(task, environment=environment)
                if not has_client(self._settings.juice_dir):
                    connection = AgentConnection(
                        fields["address"],
                        fields["session_id"],
                        Path(task.argv[0]).name,
                        self._settings.connect_timeout_s,
                    )
        except NodeRefusal as refusal:
            self._tell_error(f"juice: job {self._launch.job_id} gets no GPU session: {refusal}")
            return _FAILED, 0
        except InterruptedError:
            return 0, self._killed
        code, sig = _FAILED, 0
        try:
            code, sig = self._run(task, connection)
        finally:
            if connection is not None:
                connection.close(code if not sig else 128 + sig)
        if self._lost:
            self._tell_error(f"juice: {self._lost}")
        return code, sig

    def kill(self, sig: int) -> None:
        """A signal to all processes of the job; before there are any, it ends the launch."""
        with self._lock:
            self._killed = sig
            self._stop.set()
            if self._running is not None:
                self._running.kill(sig)

    def _run(self, task: Task, connection: AgentConnection | None) -> tuple[int, int]:
        try:
            with self._lock:
                if self._killed:
                    return 0, self._killed
                self._running = self._runner.start(task)
            if connection is not None:
                connection.watch(self._session_lost)
            return self._running.wait()
        except OSError as error:
            self._tell_error(f"{error.filename or task.argv[0]}: {os.strerror(error.errno or 0)}")
            return _FAILED, 0

    def _session_lost(self, reason: str) -> None:
        with self._lock:
            self._lost = reason
            if self._running is not None:
                self._running.kill(signal.SIGKILL)

    def _path(self) -> Path:
        assert self._settings.state_dir is not None
        return self._settings.state_dir / "sessions" / f"{self._launch.job_id}.session"

    def _session_exists(self) -> bool:
        return self._settings.state_dir is not None and os.path.lexists(self._path())

    def _session(self) -> dict[str, str]:
        """The fields of a granted session file. NodeRefusal; InterruptedError when killed meanwhile."""
        settings, launch = self._settings, self._launch
        node = launch.task.node
        if settings.state_dir is None or settings.key_file is None:
            raise NodeRefusal("plugstack.conf does not name the juice command and the state directory")
        try:
            key = settings.key_file.read_bytes()
        except OSError as error:
            raise NodeRefusal(f"on {node}: the key file {settings.key_file}: {error.strerror}") from None
        path = self._path()
        deadline = time.monotonic() + settings.session_wait_s
        pause = 0.02
        while True:
            fault, fields = self._open(path, key)
            stale = (
                fields is not None and launch.restarts is not None and int(fields["restart_count"]) != launch.restarts
            )
            if fields is not None and not stale:
                break
            if (fault is not None and fault.kind not in _PASSING) or time.monotonic() >= deadline:
                if fields is not None:
                    raise NodeRefusal(
                        f"{path} on {node} is of start {fields['restart_count']} of the job, and this is start "
                        f"{launch.restarts}"
                    )
                if fault.kind == "missing":
                    raise NodeRefusal(
                        f"{path} did not appear on {node} within {settings.session_wait_s:g} s; "
                        "is the directory shared with the slurmctld host?"
                    )
                raise NodeRefusal(f"on {node}: {fault}")
            if self._stop.wait(pause):
                raise InterruptedError
            pause = min(pause * 1.5, 0.25)
        if fields["verdict"] == "denied":
            raise NodeRefusal(f"denied: {fields['reason']}")
        return fields

    def _open(self, path: Path, key: bytes) -> tuple[Any, dict[str, str] | None]:
        """(fault, None) or (None, fields)."""
        hook = hook_module()
        settings, launch = self._settings, self._launch
        try:
            return None, hook.open_session(
                str(path), key, settings.cluster_name, launch.job_id, launch.user_id, settings.owners
            )
        except hook.SessionFileError as error:
            return error, None

    def _tell_error(self, text: str) -> None:
        self.tell(f"slurmstepd-{self._launch.task.node}: error: {text}")

    def tell(self, line: str) -> None:
        """A line to the job's stderr."""
        try:
            with open(self._launch.task.stderr, "a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            print(f"job {self._launch.job_id}: {line} (and its stderr cannot be written: {error})", file=sys.stderr)
