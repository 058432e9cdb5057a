"""Starts a sandbox in the background, asks it, and takes it down, whatever has become of it."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from juice_sim.machine import probe

from ..slurm.real import available
from ..world_service import child_environment
from .places import NoSandbox, Place, create, find
from .processes import Process, kill_all, left_behind
from .spec import SandboxSpec

START_TIMEOUT_S = 180.0
STOP_TIMEOUT_S = 60.0


class CannotStart(Exception):
    """The sandbox did not come up; everything is stopped again. `str(error)` is one line."""


def why_not_real() -> str | None:
    """None when a sandbox with a real Slurm can be had here, else the reason with its remedy, in one line."""
    problem = available()
    if problem is not None:
        return " ".join(problem.split())
    compiler = probe("compiler")
    return None if compiler.ok else f"{compiler.detail} (for the SPANK plugin); to get it: {compiler.remedy}"


def start(spec: SandboxSpec, directory: Path | None = None) -> Place:
    """Bring a sandbox up and return when it is ready. Raises NoSandbox (name taken), BadSpec (directory), CannotStart;
    on KeyboardInterrupt everything is stopped."""
    place = create(spec, directory)
    try:
        _start(place)
    except BaseException:
        stop(place)
        raise
    return place


def _start(place: Place) -> None:
    status_r, status_w = os.pipe()
    with open(place.server_log, "ab") as log, os.fdopen(status_r, "rb") as status:
        os.fchmod(log.fileno(), 0o600)
        try:
            keeper = subprocess.Popen(
                [
                    *(sys.executable, "-m", "fake_cluster.sandbox.keeper"),
                    *(place.name, str(place.directory), str(status_w)),
                ],
                pass_fds=[status_w],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd="/",
                env=child_environment(),
                start_new_session=True,
            )
        finally:
            os.close(status_w)
        place.record("keeper", keeper.pid)
        readable, _, _ = select.select([status], [], [], START_TIMEOUT_S)
        if not readable:
            raise CannotStart(f"it is not ready after {START_TIMEOUT_S:g} s; the log ends: {_log_end(place)}")
        line = status.readline()
    answer = json.loads(line) if line.strip() else {"error": f"its process ended; the log ends: {_log_end(place)}"}
    if "error" in answer:
        raise CannotStart(str(answer["error"]))


def _log_end(place: Place) -> str:
    with contextlib.suppress(OSError):
        lines = [line.strip() for line in place.server_log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:]) or "(nothing)"
    return "(nothing)"


def stop(place: Place) -> list[Process]:
    """End everything that the sandbox has started and remove its directory; what could not be ended (then the directory
    is still there). Works too when keeper, server or both were killed."""
    deadline = time.monotonic() + STOP_TIMEOUT_S
    keepers, servers = place.processes("keeper"), place.processes("server")
    if keepers:
        for process in keepers:
            process.send(signal.SIGTERM)
    for process in servers if not keepers else ():
        process.send(signal.SIGTERM)
    for process in (*keepers, *servers):
        process.wait(max(0.0, deadline - time.monotonic()))
    # The server first: the keeper then kills what descends from it.
    kill_all(place.processes("server"))
    for process in keepers:
        process.wait(10.0)
    kill_all(place.processes("keeper"))
    # The owner of a private Slurm needs a moment after its own owner's death.
    settled = time.monotonic() + 5.0
    while place.processes("daemons") and time.monotonic() < settled:
        time.sleep(0.02)
    rest = kill_all(place.processes("daemons")) + kill_all(left_behind(str(place.directory)))
    if not rest:
        place.remove()
    return rest


def ask(place: Place, op: str, timeout_s: float = 60.0) -> Any:
    """The result of an operation. Raises NoSandbox when the sandbox does not answer."""
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(timeout_s)
    try:
        with connection:
            connection.connect(str(place.control_socket))
            connection.sendall(json.dumps({"op": op}).encode() + b"\n")
            with connection.makefile("rb") as answers:
                answer = json.loads(answers.readline() or b'{"error": "it hung up"}')
    except (OSError, ValueError) as error:
        if place.runs:
            raise NoSandbox(f"sandbox {place.name!r} does not answer ({error}); see: juice-sim logs sandbox") from None
        raise NoSandbox(
            f"sandbox {place.name!r}: its supervisor is gone; clean up: juice-sim down --name {place.name}"
        ) from None
    if "error" in answer:
        raise NoSandbox(f"sandbox {place.name!r}: {answer['error']}")
    return answer["result"]


def running(name: str | None) -> Place:
    """The sandbox of that name (see `places.find`), which must be up. Raises NoSandbox."""
    place = find(name)
    if not place.runs:
        raise NoSandbox(f"sandbox {place.name!r}: its supervisor is gone; clean up: juice-sim down --name {place.name}")
    place.ready()
    return place
