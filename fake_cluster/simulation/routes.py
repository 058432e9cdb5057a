"""The part of REST API v1 that the hooks use, over a `ControllerHost`: text in, (status, headers, body) out.

Translation only, by the service's own `wire` module; which request is allowed and what it does is the core's business.
Every answer waits until what it shows is durable, as the service's do.
"""

from __future__ import annotations

from collections.abc import Callable

from juice_sim import wire
from juice_sim import wire_types as w
from juice_sim.core import codec
from juice_sim.core.commands import CloseSession, RequestSession
from juice_sim.core.controller import Principal
from juice_sim.core.errors import Kind, Refused
from juice_sim.core.model import Permission
from juice_sim.rest_base import STATUS, problem_of, reused_key

from .controller_host import ControllerHost

Response = tuple[int, dict[str, str], bytes]
JSON = {"content-type": "application/json"}
TEXT = {"content-type": "text/plain"}
STRICT = {**TEXT, "preference-applied": "handling=strict"}
MAX_WAIT_S = 60.0


def _as_json(value: object) -> Response:
    return 200, JSON, wire.encode(value)


def _as_error(error: Refused) -> Response:
    if error.kind is Kind.CONFLICT and error.field == "Idempotency-Key":
        problem = reused_key(str(error.value))
        return problem.status, JSON, wire.encode(problem.problem)
    return STATUS[error.kind], JSON, wire.encode(problem_of(error))


def answer(
    host: ControllerHost,
    method: str,
    target: str,
    body: str | None,
    key: str | None,
    token: str,
    respond: Callable[[Response], None],
) -> None:
    """Carry out one request; `respond` comes when what it did and what it shows is durable."""
    path, _, query = target.partition("?")
    try:
        principal = host.authenticate(token)
    except Refused as error:
        respond(_as_error(error))
        return
    try:
        if method == "GET" and path.startswith("/v1/session/") and not path.endswith("/story"):
            _get_session(host, path.removeprefix("/v1/session/"), query, principal, respond)
            return
        response = _carry_out(host, method, path, query, body, key, principal)
    except Refused as error:
        response = _as_error(error)
    host.settled(lambda: respond(response))


def _carry_out(
    host: ControllerHost, method: str, path: str, query: str, body: str | None, key: str | None, principal: Principal
) -> Response:
    controller = host.controller
    if method == "POST" and path == "/v1/request/session":
        asked = wire.decode((body or "").encode(), w.SessionRequirements)
        command = RequestSession(
            requirements=wire.requirements(asked),
            idempotency_key=key or "",
            name=asked.name,
            timeout_s=asked.session_timeout,
            refuse_unsatisfiable=key is not None,  # the hooks prefer strict handling whenever they send a key
        )
        session_id: str = host.handle(command, principal)
        return 200, STRICT, session_id.encode()
    if method == "DELETE" and path.startswith("/v1/session/"):
        session_id = path.removeprefix("/v1/session/")
        host.handle(CloseSession(session_id), principal)
        return _as_json(f"Session {session_id} cancelled")
    if method == "GET" and path == "/v1/sessions":
        return _as_json([wire.session_details(session) for session in controller.sessions(principal=principal)])
    if method == "GET" and path.endswith("/story"):
        session = controller.session(path.removeprefix("/v1/session/").removesuffix("/story"), principal)
        told = controller.story(session.id)
        return _as_json([{**codec.encode_event(event), "at": wire.iso(event.at)} for event in told])
    if method == "GET" and path == "/v1/pools":
        shown = [
            w.Pool(id=pool.id, name=pool.name)
            for pool in controller.pools(principal)
        ]  # fmt: skip
        return _as_json(shown)
    if method == "GET" and path.startswith("/v1/pool/"):
        pool = controller.pool(path.removeprefix("/v1/pool/"))
        return _as_json(w.Pool(id=pool.id, name=pool.name))
    if method == "GET" and path.startswith("/v1/agent/"):
        agent = controller.agent(path.removeprefix("/v1/agent/"))
        if not any(controller.may(principal, permission, agent.pool_id) for permission in Permission):
            raise Refused(Kind.FORBIDDEN, "the agent is in a pool of which you may know nothing")
        return _as_json(wire.agent_object(agent, ()))
    if method == "GET" and path == "/v1/agents":
        pool_id = query.partition("pool_id=")[2]
        return _as_json([wire.agent_object(agent, ()) for agent in controller.agents(pool_id=pool_id or None)])
    raise Refused(Kind.NOT_FOUND, "no such path", field="path", value=path)


def _get_session(
    host: ControllerHost, session_id: str, query: str, principal: Principal, respond: Callable[[Response], None]
) -> None:
    session = host.controller.session(session_id, principal)
    wait = min(float(query.partition("wait=")[2] or 0.0), MAX_WAIT_S)

    def show() -> None:
        response = _as_json(wire.session_object(session))
        host.settled(lambda: respond(response))

    host.when_session_settled(session, wait, show)
