"""Webhooks: a POST to a configured URL when an agent reports that a session has changed.

The message is `{"agent", "session", "state"}`, as the open-source controller sends it. Requests never wait for a
webhook: messages queue up to a bound, each is tried a bounded number of times, and what is given up is logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable

import aiohttp

from .core import events as ev
from .store import Record

log = logging.getLogger("juice_sim.webhooks")

QUEUE = 10_000
TRIES = 5
FIRST_PAUSE_S = 0.2


class Webhooks:
    """Sends to one URL, in order. `agent_of` gives the agent of a session."""

    def __init__(self, url: str, agent_of: Callable[[str], str], *, timeout_s: float = 10.0) -> None:
        self._url = url
        self._agent_of = agent_of
        self._timeout = aiohttp.ClientTimeout(total=timeout_s)
        self._queue: asyncio.Queue[dict[str, str]] = asyncio.Queue(QUEUE)
        self._task: asyncio.Task[None] | None = None
        self.delivered = 0
        self.given_up = 0

    def on_event(self, record: Record, event: ev.Event) -> None:
        """Queue a message when the event is a session's change that its agent reported."""
        if isinstance(event, ev.SessionActivated):
            self._put(event.agent_id, event.session_id, "active")
        elif isinstance(event, ev.SessionClosed):
            agent_id = self._agent_of(event.session_id)
            if agent_id:
                self._put(agent_id, event.session_id, "closed")

    def _put(self, agent_id: str, session_id: str, state: str) -> None:
        try:
            self._queue.put_nowait({"agent": agent_id, "session": session_id, "state": state})
        except asyncio.QueueFull:
            self.given_up += 1
            log.warning("webhook: %d messages wait already; one about session %s is dropped", QUEUE, session_id)

    async def start(self) -> None:
        """Start sending."""
        self._task = asyncio.create_task(self._run(), name="juice-sim webhooks")

    async def stop(self) -> None:
        """Stop sending; what waits is dropped."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
            self._task = None

    async def _run(self) -> None:
        async with aiohttp.ClientSession(timeout=self._timeout, trust_env=False) as http:
            while True:
                await self._deliver(http, await self._queue.get())

    async def _deliver(self, http: aiohttp.ClientSession, message: dict[str, str]) -> None:
        for attempt in range(TRIES):
            if attempt:
                await asyncio.sleep(FIRST_PAUSE_S * 2 ** (attempt - 1))
            try:
                async with http.post(self._url, json=message, allow_redirects=False) as response:
                    if response.status < 300:
                        self.delivered += 1
                        return
                    reason = f"status {response.status}"
            except (aiohttp.ClientError, asyncio.TimeoutError, OSError) as error:
                reason = str(error) or type(error).__name__
        self.given_up += 1
        log.warning("webhook: %s did not take a message after %d tries (%s)", self._url, TRIES, reason)
