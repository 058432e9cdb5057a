"""How the quirks show on the wire; which there are: quirks.py. Nothing here runs unless a quirk is switched on."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from . import wire_types as w
from .core.commands import RequestSession
from .core.errors import Refused
from .core.model import Session
from .core.permissions import Principal
from .quirks import CLIENTS, READ_SIZE, TICK_S, TICK_SESSIONS
from .rest_base import TEXT_HEADERS, Api, api_of, as_text
from .service import Service

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

_UUID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)


def middleware(api: Api) -> Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]:
    """Quirks that concern every request: one-read, too-many-clients, text-errors."""
    running = 0

    @web.middleware
    async def apply(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal running
        if "one-read" in api.quirks and _size(request) > READ_SIZE:
            await request.read()
            return _text_error(500, "unexpected end of JSON input")
        running += 1
        try:
            if "too-many-clients" in api.quirks and running > CLIENTS:
                return _text_error(500, "pq: sorry, too many clients already")
            response = await handler(request)
        finally:
            running -= 1
        if "text-errors" in api.quirks and response.status >= 400 and response.status not in (401, 404, 405):
            return _as_text_error(request, response)
        if "text-errors" in api.quirks and response.status in (404, 405):
            return _missing(request, response)
        return response

    return apply


def _size(request: web.Request) -> int:
    head = len(request.method) + len(request.raw_path) + 12
    head += sum(len(name) + len(value) + 4 for name, value in request.raw_headers)
    return head + 2 + (request.content_length or 0)


def _message(response: web.StreamResponse) -> str:
    body = getattr(response, "body", None)
    if isinstance(body, bytes):
        try:
            return str(json.loads(body)["message"])
        except (ValueError, KeyError, TypeError):
            return body.decode("utf-8", "replace")
    return "error"


def _as_text_error(request: web.Request, response: web.StreamResponse) -> web.Response:
    message = _message(response)
    mismatch = request.method == "PUT" and response.status == 400 and message.startswith("id: ")
    return _text_error(400 if mismatch else 500, message)


def _missing(request: web.Request, response: web.StreamResponse) -> web.StreamResponse:
    """An unknown path stays 404 and a wrong method 405; an object that is not found is 500."""
    if response.status == 405 or request.match_info.http_exception is not None:
        body = "404 page not found" if response.status == 404 else ""
        return web.Response(status=response.status, body=body.encode(), headers=TEXT_HEADERS)
    return _text_error(500, "object not found")


def _text_error(status: int, text: str) -> web.Response:
    return web.Response(status=status, body=text.encode(), headers=TEXT_HEADERS)


async def lost_request(request: web.Request) -> web.Response | None:
    """Quirk lost-request: 200 with a UUID that is unknown afterwards, when the old code would not have stored it."""
    try:
        value = json.loads(await request.read())
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    pool_id = value.get("poolId") or ""
    gpus = value.get("gpus")
    sizes = [gpu.get("vramRequired") for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    too_large = any(isinstance(size, int) and 2**63 <= size < 2**64 for size in sizes)
    unknown = (
        isinstance(pool_id, str)
        and pool_id != ""
        and (
            not _UUID.fullmatch(pool_id) or pool_id not in {pool.id for pool in api_of(request).service.reader.pools()}
        )
    )
    if not (too_large or unknown):
        return None
    return as_text(str(uuid.uuid4()))


def queued_object(api: Api, session_id: str) -> w.Session:
    """How a session that waits for the tick reads, or one that was deleted while it did."""
    if api.held.is_dropped(session_id):
        return w.Session(id=session_id, state="closed", gpus=[], connections=[])
    if "empty-queued" in api.quirks:
        return w.Session()
    return w.Session(id=session_id, state="queued", gpus=[], connections=[])


def every_gpu(api: Api, session: Session) -> list[w.SessionGpu]:
    """Quirk every-gpu: what the old code would have given. It asked for each GPU of the agent whether a requirement
    fits, instead of for each requirement which GPU does. Only what is shown changes, not what is held."""
    shown = []
    for gpu in api.service.reader.agent(session.agent_id).gpus:
        for wanted in session.requirements.gpus:
            if wanted.vram_required <= gpu.vram and wanted.pci_bus in ("", gpu.pci_bus):
                shown.append(w.SessionGpu(index=gpu.index, vram_required=wanted.vram_required))
                break
    return shown


class SlowTick:
    """Quirk slow-tick: requests are held back here and reach the controller once a second, at most 20, in order; while
    20 that it could not serve wait at its head, none does. What is held here is lost with the process."""

    def __init__(self, service: Service, new_id: Any) -> None:
        self._service = service
        self._new_id = new_id
        self._held: dict[str, tuple[RequestSession, Principal]] = {}
        self._dropped: set[str] = set()
        self._ids: list[str] = []

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._held or session_id in self._dropped

    def hold(self, command: RequestSession, principal: Principal) -> str:
        """Keep a request for the tick; returns the session's id."""
        session_id: str = self._new_id()
        self._held[session_id] = (command, principal)
        return session_id

    def drop(self, session_id: str) -> bool:
        """Delete a request that is held; False when there is none. Deleting twice is fine."""
        if self._held.pop(session_id, None) is not None:
            self._dropped.add(session_id)
        return session_id in self._dropped

    def is_dropped(self, session_id: str) -> bool:
        """Whether the request was deleted before a tick looked at it."""
        return session_id in self._dropped

    async def run(self) -> None:
        """Tick until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    def tick(self) -> None:
        """Let as many requests through as the old code would look at."""
        waiting = len(self._service.reader.queue())
        for session_id in list(self._held)[: max(0, TICK_SESSIONS - waiting)]:
            command, principal = self._held.pop(session_id)
            self._ids.append(session_id)
            try:
                self._service.command(command, principal)
            except Refused:
                pass  # the old code kept such a request in the queue for ever; the client sees it as unknown
            finally:
                self._ids.clear()

    def next_id(self) -> str | None:
        """The id that the next new session must get; None when it is free."""
        return self._ids.pop() if self._ids else None
