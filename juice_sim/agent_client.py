"""One process that is connected to a session, as its agent sees it: lines of JSON in place of the GPU protocol.

    client                                      agent
    {"vramUsed": BYTES, "gpu": POSITION}    ->  {"granted": BOOL, "vramFree": BYTES}
    {"gpus": true}                          ->  {"gpus": [...], "processes": [...]}
    {"processName": NAME}                       the process has this name now
    {"exec": NAME}                              the process is about to become this program
    {"exitCode": N}                             the process ends with this code; the last one counts
                                            <-  {"canceled": true}, and the connection is closed

`vramUsed` is what the process uses from now on, not what it takes in addition; without `gpu` it may be on any GPU of
the session. All of it is an extension: a client that sends none of it is a client all the same, and bytes that are no
such line are taken for the GPU protocol's and skipped. Such a client's orderly end counts as exit code 0; one that has
announced itself with `"tellsEnd": true` and closes without a word was killed: -1.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from typing import TYPE_CHECKING, Any, TypeGuard

from . import agent_metrics
from .agent_http import Request
from .core import agent as core

if TYPE_CHECKING:
    from .agent_runtime import Agent

LINGER_S = 2.0  # how long a process that was told to end may keep its half of the connection


class AgentClient:
    """The connection of one process. `tells_end`: it keeps to the lines above."""

    def __init__(
        self, request: Request, agent: Agent, session_id: str, connection_id: str, tells_end: bool = False
    ) -> None:
        self.reader = request.reader
        self.writer = request.writer
        self.killed = False
        self.tells_end = tells_end
        self._agent = agent
        self._session_id = session_id
        self._connection_id = connection_id
        self._exit_code: int | None = None
        self._in_exec = False

    def kill(self) -> None:
        """End the connection from our side: the process is told by one line and by the closed socket."""
        if self.killed:
            return
        self.killed = True
        # Only half of the socket is closed at first: to close it while something of the process's is unread would reset
        # the connection, and a reset takes away the line that tells it. It closes its half when it ends.
        with contextlib.suppress(OSError, RuntimeError):
            self.writer.write(b'{"canceled":true}\n')
            self.writer.write_eof()
        asyncio.get_running_loop().call_later(LINGER_S, self.writer.transport.abort)

    async def until_it_ends(self) -> int:
        """Take in what the process says until its socket is closed; its exit code, -1 when it broke off."""
        try:
            while line := await self.reader.readline():
                if self.killed:
                    continue  # nobody is told anything any more
                try:
                    said = json.loads(line)
                except (ValueError, RecursionError):
                    continue  # bytes of the GPU protocol, which is not simulated
                if isinstance(said, dict):
                    self._understand(said)
                    await self.writer.drain()
        except ValueError:
            pass  # a line beyond the limit: the GPU protocol again; what follows cannot be ours
        except OSError:
            return core.KILLED
        if self._exit_code is not None:
            return self._exit_code
        return core.KILLED if self.tells_end and not self._in_exec else 0

    def _understand(self, said: dict[str, Any]) -> None:
        code, used, position = said.get("exitCode"), said.get("vramUsed"), said.get("gpu", -1)
        if _is_whole(code) and -(2**31) <= code < 2**32:
            self._exit_code = code
        for word in ("exec", "processName"):
            name = said.get(word)
            if isinstance(name, str):
                self._in_exec = word == "exec"
                self._agent.core.handle(core.ProcessRenamed(self._session_id, self._connection_id, name))
                self._agent.connection_changed()
        if _is_whole(used) and _is_whole(position):
            self._use_vram(used, position)
        if said.get("gpus") is True:
            self._say(agent_metrics.session_gpus(self._agent, self._session_id))

    def _use_vram(self, used: int, position: int) -> None:
        agent = self._agent
        before = agent.core.vram_used()
        granted = agent.core.use_vram(self._session_id, self._connection_id, used, position)
        session = agent.core.sessions.get(self._session_id)
        free = 0
        if session is not None:
            free = session.vram - sum(session.vram_used.values())
            if 0 <= position < len(session.gpus):
                free = min(free, session.gpus[position][1] - session.used_on(position))
        self._say({"granted": granted, "vramFree": free})
        if agent.core.vram_used() != before:
            agent.vram_changed()

    def _say(self, what: dict[str, Any]) -> None:
        self.writer.write(json.dumps(what, separators=(",", ":")).encode() + b"\n")


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
