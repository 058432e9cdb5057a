"""Agents: `POST /v1/register/agent`, `GET|PUT /v1/agent/{id}`, `GET /v1/agents`.

Extension: `?wait=SECONDS` on GET and PUT of an agent answers with the agent as soon as there is something for it to
do (a session to start or to cancel), or when the time is over. `ETag` numbers the controller's last word to the agent;
with `seen=NUMBER` the wait ends only at something newer. A real agent just polls.
"""

from __future__ import annotations

import asyncio

from aiohttp import web

from . import wire
from . import wire_types as w
from .core.errors import Kind, Refused
from .core.model import Agent, AgentState, Permission, Session, SessionState
from .core.permissions import Principal
from .rest_base import Api, api_of, as_json, as_text, caller, once, query_flag, query_seconds, read

LISTED_BY_OLD = 20


async def register(request: web.Request) -> web.Response:
    """Agent -> UUID. An address without a host gets the host that the request came from."""
    body, raw = await read(request, w.AgentRegistration)
    api = api_of(request)
    command = wire.register_agent(body, _reachable(body.address, request.remote))
    agent_id = once(request, raw, lambda: api.service.command(command, caller(request)))
    api.gpu_metrics[agent_id] = [gpu.metrics for gpu in body.gpus]
    return as_text(agent_id)


def _reachable(address: str, remote: str | None) -> str:
    host, colon, port = address.rpartition(":")
    if colon and not host and port.isdigit() and remote:
        return f"[{remote}]:{port}" if ":" in remote else f"{remote}:{port}"
    return address


async def get(request: web.Request) -> web.Response:
    """One agent with its sessions that are not closed."""
    api = api_of(request)
    agent = visible_agent(api, request.match_info["id"], caller(request))
    wait = query_seconds(request, "wait")
    if "wait" in request.query:
        api.service.end_waits(agent.id)  # a newer request of the agent ends an older wait
    if wait and "no-extensions" not in api.quirks:
        return await _when_there_is_something(request, api, agent, wait)
    headers = {"ETag": _etag(api, agent.id)} if "no-extensions" not in api.quirks else None
    return as_json(agent_object(api, agent), headers)


async def update(request: web.Request) -> web.Response:
    """AgentUpdate -> nothing; every call is a heartbeat."""
    body, _ = await read(request, w.AgentUpdate)
    api = api_of(request)
    agent_id = request.match_info["id"]
    api.service.command(wire.update_agent(agent_id, body), caller(request))
    if body.gpus:
        api.gpu_metrics[agent_id] = body.gpus
    if body.state == "closed":
        api.gpu_metrics.pop(agent_id, None)
    wait = query_seconds(request, "wait")
    if wait and "no-extensions" not in api.quirks:
        return await _when_there_is_something(request, api, api.service.reader.agent(agent_id), wait)
    return web.Response()


async def listing(request: web.Request) -> web.Response:
    """Active agents, all or those of one pool, without their sessions. Extensions: `all=1` adds disabled and missing
    ones, `sessions=1` shows the sessions."""
    api = api_of(request)
    principal = caller(request)
    pool_id = request.query.get("pool_id", "")
    states = {AgentState.ACTIVE}
    if query_flag(request, "all"):
        states |= {AgentState.DISABLED, AgentState.MISSING}
    with_sessions = query_flag(request, "sessions")
    chosen = [
        agent
        for agent in api.service.reader.agents(pool_id=pool_id or None, states=states)
        if _may_see(api, agent, principal)
    ]
    if "first-20-agents" in api.quirks:
        chosen = chosen[:LISTED_BY_OLD]
    return as_json([agent_object(api, agent, with_sessions) for agent in chosen])


def visible_agent(api: Api, agent_id: str, principal: Principal) -> Agent:
    """The agent. Raises Refused when there is none, or none that the caller may know of."""
    agent = api.service.reader.agent(agent_id)
    if not _may_see(api, agent, principal):
        raise Refused(
            Kind.FORBIDDEN,
            f"user {principal.user_id!r} may not see this agent",
            field="id",
            value=agent_id,
            accepted="an agent of a pool in which you have a permission",
        )
    return agent


def _may_see(api: Api, agent: Agent, principal: Principal) -> bool:
    if principal.is_admin or agent.owner == principal.user_id:
        return True
    return any(api.service.reader.may(principal, permission, agent.pool_id) for permission in Permission)


def open_sessions(api: Api, agent: Agent) -> list[Session]:
    """The agent's sessions that are not closed, in order of request."""
    reader = api.service.reader
    found = [reader.session(session_id) for session_id in agent.session_ids]
    shown = [session for session in found if session.state is not SessionState.CLOSED]
    if len(shown) > 1:
        shown.sort(key=lambda session: (session.requested_at, session.id))
    return shown


def agent_object(api: Api, agent: Agent, with_sessions: bool = True) -> w.Agent:
    """The agent as v1 shows it."""
    sessions = open_sessions(api, agent) if with_sessions else []
    return wire.agent_object(agent, sessions, api.gpu_metrics.get(agent.id))


def _etag(api: Api, agent_id: str) -> str:
    return f'"{api.service.last_word(agent_id)}"'


async def _when_there_is_something(request: web.Request, api: Api, agent: Agent, wait: float) -> web.Response:
    service = api.service
    seen_text = request.query.get("seen", "")
    if seen_text and not (seen_text.isdigit() and len(seen_text) < 19):
        raise Refused(Kind.INVALID, "not a number", field="seen", value=seen_text, accepted="the number in ETag")
    seen = int(seen_text) if seen_text else None
    loop = asyncio.get_running_loop()
    end = loop.time() + wait
    while True:
        if seen is None:
            ready = any(
                session.state in (SessionState.ASSIGNED, SessionState.CANCELING)
                for session in open_sessions(api, agent)
            )
        else:
            ready = service.last_word(agent.id) != seen
        left = end - loop.time()
        current = service.reader.agent(agent.id)
        if ready or left <= 0 or current.state is AgentState.CLOSED or service.stopping:
            break
        if await service.agent_changes(agent.id, left):
            end = 0.0
    return as_json(agent_object(api, current), {"ETag": _etag(api, agent.id)})


ROUTES = (
    ("POST", "/v1/register/agent", register, False),
    ("GET", "/v1/agent/{id}", get, False),
    ("PUT", "/v1/agent/{id}", update, False),
    ("GET", "/v1/agents", listing, False),
)
