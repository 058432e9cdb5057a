"""Decisions about sessions: request and close."""

from __future__ import annotations

from collections.abc import Iterator

from . import checks
from . import events as ev
from .commands import CloseSession, RequestSession
from .errors import Kind, Refused
from .model import Permission, Requirements, Session, SessionState
from .permissions import Principal, may_see, require
from .placement import fits_empty
from .scheduling import queue_moved, room_on, session_arrived
from .state import Profile, State
from .turn import Turn
from .units import format_vram
from .waiting import Shape, pairs

LONGEST_TIMEOUT_S = 366 * 86400.0


def request_session(turn: Turn, command: RequestSession) -> str:
    """Queue a session and assign it at once when it fits; the id of the session."""
    state, principal = turn.state, turn.principal
    if command.idempotency_key:
        checks.text("Idempotency-Key", command.idempotency_key, longest=checks.MAX_NAME)
        earlier = state.session_by_key.get((principal.user_id, command.idempotency_key))
        if earlier is not None:
            return _repeated(state.sessions[earlier], command)
    requirements = command.requirements
    checks.requirements(requirements)
    if command.name:
        checks.text("name", command.name)
    if command.timeout_s is not None:
        checks.seconds(
            "sessionTimeout", command.timeout_s, LONGEST_TIMEOUT_S, "more than 0, at most 366 days, in seconds"
        )
    if requirements.pool_id:
        require(principal, Permission.CREATE_SESSION, turn.pool(requirements.pool_id))
    elif not principal.is_admin and not _has_pool(state, principal):
        raise Refused(
            Kind.FORBIDDEN,
            f"user {principal.user_id!r} may create sessions in no pool",
            field="poolId",
            accepted="a pool in which you have the permission create_session",
        )
    if command.refuse_unsatisfiable:
        possible, reason = could_ever_serve(state, requirements, principal)
        if not possible:
            raise Refused(Kind.UNSATISFIABLE, reason)
    session_id = turn.new_id()
    turn.emit(
        ev.SessionQueued(
            turn.now,
            session_id,
            requirements,
            principal.user_id,
            command.idempotency_key,
            command.name,
            command.timeout_s,
            principal.is_admin,
        )
    )
    session_arrived(turn, session_id)
    return session_id


def close_session(turn: Turn, command: CloseSession) -> None:
    """Close a queued session, ask the agent to end one that it has; closing twice is no error."""
    session = turn.session(command.session_id)
    if not may_see(turn.principal, session, turn.state.pools):
        raise foreign(session)
    checks.text("reason", command.reason)
    if session.state is SessionState.QUEUED:
        shape = turn.state.waiting.shape_of(session.id)
        turn.emit(ev.SessionClosed(turn.now, session.id, command.reason))
        queue_moved(turn, shape)
    elif session.state in (SessionState.ASSIGNED, SessionState.ACTIVE):
        turn.emit(ev.SessionCanceling(turn.now, session.id, command.reason))


def session_ended(turn: Turn, session: Session, reason: str) -> None:
    """The agent has ended a session: give back what it held and serve those who wait for it."""
    turn.emit(ev.SessionClosed(turn.now, session.id, reason))
    room_on(turn, session.agent_id)


def foreign(session: Session) -> Refused:
    """The refusal of somebody else's session."""
    return Refused(
        Kind.FORBIDDEN,
        "the session belongs to another user",
        field="id",
        value=session.id,
        accepted="a session of your own, or of a pool of which you are admin",
    )


def could_ever_serve(state: State, requirements: Requirements, principal: Principal) -> tuple[bool, str]:
    """(True, "") or (False, why): whether anything known could serve the session when nothing else runs.

    Known are all agents, missing ones and those removed within `Settings.history_s` included (an outage must not deny
    jobs for good), and the node types that the autoscaler may still start.
    """
    shape = Shape(requirements, principal.user_id, principal.is_admin, state.settings.granted_percent)
    known = state.hopeless.get(shape.key)
    if known is None:
        known = not any(_serves(shape, profile) for profile in _profiles(state, shape))
        if len(state.hopeless) >= 1024:
            state.hopeless.clear()
        state.hopeless[shape.key] = known
    return (False, _why_hopeless(state, shape)) if known else (True, "")


def _repeated(session: Session, command: RequestSession) -> str:
    same = (
        session.requirements == command.requirements
        and session.name == command.name
        and session.timeout_s == command.timeout_s
    )
    if not same:
        raise Refused(
            Kind.CONFLICT,
            f"the key was used for another request, which made session {session.id}",
            field="Idempotency-Key",
            value=command.idempotency_key,
            accepted="a new key for a new request; for a repetition, the very same body",
        )
    return session.id


def _has_pool(state: State, principal: Principal) -> bool:
    useful = {Permission.CREATE_SESSION, Permission.ADMIN}
    return any(useful & pool.permissions.get(principal.user_id, set()) for pool in state.pools.values())


def _profiles(state: State, shape: Shape) -> Iterator[Profile]:
    """What there is, or was lately, or may be started, in the pools open to this shape."""
    open_to = {pool.id for pool in state.pools_of(shape)}
    yield from (profile for profile in state.profiles if profile[0] in open_to)
    for node in state.node_types:
        if node.pool_id in open_to and node.max_workers > 0:
            yield node.pool_id, pairs(node.labels), pairs(node.taints), tuple((g.vram, g.pci_bus) for g in node.gpus)


def _serves(shape: Shape, profile: Profile) -> bool:
    _, labels, taints, gpus = profile
    return fits_empty(gpus, shape.need) and shape.accepts(dict(labels), dict(taints))


def _why_hopeless(state: State, shape: Shape) -> str:
    where = f"pool {state.pools[shape.pool_id].name!r}" if shape.pool_id else "the pools open to you"
    profiles = list(_profiles(state, shape))
    if not profiles:
        return f"{where}: no agent has been registered in the last days and no node type can be started"
    accepted = [profile for profile in profiles if shape.accepts(dict(profile[1]), dict(profile[2]))]
    if not accepted:
        return f"{where}: no agent and no node type has the labels asked for and only tolerated taints"
    need = shape.need
    if need.named:
        return f"{where}: no agent that is accepted has such GPUs at PCI bus {', '.join(need.named)}"
    if need.vram:
        largest = max(vram for profile in accepted for vram, _ in profile[3])
        return f"{where}: asked for a slice of {format_vram(need.vram)}; the largest GPU has {format_vram(largest)}"
    most = max(len(profile[3]) for profile in accepted)
    return f"{where}: asked for {need.count} GPUs of one agent; the largest agent has {most}"
