"""Juice in this process: a controller and agents in threads, over real HTTP. Fast to start, gone with the test."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Mapping
from pathlib import Path
from typing import Any, TypeVar

from .agent_process import Agent, AgentHost, AgentSpec
from .client import Client
from .core.settings import Settings
from .core.units import parse_vram
from .gpu_profiles import make_gpus
from .server import ControllerServer

_T = TypeVar("_T")


class LocalJuice:
    """A controller and its agents. `with LocalJuice() as juice: juice.add_pool("test", agents=1, gpus=2)`.

    `data_dir` None keeps all state in memory; `quirks` and `settings` are the controller's. Everything listens on free
    ports of the loopback interface.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        auth: bool = True,
        quirks: str = "",
        settings: Settings | None = None,
    ) -> None:
        self._server = ControllerServer(data_dir, auth=auth, quirks=quirks, settings=settings)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="juice-sim agents", daemon=True)
        self._host: AgentHost | None = None
        self._agents: dict[str, Agent] = {}
        self.client: Client

    @property
    def url(self) -> str:
        """The controller's base URL, without a slash at the end."""
        return self._server.url

    @property
    def token(self) -> str | None:
        """An admin's token; None without authentication."""
        return self._server.admin_token

    @property
    def agents(self) -> list[str]:
        """Ids of the agents that run, in the order in which they were added."""
        return list(self._agents)

    def start(self) -> LocalJuice:
        """Start the controller; agents come with `add_pool`."""
        self._server.start()
        self.client = Client(self.url, self.token)
        self._thread.start()
        self._host = self._run(AgentHost(self.url, self.token).start())
        return self

    def stop(self) -> None:
        """Stop agents and controller. May be called twice."""
        if self._thread.is_alive():
            if self._host is not None:
                self._run(self._host.stop())
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self.client.close()
        self._server.stop()

    def add_pool(
        self,
        name: str,
        *,
        agents: int = 1,
        gpus: int = 1,
        model: str = "A10",
        vram: str | None = None,
        labels: Mapping[str, str] | None = None,
        taints: Mapping[str, str] | None = None,
    ) -> str:
        """Make the pool if it is not there, register `agents` more agents in it and return its id.

        `vram` (a quantity such as `24GiB`) replaces the model's. ValueError for an unknown model or a wrong size.
        """
        assert self._host is not None, "call start() first, or use the object as a context manager"
        pool_id, pool_name, _ = self.client.find_or_create_pool(name)
        size = parse_vram(vram) if vram is not None else None
        for _ in range(agents):
            hostname = f"{name}-{len(self._agents) + 1}"
            spec = AgentSpec(
                pool_id=pool_id,
                pool_name=pool_name,
                gpus=make_gpus(model, gpus, vram=size, identity=hostname),
                labels=labels or {},
                taints=taints or {},
                hostname=hostname,
            )
            agent = self._run(self._host.add(spec))
            self._agents[agent.id] = agent
        return pool_id

    def remove_agent(self, agent_id: str, *, crash: bool = False) -> None:
        """Have an agent sign off, or with `crash` vanish without a word. KeyError for an id that is not here."""
        agent = self._agents.pop(agent_id)
        self._run(agent.abandon() if crash else agent.stop())

    def _run(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout=60)

    def __enter__(self) -> LocalJuice:
        return self.start()

    def __exit__(self, *exc: object) -> None:
        self.stop()
