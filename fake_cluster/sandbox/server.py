"""The sandbox itself: brings a `World` up, answers on the control socket, and takes all down at SIGTERM.

Run by the keeper as `python -m fake_cluster.sandbox.server NAME DIRECTORY STATUS_FD`. On the status descriptor goes one
line of JSON once it is known whether everything is up: `{"ready": true}` or `{"error": text}`.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from juice_sim.client import ApiError, Client
from juice_sim.core.units import format_vram

from .. import client_library
from ..scenario import PoolSpec
from ..slurm.interface import CommandFailed
from ..slurm.runners import LocalRunner, Runner, Running, Task
from ..slurm.supervisor import PR_SET_PDEATHSIG, prctl
from ..world import World
from ..world_service import LocalService, Service, WorldError
from .control import ControlServer, Reply
from .licenses import SandboxLicenses
from .places import Place, write_json
from .processes import JOB_VARIABLE
from .slurm_commands import StandIns
from .snapshot import juice_state, slurm_state
from .spec import SandboxSpec

log = logging.getLogger("sandbox")
RECONCILE_EVERY_S = 60.0


class MarkedRunner(Runner):
    """Runs jobs here, with a variable that tells whose they are."""

    def __init__(self, directory: Path) -> None:
        self._local = LocalRunner()
        self._mark = {JOB_VARIABLE: str(directory)}

    def start(self, task: Task) -> Running:
        return self._local.start(replace(task, environment={**task.environment, **self._mark}))


class SandboxService(LocalService):
    """The controller and agents of a sandbox; jobs of a simulated Slurm carry its mark."""

    def __init__(self, world: SandboxWorld) -> None:
        super().__init__(world.scenario, world.directory / "juice")
        self._place = world.directory

    def runner(self) -> Runner:
        return MarkedRunner(self._place)


class SandboxWorld(World):
    """A world whose service is a sandbox's."""

    def _make_service(self) -> Service:
        return SandboxService(self)


class Sandbox:
    """Everything that runs. `start` may raise what `FAILURES` lists; `stop` may be called twice."""

    def __init__(self, place: Place, spec: SandboxSpec) -> None:
        self.place = place
        self.spec = spec
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._licenses = SandboxLicenses(place, spec) if spec.licenses else None
        conf = self._licenses.slurm_conf() if self._licenses else ()
        self.world = SandboxWorld(
            spec.scenario(self._licenses.declared if self._licenses else ""),
            slurm_kind=spec.slurm,
            directory=place.directory,
            juice_dir=client_library.install(place.directory),
            extra_conf=conf,
        )
        self._control: ControlServer | None = None
        self._stand_ins: StandIns | None = None

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        place = self.place
        place.record("server", os.getpid())
        if self._licenses:
            self._licenses.install()
        self.world.start()
        place.record("daemons", *self._daemon_pids())
        token_file = place.directory / "juice" / "data" / "admin.token"
        if self._licenses:
            self._licenses.start(self.world.service.url, self.world.service.calls.token, self._environment())
        self._control = ControlServer(place.control_socket, self._answer)
        if self.spec.slurm == "simulated":
            self._stand_ins = StandIns(self.world.slurm, place)
            self._stand_ins.install()
        self._control.start()
        write_json(
            place.directory / "ready.json",
            {
                "slurm": self.spec.slurm,
                "version": self._version(),
                "controller": self.world.service.url,
                "admin_token_file": str(token_file),
                "environment": self._environment(),
                "started_at": time.time(),
            },
        )
        timer = threading.Thread(target=self._reconcile, name="reconcile", daemon=True)
        timer.start()

    def stop(self) -> None:
        self._stopping.set()
        control, self._control = self._control, None
        if control is not None:
            control.stop()
        if self._licenses:
            self._licenses.stop()
        self.world.stop()

    def wait(self) -> None:
        """Until SIGTERM. A dying daemon is told in the log; a sandbox is there to break things in."""
        self._stopping.wait()

    def ask_to_stop(self) -> None:
        self._stopping.set()

    def _daemon_pids(self) -> list[int]:
        found = []
        for owner in (self.world.service, self.world.slurm):
            daemons = getattr(owner, "daemons", None)
            if daemons is not None:
                found += [daemons.supervisor_pid, *daemons.descendants()]
        return found

    def _version(self) -> str:
        version = getattr(self.world.slurm, "version", None)
        return str(version) if version else f"{self.world.scenario.slurm.version} (simulated)"

    def _environment(self) -> dict[str, str]:
        """What a shell needs to use this Slurm."""
        if self.spec.slurm == "simulated":
            return {"PATH": str(self.place.commands_dir)}
        environment: dict[str, str] = getattr(self.world.slurm, "environment")  # noqa: B009 only the real one has it
        return dict(environment)

    # -- requests -----------------------------------------------------------------------------------------------------

    def _answer(self, request: Mapping[str, Any], reply: Reply) -> None:
        op = request.get("op")
        if op == "status":
            reply.result(self.status())
        elif op == "slurm" and self._stand_ins is not None:
            self._stand_ins.run(request, reply)
        else:
            reply.error(f"this sandbox has no operation {op!r}")

    def status(self) -> dict[str, Any]:
        """See snapshot.py; what cannot be asked now is said under `controller_problem`, `slurm_problem`."""
        value: dict[str, Any] = {
            "name": self.spec.name,
            "slurm": self.spec.slurm,
            "version": self._version(),
            "controller": self.world.service.url,
            "directory": str(self.place.directory),
        }
        try:
            with Client(self.world.service.url, self.world.service.calls.token, tries=2, timeout_s=10.0) as client:
                value |= juice_state(client)
        except ApiError as error:
            value |= {"pools": [], "sessions": [], "controller_problem": str(error)}
        return value | slurm_state(self.world.slurm)

    # -- the timer ----------------------------------------------------------------------------------------------------

    def _reconcile(self) -> None:
        """The hooks' reconcile, as a systemd timer would run it."""
        while not self._stopping.wait(RECONCILE_EVERY_S):
            try:
                done = self.world.reconcile()
            except (OSError, CommandFailed, ValueError) as error:
                log.warning("reconcile could not run: %s", error)
                continue
            if done is not None and (done.returncode != 0 or "0 session(s) released" not in done.text):
                log.info("reconcile (exit %d): %s", done.returncode, done.text)


FAILURES = (WorldError, TimeoutError, OSError, ValueError, RuntimeError, CommandFailed, ApiError)


def pool_text(pool: PoolSpec) -> str:
    """A pool in one line, for the log."""
    size = f", {format_vram(pool.vram)}" if pool.vram else ""
    return f"{pool.name}: {pool.agents} agent(s) with {pool.gpus} x {pool.model}{size}"


def _tell(status: int, value: Mapping[str, Any]) -> None:
    with contextlib.suppress(BrokenPipeError):  # `up` has been interrupted, and takes us down itself
        os.write(status, json.dumps(value).encode() + b"\n")
    os.close(status)


def main() -> int:
    place, status = Place(sys.argv[1], Path(sys.argv[2])), int(sys.argv[3])
    os.set_inheritable(status, False)
    keeper = os.getppid()
    prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    for sig in (signal.SIGINT, signal.SIGHUP):
        signal.signal(sig, signal.SIG_IGN)
    logging.basicConfig(
        filename=place.server_log, level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
    for name in ("urllib3", "aiohttp.access"):
        logging.getLogger(name).setLevel(logging.WARNING)
    spec = place.spec()
    sandbox: Sandbox | None = None
    starting = True

    def stop(number: int, frame: object) -> None:
        nonlocal starting
        if starting:
            starting = False  # once only: taking down what has been started must not be interrupted
            raise KeyboardInterrupt
        if sandbox is not None:
            sandbox.ask_to_stop()

    signal.signal(signal.SIGTERM, stop)
    try:
        if os.getppid() != keeper:
            return 1  # it died before the kernel knew that we want to hear of it
        for pool in spec.pools:
            log.info("pool %s", pool_text(pool))
        sandbox = Sandbox(place, spec)
        sandbox.start()
        starting = False
    except KeyboardInterrupt:
        if sandbox is not None:
            sandbox.stop()
        _tell(status, {"error": "interrupted"})
        return 130
    except FAILURES as error:
        starting = False
        log.exception("cannot start")
        if sandbox is not None:
            sandbox.stop()
        _tell(status, {"error": " ".join(str(error).split()) or type(error).__name__})
        return 1
    log.info("up")
    _tell(status, {"ready": True})
    sandbox.wait()
    log.info("going down")
    (place.directory / "ready.json").unlink(missing_ok=True)
    sandbox.stop()
    if spec.slurm == "simulated":
        shutil.rmtree(place.commands_dir, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
