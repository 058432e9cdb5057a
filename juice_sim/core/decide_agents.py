"""Decisions about agents: registration, reports, silence."""

from __future__ import annotations

from . import checks
from . import events as ev
from .commands import RegisterAgent, SessionReport, UpdateAgent
from .decide_sessions import session_ended
from .errors import Kind, Refused
from .model import Agent, AgentState, Connection, Permission, Session, SessionState
from .permissions import may, require
from .scheduling import room_on
from .turn import Turn


def register_agent(turn: Turn, command: RegisterAgent) -> str:
    """Add an agent; the id made for it. One at the same host name and address has restarted and lost its sessions."""
    pool = turn.pool(command.pool_id)
    require(turn.principal, Permission.REGISTER_AGENT, pool)
    checks.text("hostname", command.hostname)
    checks.text("address", command.address)
    checks.text("version", command.version)
    checks.gpus("gpus", command.gpus)
    checks.string_pairs("labels", command.labels)
    checks.string_pairs("taints", command.taints)
    earlier_id = turn.state.agent_by_address.get((command.hostname, command.address))
    earlier = turn.state.agents[earlier_id] if earlier_id is not None else None
    if earlier is not None and not _may_update(turn, earlier):
        if earlier.state is not AgentState.MISSING:
            raise Refused(
                Kind.CONFLICT,
                "another user's agent is registered there",
                field="address",
                value=command.address,
                accepted="an address of your own",
            )
        earlier = None
    if earlier is not None:
        close_agent(turn, earlier, "the agent was started again")
    agent_id = turn.new_id()
    turn.emit(
        ev.AgentRegistered(
            turn.now,
            agent_id,
            command.hostname,
            command.address,
            command.version,
            command.pool_id,
            command.gpus,
            dict(command.labels),
            dict(command.taints),
            turn.principal.user_id,
        )
    )
    room_on(turn, agent_id)
    return agent_id


def update_agent(turn: Turn, command: UpdateAgent) -> None:
    """Take an agent's report, all of it or nothing; every accepted report is a heartbeat."""
    agent = turn.agent(command.agent_id)
    if agent.state is AgentState.CLOSED:
        raise Refused(
            Kind.NOT_FOUND,
            "the agent was removed",
            field="id",
            value=agent.id,
            accepted="an agent that is registered; register it again",
        )
    if not _may_update(turn, agent):
        raise Refused(
            Kind.FORBIDDEN,
            "the agent belongs to another user",
            field="id",
            value=agent.id,
            accepted="an agent that you registered, or of a pool of which you are admin",
        )
    state = command.state
    if state is not None and state not in (AgentState.ACTIVE, AgentState.DISABLED, AgentState.CLOSED):
        raise checks.refuse("state", "is not a state that an agent reports", state, "active, disabled, closed")
    for session_id, report in command.sessions.items():
        _check_report(turn, agent, session_id, report)

    agent.last_seen = turn.now
    turn.state.silence.set(agent.id, turn.now + turn.state.settings.missing_after_s)
    if state is None and agent.state is AgentState.MISSING:
        state = AgentState.ACTIVE
    came_back = state is AgentState.ACTIVE and agent.state is not AgentState.ACTIVE
    if state in (AgentState.ACTIVE, AgentState.DISABLED) and state is not agent.state:
        turn.emit(ev.AgentStateChanged(turn.now, agent.id, state, "reported by the agent"))
    for session_id, report in command.sessions.items():
        _take_report(turn, turn.state.sessions[session_id], report)
    if state is AgentState.CLOSED:
        close_agent(turn, agent, "the agent was shut down")
    elif came_back:
        room_on(turn, agent.id)


def agent_silent(turn: Turn, agent: Agent) -> None:
    """The agent's silence has lasted: it goes missing, or, missing already, is removed."""
    settings = turn.state.settings
    if agent.state is AgentState.MISSING:
        close_agent(turn, agent, f"silent for {settings.missing_after_s + settings.removed_after_s:g} s: removed")
    else:
        reason = f"silent for {settings.missing_after_s:g} s"
        turn.emit(ev.AgentStateChanged(turn.now, agent.id, AgentState.MISSING, reason))


def close_agent(turn: Turn, agent: Agent, reason: str) -> None:
    """Remove an agent; its sessions are closed, since nobody else can end them."""
    for session_id in sorted(agent.session_ids):
        turn.emit(ev.SessionClosed(turn.now, session_id, f"agent lost: {reason}"))
    turn.emit(ev.AgentStateChanged(turn.now, agent.id, AgentState.CLOSED, reason))


def _may_update(turn: Turn, agent: Agent) -> bool:
    if turn.principal.is_admin or turn.principal.user_id == agent.owner:
        return True
    pool = turn.state.pools.get(agent.pool_id)
    return pool is not None and may(turn.principal, Permission.ADMIN, pool)


def _check_report(turn: Turn, agent: Agent, session_id: str, report: SessionReport) -> None:
    session = turn.state.sessions.get(session_id)
    if session is None or session.agent_id != agent.id:
        raise checks.refuse(
            f"sessions.{session_id}", "is not a session of this agent", session_id, "sessions assigned to this agent"
        )
    if not isinstance(report.state, SessionState) or report.state is SessionState.QUEUED:
        raise checks.refuse(
            f"sessions.{session_id}.state",
            "is not a state that an agent reports",
            report.state,
            "assigned, active, canceling, closed",
        )
    for connection in report.connections.values():
        here = f"sessions.{session_id}.connections"
        checks.text(f"{here}.id", connection.id, empty=False)
        checks.text(f"{here}.processName", connection.process_name, longest=4096)
        checks.whole_number(f"{here}.pid", connection.pid, 0, 2**63 - 1, "a process id")
        if connection.exit_code is not None:
            checks.whole_number(f"{here}.exitCode", connection.exit_code, -(2**63), 2**63 - 1, "a whole number")


def _take_report(turn: Turn, session: Session, report: SessionReport) -> None:
    if session.state is SessionState.CLOSED:
        return  # said twice, or the agent has not read yet that it was closed
    for connection in report.connections.values():
        if _is_news(session.connections.get(connection.id), connection):
            turn.emit(ev.ConnectionChanged(turn.now, session.id, connection))
    if report.state is SessionState.CLOSED:
        session_ended(turn, session, session.close_reason or "ended by its agent")
    elif report.state is SessionState.ACTIVE and session.state is SessionState.ASSIGNED:
        turn.emit(ev.SessionActivated(turn.now, session.id, session.agent_id))
    elif report.state is SessionState.CANCELING and session.state is not SessionState.CANCELING:
        turn.emit(ev.SessionCanceling(turn.now, session.id, "canceled by its agent"))


def _is_news(known: Connection | None, reported: Connection) -> bool:
    """A late report must not bring an ended connection back to life."""
    if known is None:
        return True
    return known != reported and not (known.exit_code is not None and reported.exit_code is None)
