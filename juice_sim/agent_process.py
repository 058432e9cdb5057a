"""Agents in this process: `AgentHost` carries one or thousands of them in one event loop."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from typing import Any

import aiohttp

from . import agent_metrics
from .agent_http import HttpServer, Request, Response, as_json
from .agent_runtime import LONGEST_WAIT_S, REQUEST_TIMEOUT_S, Agent, AgentFailed, AgentSpec, only
from .core import agent as core

__all__ = ["Agent", "AgentFailed", "AgentHost", "AgentSpec"]


class AgentHost:
    """Carries agents in the running event loop; they share its HTTP client, and with `shared` one listening address.

    `async with AgentHost(url, token) as host: agent = await host.add(spec)`. `poll_s` is the real agent's second;
    `may_wait` False makes agents poll as the real ones do even where the controller knows `?wait=`.
    """

    def __init__(
        self,
        controller: str,
        token: str | Callable[[], str] | None = None,
        *,
        shared: tuple[str, int] | None = None,
        poll_s: float = core.POLL_S,
        may_wait: bool = True,
        longest_wait_s: float = LONGEST_WAIT_S,
        ca_file: str | None = None,
    ) -> None:
        self.controller = controller.rstrip("/")
        self._token = token
        self._shared = shared
        self._shared_server: HttpServer | None = None
        self.poll_s = poll_s
        self.may_wait = may_wait
        self.longest_wait_s = longest_wait_s
        self._ca_file = ca_file
        self._http: aiohttp.ClientSession | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._welcome: dict[str, Agent] = {}
        self._hostnames = 0
        self.agents: list[Agent] = []

    @property
    def running(self) -> bool:
        """Whether requests can be sent."""
        return self._http is not None

    async def start(self) -> AgentHost:
        """Get ready to carry agents."""
        ssl: Any = True
        if self._ca_file:
            import ssl as ssl_module

            ssl = ssl_module.create_default_context(cafile=self._ca_file)
        self._http = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=ssl), trust_env=False, auto_decompress=False
        )
        if self._shared is not None:
            self._shared_server = HttpServer(self._answer)
            await self._shared_server.start(*self._shared)
        return self

    async def add(self, spec: AgentSpec, timeout_s: float | None = 30.0) -> Agent:
        """Start an agent; returns when it has registered. Raises AgentFailed."""
        agent = Agent(self, spec, self._shared_server)
        self.agents.append(agent)
        try:
            return await agent.start(timeout_s)
        except BaseException:
            await agent.abandon()
            raise

    async def stop(self) -> None:
        """Stop all agents (each signs off) and give everything back. May be called twice."""
        await asyncio.gather(*(agent.stop() for agent in list(self.agents)))
        await self._close()

    async def abandon(self) -> None:
        """Stop at once without a word, as a crash of the machine would."""
        await asyncio.gather(*(agent.abandon() for agent in list(self.agents)))
        await self._close()

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._shared_server is not None:
            await self._shared_server.stop()
            self._shared_server = None
        if self._http is not None:
            await self._http.close()
            self._http = None

    async def __aenter__(self) -> AgentHost:
        return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def request(
        self, method: str, path: str, body: bytes | None = None, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> tuple[int, Mapping[str, str], bytes]:
        """(status, headers, body) of one request to the controller. Raises aiohttp.ClientError, TimeoutError."""
        if self._http is None:
            raise aiohttp.ClientConnectionError("the host of this agent has stopped")
        headers = {}
        if body is not None:
            headers["Content-Type"] = "application/json"
        token = self._token() if callable(self._token) else self._token
        if token:
            headers["Authorization"] = f"Bearer {token}"
        async with self._http.request(
            method,
            self.controller + path,
            data=body,
            headers=headers,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=timeout_s),
        ) as response:
            return response.status, response.headers, await response.read()

    def spawn(self, work: Any) -> None:
        """Run a coroutine that nobody waits for; it ends with this host at the latest."""
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def free_hostname(self) -> str:
        """This machine's name; with a number when agents share an address, which is told apart by the name then."""
        self._hostnames += 1
        name = socket.gethostname()
        return f"{name}-{self._hostnames}" if self._shared is not None else name

    def welcome(self, session_id: str, agent: Agent) -> None:
        """From now on connections to this session go to this agent."""
        self._welcome[session_id] = agent

    def unwelcome(self, session_id: str) -> None:
        """The session is over."""
        self._welcome.pop(session_id, None)

    def forget(self, agent: Agent) -> None:
        """The agent has stopped."""
        if agent in self.agents:
            self.agents.remove(agent)
        self._welcome = {key: value for key, value in self._welcome.items() if value is not agent}

    async def _answer(self, request: Request) -> Response | None:
        """One request to the shared address: a session tells which agent is meant."""
        for prefix in ("/v1/session/", "/v1/connect/session/"):
            if request.path.startswith(prefix):
                session_id = request.path.removeprefix(prefix)
                agent = self._welcome.get(session_id)
                if agent is None:
                    return as_json({"message": f"session {session_id[:100]} is not on this agent"}, 404)
                return await agent.answer(request)
        if request.path == "/metrics":
            body, content_type = agent_metrics.render(self.agents)
            return only(request.method, "GET") or Response(200, body, content_type)
        if self.agents:
            return await self.agents[0].answer(request)
        return as_json({"message": "no agent is here"}, 503)
