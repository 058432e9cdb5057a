"""One agent that runs.

What an agent does is decided by `core.agent.AgentCore`; here its instructions become HTTP requests and sockets. The
rhythm is the real agent's (read the own record, start, cancel, report, each second), with one addition: a controller
whose answers carry `ETag` knows `?wait=`, and then one report waits at the controller until there is something to do.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import aiohttp
import msgspec

from . import __version__, agent_metrics
from .agent_client import AgentClient
from .agent_http import TAKEN_OVER, HttpServer, Refusal, Request, Response, as_json
from .agent_wire import SessionBody, record_of, register_body, report_body, retry_after_s
from .core import agent as core
from .core.commands import RegisterAgent
from .core.model import Connection, Gpu

if TYPE_CHECKING:
    from .agent_process import AgentHost

log = logging.getLogger("juice_sim.agent")

LONGEST_WAIT_S = 8.0  # well below the 30 s of silence after which an agent is missing
REQUEST_TIMEOUT_S = 15.0
NUDGE_EVERY_S = 0.25
NEWS_WAIT_S = 1.0
METRICS_EVERY_S = 5.0
METRICS_AGAIN_S = 0.5
STOP_S = 5.0


class AgentFailed(Exception):
    """The controller does not take this agent; one line that says why."""


@dataclass(frozen=True)
class AgentSpec:
    """What one agent is. `host` and `port` are where it listens (port 0: a free one); `address` what it says of that.

    `hostname` "" is this machine's, numbered when several agents share one address.
    """

    pool_id: str
    gpus: tuple[Gpu, ...]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: Mapping[str, str] = field(default_factory=dict)
    hostname: str = ""
    host: str = "127.0.0.1"
    port: int = 0
    address: str = ""
    pool_name: str = ""
    version: str = __version__


class Agent:
    """One agent. `await start()` returns when it has registered; `await stop()` ends its sessions and signs off."""

    def __init__(self, host: AgentHost, spec: AgentSpec, server: HttpServer | None) -> None:
        self._host = host
        self.spec = spec
        self._own_server = HttpServer(self.answer) if server is None else None
        self._server = server or self._own_server
        self.core: core.AgentCore
        self.address = ""
        self._clients: dict[tuple[str, str], AgentClient] = {}
        self._task: asyncio.Task[None] | None = None
        self._news = asyncio.Event()
        self._registered: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._record: core.RecordRead | None = None
        self._seen = ""
        self._failed = False
        self._waiting = False
        self._metrics_at = 0.0
        self._measuring: asyncio.TimerHandle | None = None
        self._numbers = 0
        self._complaint = ""
        self._random = random.Random()

    @property
    def id(self) -> str:
        """The id that the controller gave; "" before registration."""
        return self.core.agent_id

    async def start(self, timeout_s: float | None = 30.0) -> Agent:
        """Listen and register. Raises AgentFailed when the controller refuses or cannot be reached in time."""
        if self._own_server is not None:
            await self._own_server.start(self.spec.host, self.spec.port)
        assert self._server is not None
        shown = f"[{self._server.host}]" if ":" in self._server.host else self._server.host
        self.address = self.spec.address or f"{shown}:{self._server.port}"
        self.core = core.AgentCore(
            RegisterAgent(
                hostname=self.spec.hostname or self._host.free_hostname(),
                address=self.address,
                pool_id=self.spec.pool_id,
                gpus=self.spec.gpus,
                version=self.spec.version,
                labels=dict(self.spec.labels),
                taints=dict(self.spec.taints),
            )
        )
        self._task = asyncio.create_task(self._run(), name=f"juice-sim agent {self.address}")
        try:
            await asyncio.wait_for(asyncio.shield(self._registered), timeout_s)
        except asyncio.TimeoutError:
            await self.abandon()
            raise AgentFailed(
                f"the controller at {self._host.controller} has not answered within {timeout_s:g} s; is it running?"
            ) from None
        return self

    async def stop(self) -> None:
        """End the sessions, tell the controller, stop listening. Gives up after a few seconds."""
        if self._task is not None:
            await self._carry_out(self.core.handle(core.Shutdown()))
            self._announce()
            with contextlib.suppress(asyncio.TimeoutError, AgentFailed):
                await asyncio.wait_for(asyncio.shield(self._task), STOP_S)
        await self.abandon()

    async def abandon(self) -> None:
        """Stop at once, as a crash would: nobody is told, connections break."""
        if self._measuring is not None:
            self._measuring.cancel()
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError, AgentFailed):
                await self._task
            self._task = None
        for client in list(self._clients.values()):
            client.writer.transport.abort()
        if self._own_server is not None:
            await self._own_server.stop()
        if not self._registered.done():
            self._registered.cancel()
        elif not self._registered.cancelled():
            self._registered.exception()
        self._host.forget(self)

    async def finished(self) -> None:
        """Return when the agent has ended; raises AgentFailed when the controller will not have it."""
        if self._task is not None:
            await asyncio.shield(self._task)

    def drain(self) -> None:
        """Take no further sessions; those that run go on."""
        self.core.handle(core.Drain())
        self._announce()

    def resume(self) -> None:
        """Take sessions again."""
        self.core.handle(core.Resume())
        self._announce()

    def accounts_for(self, session_id: str) -> bool:
        """Whether a program of the session says what VRAM it uses; of others, it must be taken as all that they may."""
        return any(client.tells_end for (session, _), client in self._clients.items() if session == session_id)

    def connection_changed(self) -> None:
        """A process of a session has told something that the controller should know soon."""
        self._announce()

    def vram_changed(self) -> None:
        """A process has taken or given back VRAM: measure anew, but not for each of its calls."""
        if self._measuring is None:
            wait = max(0.0, METRICS_AGAIN_S - (time.monotonic() - self._metrics_at))
            self._measuring = asyncio.get_running_loop().call_later(wait, self._measure_anew)

    def _measure_anew(self) -> None:
        self._measuring = None
        self._metrics_at = 0.0
        self._announce()

    # -- the rhythm ---------------------------------------------------------------------------------------------------

    async def _run(self) -> None:
        try:
            while self.core.phase is not core.Phase.STOPPED:
                self._news.clear()
                self._failed = False
                await self._carry_out(self.core.handle(core.PollDue()))
                if self._record is not None and not self._failed:
                    continue  # the report has waited at the controller and brought the next record
                if self._failed:
                    await self._pause(self.core.next_poll_s)
                elif not self._stopping() and not self._news.is_set():
                    with contextlib.suppress(asyncio.TimeoutError):
                        await asyncio.wait_for(self._news.wait(), self._scaled(self.core.next_poll_s))
        except AgentFailed as error:
            if not self._registered.done():
                self._registered.set_exception(error)
            raise

    def _stopping(self) -> bool:
        return self.core.phase is core.Phase.STOPPING

    def _scaled(self, seconds: float) -> float:
        """The controller's seconds as this host counts them; spread, so that heartbeats do not come in step."""
        return seconds * self._host.poll_s / core.POLL_S * self._random.uniform(0.85, 1.0)

    async def _pause(self, seconds: float) -> None:
        if self._stopping():
            seconds = min(seconds, 0.2)
        await asyncio.sleep(self._scaled(seconds))

    def _announce(self) -> None:
        """Something has happened here that the controller should know soon."""
        self._news.set()
        if self._waiting and self._host.running:
            self._host.spawn(self._nudge())

    async def _nudge(self) -> None:
        """End the report that waits at the controller: any later request of this agent does."""
        while self._waiting and self._news.is_set():
            with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError, OSError):
                await self._host.request("GET", f"/v1/agent/{self.core.agent_id}?wait=0")
            await asyncio.sleep(NUDGE_EVERY_S)

    async def _carry_out(self, instructions: list[core.Instruction]) -> None:
        todo = list(instructions)
        while todo:
            instruction = todo.pop(0)
            if isinstance(instruction, core.SendRegister):
                todo += await self._register(instruction.command)
            elif isinstance(instruction, core.SendFetch):
                todo += await self._fetch(instruction.agent_id)
            elif isinstance(instruction, core.SendReport):
                todo += await self._report(instruction)
            else:
                self._do(instruction)

    def _do(self, instruction: core.Instruction) -> None:
        if isinstance(instruction, core.StartSession):
            self._host.welcome(instruction.session_id, self)
        elif isinstance(instruction, core.EndSession):
            self._host.unwelcome(instruction.session_id)
        elif isinstance(instruction, core.KillConnection):
            client = self._clients.get((instruction.session_id, instruction.connection_id))
            if client is not None:
                client.kill()
        elif isinstance(instruction, core.Complain):
            # A controller that is down is one line, not one a second.
            level = logging.DEBUG if instruction.text == self._complaint else logging.WARNING
            self._complaint = instruction.text
            log.log(level, "agent %s: %s", self.address, instruction.text)
        elif isinstance(instruction, core.GiveUp):
            raise AgentFailed(instruction.reason)

    async def _register(self, command: RegisterAgent) -> list[core.Instruction]:
        try:
            status, headers, body = await self._host.request("POST", "/v1/register/agent", register_body(command))
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            return self._no_answer(error)
        if status != 200:
            return self._refused(status, headers, body)
        instructions = self.core.handle(core.Registered(body.decode("ascii", "replace").strip()))
        self._seen, self._record = "", None
        if not self._registered.done():
            self._registered.set_result(self.core.agent_id)
        self._news.set()  # there may be sessions already
        return instructions

    async def _fetch(self, agent_id: str) -> list[core.Instruction]:
        record, self._record = self._record, None
        if record is None:
            try:
                status, headers, body = await self._host.request("GET", f"/v1/agent/{agent_id}")
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                return self._no_answer(error)
            if status != 200:
                return self._refused(status, headers, body)
            try:
                record = record_of(body)
            except msgspec.MsgspecError as error:
                return self._no_answer(error)
            self._seen = headers.get("ETag", "").strip('"')
        return self.core.handle(record)

    async def _report(self, instruction: core.SendReport) -> list[core.Instruction]:
        path = f"/v1/agent/{instruction.command.agent_id}"
        wait = 0.0
        if self._seen and not self._stopping() and self._host.may_wait:
            wait = self._host.longest_wait_s * self._random.uniform(0.5, 1.0)
            if instruction.command.sessions:
                wait = min(wait, NEWS_WAIT_S)  # what is reported counts as taken only when the answer is here
            path = f"{path}?wait={wait:.2f}&seen={self._seen}"
        metrics = None
        if time.monotonic() - self._metrics_at >= METRICS_EVERY_S or instruction.command.sessions:
            metrics = agent_metrics.measured(self)
            self._metrics_at = time.monotonic()
        # What happens from here on is not in the report.
        self._news.clear()
        self._waiting = wait > 0
        try:
            status, headers, body = await self._host.request(
                "PUT", path, report_body(instruction.command, metrics), REQUEST_TIMEOUT_S + wait
            )
        except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
            return self._no_answer(error)
        finally:
            self._waiting = False
        if status != 200:
            return self._refused(status, headers, body)
        instructions = self.core.handle(core.ReportAccepted())
        if wait and body:
            try:
                self._record = record_of(body)
            except msgspec.MsgspecError as error:
                log.warning("agent %s: the controller's answer is unreadable: %s", self.address, error)
            else:
                self._seen = headers.get("ETag", "").strip('"')
        elif wait:
            self._seen = ""
        return instructions

    def _no_answer(self, error: BaseException) -> list[core.Instruction]:
        self._failed, self._record = True, None
        return self.core.handle(core.RequestFailed(None, str(error) or type(error).__name__))

    def _refused(self, status: int, headers: Mapping[str, str], body: bytes) -> list[core.Instruction]:
        self._failed, self._record = True, None
        reason = body[:300].decode("utf-8", "replace")
        with contextlib.suppress(ValueError, KeyError, TypeError):
            reason = str(json.loads(body)["message"])
        after = retry_after_s(headers.get("Retry-After"), time.time())
        return self.core.handle(core.RequestFailed(status, " ".join(reason.split()), after))

    # -- the agent's own endpoint -------------------------------------------------------------------------------------

    async def answer(self, request: Request) -> Response | None:
        """One request to this agent."""
        path, method = request.path, request.method
        if path == "/health":
            return only(method, "GET") or Response()
        if path == "/v1/status":
            return only(method, "GET") or as_json(
                {"state": "Active", "version": self.spec.version, "hostname": self.core.template.hostname}
            )
        if path == "/metrics":
            body, content_type = agent_metrics.render([self])
            return only(method, "GET") or Response(200, body, content_type)
        if path.startswith("/v1/session/"):
            return self._session(method, path.removeprefix("/v1/session/"))
        if path.startswith("/v1/connect/session/"):
            return await self._connect(request, path.removeprefix("/v1/connect/session/"))
        return as_json({"message": f"no such path: {path[:200]}"}, 404)

    def _session(self, method: str, session_id: str) -> Response:
        session = self.core.sessions.get(session_id)
        if session is None:
            return as_json({"message": f"session {session_id[:100]} is not on this agent"}, 404)
        if method == "GET":
            body = SessionBody.of(session, self.address, self.spec.pool_id, self.spec.version)
            return Response(200, msgspec.json.encode(body), "application/json")
        if method == "DELETE":
            self._host.spawn(self._cancel_here(session_id))
            return as_json(f"Session {session_id} cancelled")
        return as_json({"message": f"{method} is not for a session; accepted: GET, DELETE"}, 405)

    async def _cancel_here(self, session_id: str) -> None:
        """A cancel that was asked of the agent goes the usual way: through the controller."""
        with contextlib.suppress(aiohttp.ClientError, asyncio.TimeoutError, OSError):
            await self._host.request("DELETE", f"/v1/session/{session_id}")

    async def _connect(self, request: Request, session_id: str) -> Response | None:
        if request.method != "POST":
            return as_json({"message": f"{request.method} is not for a connection; accepted: POST"}, 405)
        try:
            body = json.loads(request.body or b"null") or {}
            name, pid = str(body.get("processName", "")), body.get("pid", 0)
            wanted = str(body.get("id") or "")[:128]
        except (ValueError, AttributeError, RecursionError):
            raise Refusal(400, 'the body is not JSON; accepted: {"id","pid","processName"}') from None
        if not isinstance(pid, int) or isinstance(pid, bool):
            raise Refusal(400, f"pid is {pid!r}; accepted: a process id")
        self._numbers += 1
        connection_id = wanted or f"{self._numbers}"
        tells_end = body.get("tellsEnd") is True
        refusal = self.core.handle(core.Connected(session_id, Connection(connection_id, pid, name)))
        for instruction in refusal:
            if isinstance(instruction, core.RefuseConnection):
                status = 404 if session_id not in self.core.sessions else 409
                return as_json({"message": instruction.reason}, status)
        client = self._clients[session_id, connection_id] = AgentClient(
            request, self, session_id, connection_id, tells_end
        )
        self._announce()
        exit_code = core.KILLED
        try:
            exit_code = await client.until_it_ends()
        finally:
            del self._clients[session_id, connection_id]
            ended = self.core.handle(
                core.ProcessEnded(session_id, connection_id, core.KILLED if client.killed else exit_code)
            )
            for instruction in ended:
                self._do(instruction)
            self._announce()
        return TAKEN_OVER


def only(method: str, accepted: str) -> Response | None:
    """None when the method is the accepted one, else the answer 405."""
    if method == accepted:
        return None
    return as_json({"message": f"{method} is not for this path; accepted: {accepted}"}, 405)
