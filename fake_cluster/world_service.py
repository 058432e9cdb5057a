"""The Juice service of a run: a controller and its agents, somewhere, that can be broken on purpose.

`LocalService` has them as processes of this host: the real `juice-sim controller`, and one `juice-sim agent` per agent,
so that a dying agent is a killed process and a hanging one a stopped process. `world_ray.py` has them as Ray actors.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import juice_sim
from juice_sim.core.settings import Settings
from juice_sim.hooks_install import write_private

from .controller_calls import ControllerCalls
from .scenario import PoolSpec, Scenario
from .slurm.daemons import Daemons
from .slurm.ports import Ports
from .slurm.runners import LocalRunner, Runner

START_TIMEOUT_S = 60.0
_PACKAGE_ROOT = Path(juice_sim.__file__).resolve().parent.parent


class WorldError(Exception):
    """The world of a run cannot be brought up; `str(error)` says what failed and what it printed."""


@dataclass(frozen=True)
class AgentPlace:
    """One agent of the scenario: its pool and its position there, from 0; `registered` is the host name that it has
    now, where that is not made of the two."""

    pool: str
    position: int
    registered: str = field(default="", compare=False)

    @property
    def hostname(self) -> str:
        return self.registered or f"{self.pool}-{self.position + 1}"


class Service(ABC):
    """A controller and agents. `url` stays the same when the controller is killed and started again."""

    url: str
    calls: ControllerCalls
    pool_ids: Mapping[str, str]

    @abstractmethod
    def start(self) -> None:
        """Bring up the controller, the pools and the agents; returns when all agents are registered."""

    @abstractmethod
    def stop(self) -> None:
        """End everything that was started. May be called twice."""

    @abstractmethod
    def kill_controller(self, sig: int) -> None:
        """End the controller's process and return when it is gone."""

    @abstractmethod
    def start_controller(self) -> None:
        """Have the controller back with the same data; returns when it answers."""

    @abstractmethod
    def agents(self) -> list[AgentPlace]:
        """The agents that are alive, hanging ones included."""

    @abstractmethod
    def kill_agent(self, place: AgentPlace) -> None:
        """The agent ends at once; nobody is told."""

    @abstractmethod
    def hang_agent(self, place: AgentPlace) -> None:
        """The agent does nothing more, but its connections stay open."""

    @abstractmethod
    def return_agent(self, place: AgentPlace) -> str:
        """A hanging agent goes on, a dead one is started anew; says which."""

    @abstractmethod
    def runner(self) -> Runner:
        """Where the simulated Slurm runs its jobs."""


def child_environment() -> dict[str, str]:
    """What our own programs need in their environment: no secret, nothing of the user's but where programs are."""
    paths = [str(_PACKAGE_ROOT)]
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": os.environ.get("HOME", "/"),
        "LANG": "C.UTF-8",
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONDONTWRITEBYTECODE": os.environ.get("PYTHONDONTWRITEBYTECODE", ""),
    }


def command(*arguments: str | Path) -> list[str]:
    """The argv of a `juice-sim` subcommand run with this interpreter."""
    return [sys.executable, "-m", "juice_sim.cli.main", *map(str, arguments)]


class LocalService(Service):
    """Processes of this host. `directory` gets data, logs and the admin's token."""

    def __init__(self, scenario: Scenario, directory: Path) -> None:
        self._scenario = scenario
        self._directory = directory
        self._daemons: Daemons | None = None
        self._ports: Ports | None = None
        self._controller: int | None = None
        self._agents: dict[AgentPlace, int] = {}
        self._hanging: set[AgentPlace] = set()
        self._agent_token: Path | None = None
        self.pool_ids: dict[str, str] = {}

    @property
    def daemons(self) -> Daemons:
        assert self._daemons is not None, "the service has not been started"
        return self._daemons

    def start(self) -> None:
        self._daemons = Daemons()
        places = [AgentPlace(pool.name, position) for pool in self._scenario.pools for position in range(pool.agents)]
        self._directory.mkdir(parents=True, exist_ok=True)
        self._ports = Ports(1 + len(places))
        self._agent_ports = dict(zip(places, self._ports.numbers[1:], strict=True))
        self.url = f"http://127.0.0.1:{self._ports.numbers[0]}"
        self.calls = ControllerCalls(self.url, None)
        self.start_controller()
        if self._scenario.controller.auth:
            told = json.loads((self._directory / "controller.out").read_text().splitlines()[-1])
            self.calls.token = Path(told["admin_token_file"]).read_text().strip()
        self.pool_ids = {pool.name: self.calls.create_pool(pool.name) for pool in self._scenario.pools}
        if self._scenario.controller.auth:
            permissions = [{"permission": "register_agent", "poolId": pool_id} for pool_id in self.pool_ids.values()]
            _, secret, _ = self.calls.create_token("agents", permissions, lifetime_s=86400.0)
            self._agent_token = self._directory / "agent-token"
            write_private(self._agent_token, secret.encode() + b"\n", 0o400)
        for place in places:
            self._spawn_agent(place)
        for place in places:
            self._wait_for_agent(place)

    # -- the controller -----------------------------------------------------------------------------------------------

    def start_controller(self) -> None:
        spec = self._scenario.controller
        options: list[str | Path] = ["--listen", self.url.removeprefix("http://"), "--data", self._directory / "data"]
        options += ["--log", self._directory / "controller.log"]
        if not spec.auth:
            options.append("--no-auth")
        if spec.quirks:
            options.append(f"--quirks={','.join(spec.quirks)}")
        if spec.missing_after is not None:
            options += ["--missing-after", str(spec.missing_after)]
        if spec.removed_after is not None:
            options += ["--removed-after", str(spec.removed_after)]
        options += ["--policy", self._policy()]
        output = self._directory / "controller.out"
        output.unlink(missing_ok=True)
        self._controller = self.daemons.spawn(
            command("controller", *options), env=child_environment(), cwd=self._directory, stdout=output, umask=0o077
        )

        def serves() -> bool:
            return self.calls.is_ready() and output.exists() and output.read_bytes().endswith(b"}\n")

        self._until(serves, "the controller", self._controller, output)

    def _policy(self) -> str:
        """The placement policy of all pools: `juice-sim controller` knows one."""
        policies = {pool.policy or Settings().default_policy for pool in self._scenario.pools}
        if len(policies) > 1:
            raise WorldError(
                f"the pools have different policies ({', '.join(sorted(policies))}); `juice-sim controller` has one "
                "for all: use --cluster autoscaling, or give all pools the same"
            )
        return policies.pop()

    def kill_controller(self, sig: int) -> None:
        if self._controller is not None:
            self.daemons.kill(self._controller, sig)
            self._controller = None

    # -- agents -------------------------------------------------------------------------------------------------------

    def _pool(self, place: AgentPlace) -> PoolSpec:
        return self._scenario.pool(place.pool)

    def _output(self, place: AgentPlace) -> Path:
        return self._directory / f"agent-{place.hostname}.out"

    def _spawn_agent(self, place: AgentPlace) -> None:
        pool = self._pool(place)
        options: list[str | Path] = ["--controller", self.url, "--pool", self.pool_ids[pool.name]]
        options += ["--gpus", str(pool.gpus), "--model", pool.model, "--hostname", place.hostname]
        options += ["--listen", f"127.0.0.1:{self._agent_ports[place]}"]
        for name, pairs in (("--labels", pool.labels), ("--taints", pool.taints)):
            if pairs:
                options.append(f"{name}={','.join(f'{key}={value}' for key, value in pairs.items())}")
        if pool.vram is not None:
            options += ["--vram", f"{pool.vram}B"]
        if self._agent_token is not None:
            options += ["--token-file", self._agent_token]
        self._output(place).unlink(missing_ok=True)
        self._agents[place] = self.daemons.spawn(
            command("agent", *options), env=child_environment(), cwd=self._directory, stdout=self._output(place)
        )

    def _wait_for_agent(self, place: AgentPlace) -> None:
        output = self._output(place)

        def registered() -> bool:
            for line in output.read_text(errors="replace").splitlines() if output.exists() else ():
                if line.startswith("{") and "pool_id" in json.loads(line):
                    return True
            return False

        self._until(registered, f"agent {place.hostname}", self._agents[place], output)

    def agents(self) -> list[AgentPlace]:
        return list(self._agents)

    def kill_agent(self, place: AgentPlace) -> None:
        pid = self._agents.pop(place, None)
        self._hanging.discard(place)
        if pid is not None:
            self.daemons.kill(pid)

    def hang_agent(self, place: AgentPlace) -> None:
        if place in self._agents:
            self.daemons.send(self._agents[place], signal.SIGSTOP)
            self._hanging.add(place)

    def return_agent(self, place: AgentPlace) -> str:
        if place in self._hanging:
            self._hanging.discard(place)
            self.daemons.send(self._agents[place], signal.SIGCONT)
            return "goes on"
        if place in self._agents:
            return "was there all the time"
        self._spawn_agent(place)
        return "started anew"

    # -- the rest -----------------------------------------------------------------------------------------------------

    def runner(self) -> Runner:
        return LocalRunner()

    def stop(self) -> None:
        if self._daemons is not None:
            self._daemons.end()
            self._daemons = None
        if self._ports is not None:
            self._ports.release()
            self._ports = None

    def _until(self, ready: object, what: str, pid: int, output: Path) -> None:
        assert callable(ready)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not ready():
            code = self.daemons.returncode(pid)
            if code is not None or time.monotonic() > deadline:
                said = output.read_text(errors="replace")[-2000:].strip() if output.exists() else ""
                how = f"ended with {code}" if code is not None else f"is not ready after {START_TIMEOUT_S:g} s"
                raise WorldError(f"{what} {how}; it printed: {said or 'nothing'}")
            time.sleep(0.05)
