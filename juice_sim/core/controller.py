"""The controller: commands in, events out. No clock, no I/O, no randomness; changed by nothing but its commands.

A command is first decided (`decide_*.py` check it and say what happens) and each event is then applied by
`State.evolve`, the only code that changes state. So a controller is the fold of its events: `replay` needs no decision.

Soft state, in no event and no snapshot: when an agent was last heard of. After a restart every agent is given the full
time again.

Objects that the read side returns are the controller's own: look, do not touch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from math import isfinite
from typing import Any

from . import codec
from . import decide_agents as agents
from . import decide_pools as pools
from . import decide_sessions as sessions
from . import events as ev
from .commands import (
    CloseSession,
    Command,
    CreatePool,
    CreateToken,
    DeclareNodeTypes,
    DeletePool,
    GrantPermission,
    RegisterAgent,
    RequestSession,
    RevokePermission,
    RevokeToken,
    Tick,
    UpdateAgent,
)
from .errors import Kind, Refused
from .invariants import validate
from .model import Agent, AgentState, NodeType, Permission, Pool, Requirements, Session, SessionState, Token
from .permissions import ADMIN, Principal, may, may_see
from .settings import Settings
from .state import State
from .turn import Turn, found

__all__ = ["ADMIN", "Controller", "Principal"]


class Controller:
    """The pools, agents, sessions and tokens of one Juice service.

    `new_id` gives a fresh id on each call (UUIDs in a service, numbers drawn from a seed in a simulation).
    """

    def __init__(self, settings: Settings, new_id: Callable[[], str]) -> None:
        self._settings = settings
        self._new_id = new_id
        self._state = State(settings)
        self._events: list[ev.Event] = []
        self._now: float | None = None  # of the last command; None: agents have not been heard of since a restart

    # Commands

    def handle(self, command: Command, *, now: float, principal: Principal) -> Any:
        """Carry out a command and return its reply (see `commands.py`). Raises Refused, with nothing changed.

        `now` in seconds, on any clock that goes on over restarts (Unix time, virtual time). If it goes backwards,
        events carry the earlier time, and nothing is due sooner or much later than it would have been.
        """
        decide = _DECIDE.get(type(command))
        if decide is None:
            raise TypeError(f"{type(command).__name__} is no command")
        if not isfinite(now):
            raise ValueError(f"the time is {now!r}; accepted: a finite number of seconds")
        self._set_clock(now)
        return decide(Turn(self._state, now, principal, self._new_id, self._emit), command)

    def take_events(self) -> list[ev.Event]:
        """The events since the last call, in order. A service makes them durable before it sends any reply."""
        taken, self._events = self._events, []
        return taken

    def next_deadline(self) -> float | None:
        """When the next `Tick` is needed, None when nothing is due ever."""
        state = self._state
        due = (d.next() for d in (state.silence, state.timeouts, state.forget_sessions, state.forget_agents))
        return min((at for at in due if at is not None), default=None)

    # Durability

    def replay(self, events: Iterable[ev.Event]) -> None:
        """Apply recorded events, in order, to a new or restored controller. They are not given out again."""
        for event in events:
            self._apply(event)
        self._now = None

    def snapshot(self) -> dict[str, Any]:
        """The whole state as JSON-able values; equal states give equal snapshots, byte for byte when dumped."""
        state = self._state
        return {
            "version": codec.VERSION,
            "pools": [codec.encode_pool(pool) for pool in state.pools.values()],
            "tokens": [codec.encode_token(token) for token in state.tokens.values()],
            "node_types": [codec.encode_node_type(node) for node in state.node_types],
            "agents": [codec.encode_agent(agent) for agent in state.agents.values()],
            "sessions": [codec.encode_session(session) for session in state.sessions.values()],
        }

    @classmethod
    def restore(cls, snapshot: dict[str, Any], settings: Settings, new_id: Callable[[], str]) -> Controller:
        """A controller in the state of the snapshot. Raises codec.CodecError for a snapshot it cannot read."""
        codec.check_version(snapshot)
        controller = cls(settings, new_id)
        state = controller._state
        for pool in snapshot["pools"]:
            state.insert_pool(codec.decode_pool(pool))
        for token in snapshot["tokens"]:
            state.insert_token(codec.decode_token(token))
        state.node_types = tuple(codec.decode_node_type(node) for node in snapshot["node_types"])
        for agent in snapshot["agents"]:
            state.insert_agent(codec.decode_agent(agent))
        for session in snapshot["sessions"]:
            state.insert_session(codec.decode_session(session))
        return controller

    def validate(self) -> None:
        """Check every invariant; linear, for tests and simulations. Raises InvariantBroken with the session's story."""
        validate(self._state)

    # Reading

    @property
    def settings(self) -> Settings:
        """What the controller was made with."""
        return self._settings

    def story(self, session_id: str) -> list[ev.Event]:
        """The last events of one session, in order, since this process started; older ones are in the event store."""
        return list(self._state.stories.get(session_id, ()))

    def session(self, session_id: str, principal: Principal = ADMIN) -> Session:
        """One session, closed ones of the last days included. Raises Refused: NOT_FOUND, or FORBIDDEN when foreign."""
        session = found(self._state.sessions, session_id, "session")
        if not may_see(principal, session, self._state.pools):
            raise sessions.foreign(session)
        return session

    def sessions(
        self,
        *,
        state: SessionState | None = None,
        pool_id: str | None = None,
        include_closed: bool = False,
        principal: Principal = ADMIN,
    ) -> list[Session]:
        """The sessions that the principal may see, in order of request; open ones unless asked for more."""
        return [
            session
            for session in self._state.sessions.values()
            if (include_closed or state is SessionState.CLOSED or session.state is not SessionState.CLOSED)
            and (state is None or session.state is state)
            and (pool_id is None or session.pool_id == pool_id)
            and may_see(principal, session, self._state.pools)
        ]

    def queue(self) -> list[str]:
        """Ids of the waiting sessions, the oldest first."""
        return self._state.waiting.in_order()

    def agent(self, agent_id: str) -> Agent:
        """One agent, also one that was removed lately. Raises Refused(NOT_FOUND)."""
        return found(self._state.agents, agent_id, "agent")

    def agents(self, *, pool_id: str | None = None, states: Iterable[AgentState] | None = None) -> list[Agent]:
        """The agents in order of registration; those that are not closed unless `states` says which."""
        wanted = {AgentState.ACTIVE, AgentState.DISABLED, AgentState.MISSING} if states is None else set(states)
        return [
            agent
            for agent in self._state.agents.values()
            if agent.state in wanted and (pool_id is None or agent.pool_id == pool_id)
        ]

    def gpu_use(self, agent_id: str) -> dict[int, tuple[int, int]]:
        """Per GPU index of an agent: (bytes granted, number of sessions). Empty for an agent that was removed."""
        agent = self.agent(agent_id)
        capacity = self._state.capacities.get(agent_id)
        if capacity is None:
            return {}
        return {
            gpu.index: (gpu.vram - capacity.free[place], capacity.holders[place])
            for place, gpu in enumerate(agent.gpus)
        }

    def pool(self, pool_id: str) -> Pool:
        """One pool. Raises Refused(NOT_FOUND)."""
        return found(self._state.pools, pool_id, "pool")

    def pools(self, principal: Principal = ADMIN) -> list[Pool]:
        """The pools in which the principal has any permission, in order of creation."""
        return [
            pool for pool in self._state.pools.values() if principal.is_admin or pool.permissions.get(principal.user_id)
        ]

    def pool_counts(self, pool_id: str) -> tuple[int, int, int]:
        """(open sessions, agents that are not removed, users) of a pool."""
        pool = self.pool(pool_id)
        return self._state.open_sessions[pool_id], self._state.open_agents[pool_id], len(pool.permissions)

    def tokens(self, principal: Principal = ADMIN) -> list[Token]:
        """The tokens that the principal uses or has made."""
        return [token for token in self._state.tokens.values() if pools.may_see_token(principal, token)]

    def node_types(self) -> tuple[NodeType, ...]:
        """What the autoscaler may still start, as declared last."""
        return self._state.node_types

    def permissions_of(self, user_id: str) -> dict[Permission, list[Pool]]:
        """The pools in which a user has each permission."""
        return {
            permission: [pool for pool in self._state.pools.values() if permission in pool.permissions.get(user_id, ())]
            for permission in Permission
        }

    def may(self, principal: Principal, permission: Permission, pool_id: str) -> bool:
        """Whether the principal has the permission in the pool. Raises Refused(NOT_FOUND)."""
        return may(principal, permission, self.pool(pool_id))

    def could_ever_serve(self, requirements: Requirements, principal: Principal = ADMIN) -> tuple[bool, str]:
        """(True, "") or (False, reason for the user): whether anything known could serve this when nothing else ran."""
        return sessions.could_ever_serve(self._state, requirements, principal)

    def authenticate(self, secret_sha256: str, now: float) -> Principal:
        """The principal of a token, by the SHA-256 (hex) of its secret. Raises Refused(UNAUTHORIZED)."""
        token_id = self._state.token_by_hash.get(secret_sha256)
        if token_id is None:
            raise Refused(
                Kind.UNAUTHORIZED, "the token is unknown or was revoked", accepted="a token made by m2m create"
            )
        token = self._state.tokens[token_id]
        if now >= token.expires_at:
            raise Refused(
                Kind.UNAUTHORIZED,
                f"the token {token.description!r} ({token.id}) has expired",
                accepted="a token that is still valid; make a new one with m2m create",
            )
        return Principal(token.user_id, token.is_admin, token.id, token.expires_at)

    # Inside

    def _emit(self, event: ev.Event) -> None:
        self._apply(event)
        self._events.append(event)

    def _apply(self, event: ev.Event) -> None:
        state = self._state
        state.evolve(event)
        session_id: str | None = getattr(event, "session_id", None)
        if session_id is not None and self._settings.story_events:
            story = state.stories.get(session_id)
            if story is None:
                story = state.stories[session_id] = deque(maxlen=self._settings.story_events)
            story.append(event)

    def _set_clock(self, now: float) -> None:
        """Notice a restart and a clock that was set back."""
        before, self._now = self._now, now
        if before is not None and now >= before:
            return
        state, settings = self._state, self._settings
        for agent_id in state.capacities:
            agent = state.agents[agent_id]
            if agent.state is AgentState.MISSING:
                limit = now + settings.removed_after_s
            else:
                agent.last_seen = now if before is None else min(agent.last_seen, now)
                limit = now + settings.missing_after_s
            due = state.silence.get(agent_id)
            state.silence.set(agent_id, limit if before is None or due is None else min(due, limit))
        for session_id in list(state.timeouts.keys()):
            timeout_s = state.sessions[session_id].timeout_s
            due = state.timeouts.get(session_id)
            if timeout_s is not None and due is not None:
                state.timeouts.set(session_id, min(due, now + timeout_s))


def _tick(turn: Turn, _: Tick) -> None:
    """Carry out what is due."""
    state, now = turn.state, turn.now
    for agent_id in state.silence.pop_due(now):
        agents.agent_silent(turn, state.agents[agent_id])
    for session_id in state.timeouts.pop_due(now):
        timeout_s = state.sessions[session_id].timeout_s
        turn.emit(ev.SessionCanceling(now, session_id, f"session timeout of {timeout_s:g} s"))
    old_sessions = state.forget_sessions.pop_due(now)
    old_agents = state.forget_agents.pop_due(now)
    if old_sessions or old_agents:
        turn.emit(ev.HistoryPurged(now, tuple(old_sessions), tuple(old_agents)))


_DECIDE: dict[type[Command], Callable[[Turn, Any], Any]] = {
    CreatePool: pools.create_pool,
    DeletePool: pools.delete_pool,
    GrantPermission: pools.grant_permission,
    RevokePermission: pools.revoke_permission,
    CreateToken: pools.create_token,
    RevokeToken: pools.revoke_token,
    DeclareNodeTypes: pools.declare_node_types,
    RegisterAgent: agents.register_agent,
    UpdateAgent: agents.update_agent,
    RequestSession: sessions.request_session,
    CloseSession: sessions.close_session,
    Tick: _tick,
}
