"""Sessions: request, read, delete; extensions: list, story, `?wait=SECONDS` on reading one.

`GET /v1/session/{id}?wait=SECONDS` answers as soon as the session is active, canceling or closed, or when the time is
over.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from . import rest_quirks, wire
from . import wire_types as w
from .core import codec
from .core.commands import CloseSession, RequestSession
from .core.errors import Kind, Refused
from .core.model import Session, SessionState
from .rest_base import (
    STATUS,
    Api,
    HttpProblem,
    api_of,
    as_json,
    as_text,
    caller,
    idempotency_key,
    problem_of,
    query_choice,
    query_flag,
    query_seconds,
    read,
    reused_key,
)

STRICT = {"Preference-Applied": "handling=strict"}


async def request_session(request: web.Request) -> web.Response:
    """SessionRequirements -> UUID at once; the session is queued, and assigned when there is room."""
    api = api_of(request)
    strict = _prefers_strict(request)
    if "lost-request" in api.quirks:
        lost = await rest_quirks.lost_request(request)
        if lost is not None:
            return lost
    body, _ = await read(request, w.SessionRequirements)
    if "no-extensions" in api.quirks:
        body.label_selector, body.vram_strict, body.session_timeout, body.name = "", False, None, ""
    key = idempotency_key(request)
    command = RequestSession(
        requirements=wire.requirements(body),
        idempotency_key=key,
        name=body.name,
        timeout_s=body.session_timeout,
        refuse_unsatisfiable=strict,
    )
    principal = caller(request)
    if api.held is not None and not key and not strict:
        return as_text(api.held.hold(command, principal))
    try:
        session_id: str = api.service.command(command, principal)
    except Refused as error:
        if error.kind is Kind.CONFLICT and error.field == "Idempotency-Key":
            raise reused_key(key) from None
        if strict:
            raise HttpProblem(STATUS[error.kind], problem_of(error), STRICT) from None
        raise
    return as_text(session_id, STRICT if strict else None)


def _prefers_strict(request: web.Request) -> bool:
    if "no-extensions" in api_of(request).quirks:
        return False
    words = (word.strip().lower() for value in request.headers.getall("Prefer", ()) for word in value.split(","))
    return any(word.split(";")[0].replace(" ", "").replace('"', "") == "handling=strict" for word in words)


async def get(request: web.Request) -> web.Response:
    """One session; closed ones stay readable."""
    api = api_of(request)
    session_id = request.match_info["id"]
    if api.held is not None and session_id in api.held:
        return as_json(rest_quirks.queued_object(api, session_id))
    session = api.service.reader.session(session_id, caller(request))
    wait = query_seconds(request, "wait")
    if wait and "no-extensions" not in api.quirks:
        session = await _when_it_is_settled(api, session, wait)
    if session.state is SessionState.QUEUED and "empty-queued" in api.quirks:
        return as_json(w.Session())
    shown = wire.session_object(session)
    if session.agent_id and "every-gpu" in api.quirks:
        shown.gpus = rest_quirks.every_gpu(api, session)
    if session_id in api.reopened:
        shown.state = SessionState.CANCELING.value
    return as_json(shown)


async def _when_it_is_settled(api: Api, session: Session, wait: float) -> Session:
    loop = asyncio.get_running_loop()
    end = loop.time() + wait
    while session.state in (SessionState.QUEUED, SessionState.ASSIGNED) and not api.service.stopping:
        left = end - loop.time()
        if left <= 0:
            break
        await api.service.session_changes(session.id, left)
        session = api.service.reader.session(session.id)
    return session


async def delete(request: web.Request) -> web.Response:
    """queued -> closed; assigned or active -> canceling until the agent reports closed; twice is fine."""
    api = api_of(request)
    session_id = request.match_info["id"]
    if api.held is not None and api.held.drop(session_id):
        return as_json(f"Session {session_id} cancelled")
    if "reopen-closed" in api.quirks:
        session = api.service.reader.session(session_id)
        if session.state is SessionState.CLOSED:
            api.reopened.add(session_id)
    api.service.command(CloseSession(session_id), caller(request))
    return as_json(f"Session {session_id} cancelled")


async def listing(request: web.Request) -> web.Response:
    """Sessions that the caller may see, oldest first: open ones, with `all=1` those of the last seven days."""
    api = api_of(request)
    principal = caller(request)
    state = query_choice(request, "state", tuple(state.value for state in SessionState))
    pool_id = request.query.get("pool_id", "")
    everything = query_flag(request, "all")
    found = api.service.reader.sessions(
        state=SessionState(state) if state else None,
        pool_id=pool_id or None,
        include_closed=everything,
        principal=principal,
    )
    return as_json([wire.session_details(session) for session in found])


async def story(request: web.Request) -> web.Response:
    """What happened to one session, in order."""
    api = api_of(request)
    session = api.service.reader.session(request.match_info["id"], caller(request))
    told = await api.service.story(session.id)
    return as_json([{**codec.encode_event(event), "at": wire.iso(event.at)} for event in told])


ROUTES = (
    ("POST", "/v1/request/session", request_session, False),
    ("GET", "/v1/session/{id}", get, False),
    ("DELETE", "/v1/session/{id}", delete, False),
    ("GET", "/v1/sessions", listing, True),
    ("GET", "/v1/session/{id}/story", story, True),
)
