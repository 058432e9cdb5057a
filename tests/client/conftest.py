"""A controller and agents in this process, the client library as it is built here, and programs that run with it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from juice_sim.client_build import build_client
from juice_sim.local import LocalJuice
from juice_sim.wire_types import Connection

GIB = 1 << 30
LIMIT_S = 60


def until(condition: Callable[[], Any], what: str, limit_s: float = 30.0) -> Any:
    """Wait for a condition; its value."""
    end = time.monotonic() + limit_s
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {limit_s:g} s: {what}")
        time.sleep(0.01)


@pytest.fixture
def wait_until() -> Callable[..., Any]:
    return until


@pytest.fixture(scope="session")
def client_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the library and nvidia-smi."""
    directory = tmp_path_factory.mktemp("client")
    build_client(directory)
    return directory


@pytest.fixture
def juice() -> Iterator[LocalJuice]:
    with LocalJuice() as one:
        yield one


@dataclass
class Session:
    """A session, and programs in it."""

    juice: LocalJuice
    directory: Path
    id: str
    address: str
    gpus: int

    def environment(self, **more: str) -> dict[str, str]:
        """What the plugin sets for a task, added to this process's environment."""
        config = {"id": self.id, "servers": [self.address], "accessToken": "", "requirements": {}}
        return {
            **os.environ,
            "JUICE_CFG_OVERRIDE": json.dumps(config),
            "LD_PRELOAD": str(self.directory / "libjuicejuda.so"),
            "CUDA_VISIBLE_DEVICES": ",".join(str(at) for at in range(self.gpus)),
            **more,
        }

    def run(self, *command: str, **more: Any) -> subprocess.CompletedProcess[str]:
        """Run a program to its end. `env` adds variables."""
        environment = self.environment(**more.pop("env", {}))
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=LIMIT_S, **more)

    def python(self, program: str, **more: Any) -> subprocess.CompletedProcess[str]:
        return self.run(sys.executable, "-c", program, **more)

    def start(self, *command: str, **more: Any) -> subprocess.Popen[str]:
        environment = self.environment(**more.pop("env", {}))
        return subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **more,
        )

    def connections(self) -> list[Connection]:
        """As the controller shows them."""
        return self.juice.client.session(self.id).connections or []

    def ended(self, pid: int) -> int | None:
        """The exit code that the controller knows of a process; None while it has not got one."""
        for connection in self.connections():
            if connection.pid == pid:
                return connection.exit_code
        return None

    def named(self) -> set[tuple[str, int | None]]:
        return {(c.process_name, c.exit_code) for c in self.connections()}

    def used(self) -> int:
        """Bytes of VRAM in use on the first agent, as the controller shows its metrics."""
        (agent,) = self.juice.client.agents()
        return sum(gpu.metrics.vram_used for gpu in agent.gpus)


@pytest.fixture
def make_session(juice: LocalJuice, client_dir: Path) -> Callable[..., Session]:
    """Make a session: `vram` bytes of one GPU, or `gpus` whole ones."""
    pools: dict[int, str] = {}

    def make(vram: int = GIB, gpus: int = 1) -> Session:
        if not pools:
            pools[0] = juice.add_pool("test", gpus=max(2, gpus))
        session_id = juice.client.request_session(pools[0], gpus=gpus, vram=vram)
        found = juice.client.wait_for_session(session_id)
        assert found.state == "active"
        return Session(juice, client_dir, session_id, found.address, gpus)

    return make


@pytest.fixture
def session(make_session: Callable[..., Session]) -> Session:
    """A slice of 1 GiB."""
    return make_session()
