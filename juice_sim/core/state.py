"""The state of a controller and the only code that changes it: `State.evolve`, which applies one event.

Two kinds of fields. What the snapshot holds: pools, agents, sessions, tokens, node types. What follows from these and
is rebuilt: indexes, free capacity, queue, deadlines. Applying an event never fails and never decides anything.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

from . import events as ev
from .capacity import Capacity, View, gpu_profile
from .deadlines import Deadlines
from .model import Agent, AgentState, NodeType, Permission, Pool, Session, SessionState, Token
from .placement import Policy, policy_named
from .settings import STRICT_FIFO, Settings
from .waiting import Pairs, Shape, ViewKey, Waiting, pairs

Profile = tuple[str, Pairs, Pairs, tuple[tuple[int, str], ...]]  # pool, labels, taints, GPUs
KEPT_CONNECTIONS = 256  # per session
VIEWS_PER_POOL = 32  # an index per kind of selector; beyond this the one unused for longest is dropped


class State:
    """See the module. Fields are read by decisions and by `Controller`; only `evolve` and `watch` write them."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pools: dict[str, Pool] = {}
        self.agents: dict[str, Agent] = {}  # in order of registration
        self.sessions: dict[str, Session] = {}  # in order of request
        self.tokens: dict[str, Token] = {}
        self.node_types: tuple[NodeType, ...] = ()

        self.pool_by_name: dict[str, str] = {}
        self.token_by_hash: dict[str, str] = {}
        self.session_by_key: dict[tuple[str, str], str] = {}
        self.agent_by_address: dict[tuple[str, str], str] = {}
        self.open_sessions: Counter[str] = Counter()  # per pool
        self.open_agents: Counter[str] = Counter()  # per pool
        self.profiles: Counter[Profile] = Counter()
        self.hopeless: dict[object, bool] = {}  # shape -> nothing could ever serve it; see `decide_sessions`
        self.capacities: dict[str, Capacity] = {}  # of agents that are not closed
        self.waiting = Waiting(settings.granted_percent)
        self.silence = Deadlines()  # per agent: when it goes missing or, missing, is removed
        self.timeouts = Deadlines()  # per active session with a time limit
        self.forget_sessions = Deadlines()
        self.forget_agents = Deadlines()
        self.stories: dict[str, deque[ev.Event]] = {}
        self.never_strict = STRICT_FIFO not in (settings.default_queue_policy, *settings.queue_policies.values())
        self._views: dict[str, dict[ViewKey, View]] = {}
        self._order = 0
        for name in (settings.default_policy, *settings.policies.values()):
            policy_named(name)

    # What decisions ask

    def policy(self, pool: Pool) -> Policy:
        """The placement policy of a pool, set by its id or its name."""
        policies = self.settings.policies
        return policy_named(policies.get(pool.id) or policies.get(pool.name) or self.settings.default_policy)

    def is_strict(self, pool: Pool) -> bool:
        """Whether nobody may pass in the queue of this pool."""
        settings = self.settings
        if not settings.queue_policies:
            return settings.default_queue_policy == STRICT_FIFO
        chosen = settings.queue_policies.get(pool.id) or settings.queue_policies.get(pool.name)
        return (chosen or settings.default_queue_policy) == STRICT_FIFO

    def may_use(self, shape: Shape, pool: Pool) -> bool:
        """Whether sessions of this shape may be placed in the pool."""
        if shape.pool_id:
            return shape.pool_id == pool.id
        if shape.owner_is_admin:
            return True
        held = pool.permissions.get(shape.owner)
        return held is not None and (Permission.CREATE_SESSION in held or Permission.ADMIN in held)

    def pools_of(self, shape: Shape) -> Iterator[Pool]:
        """The pools in which sessions of this shape may be placed, in order of creation."""
        if shape.pool_id:
            pool = self.pools.get(shape.pool_id)
            if pool is not None:
                yield pool
            return
        for pool in self.pools.values():
            if self.may_use(shape, pool):
                yield pool

    def shapes_for(self, pool: Pool) -> Iterator[Shape]:
        """The waiting shapes that the pool could serve."""
        yield from self.waiting.shapes(pool.id)
        for shape in self.waiting.shapes(""):
            if self.may_use(shape, pool):
                yield shape

    def view(self, pool: Pool, shape: Shape) -> View:
        """The index of the pool's agents that sessions of this shape accept; made when first needed."""
        views = self._views.setdefault(pool.id, {})
        view = views.get(shape.view_key)
        if view is not None:
            if len(views) > 1:
                views[shape.view_key] = views.pop(shape.view_key)  # used last
        else:
            if len(views) >= VIEWS_PER_POOL:
                dropped = views.pop(next(iter(views)))
                for capacity in list(dropped.agents()):
                    del capacity.places[dropped]
            view = views[shape.view_key] = View(shape.view_key[3], shape.accepts, by_size=self.policy(pool).by_size)
            for capacity in self.capacities.values():
                _offer_to(view, capacity, pool.id)
        return view

    # The fold

    def evolve(self, event: ev.Event) -> None:
        """Apply one event."""
        _APPLY[type(event)](self, event)

    def insert_agent(self, agent: Agent) -> None:
        """Add an agent, new or from a snapshot, with all that follows from it. Its sessions must not be booked yet."""
        self.agents[agent.id] = agent
        self.profiles[_profile(agent)] += 1
        self.hopeless.clear()
        if agent.state is AgentState.CLOSED:
            assert agent.closed_at is not None
            self.forget_agents.set(agent.id, agent.closed_at + self.settings.history_s)
            return
        self.open_agents[agent.pool_id] += 1
        if agent.address:
            self.agent_by_address[agent.hostname, agent.address] = agent.id
        capacity = self.capacities[agent.id] = Capacity(agent, self._order)
        self._order += 1
        capacity.schedulable = agent.state is AgentState.ACTIVE
        for view in self._views.get(agent.pool_id, {}).values():
            _offer_to(view, capacity, agent.pool_id)

    def insert_session(self, session: Session) -> None:
        """Add a session, new or from a snapshot, with all that follows from it. Its agent must be there."""
        self.sessions[session.id] = session
        if session.idempotency_key:
            self.session_by_key[session.owner, session.idempotency_key] = session.id
        if session.state is SessionState.CLOSED:
            assert session.closed_at is not None
            self.forget_sessions.set(session.id, session.closed_at + self.settings.history_s)
            return
        self.open_sessions[session.pool_id] += 1
        if session.state is SessionState.QUEUED:
            self.waiting.add(session)
            return
        self.agents[session.agent_id].session_ids.add(session.id)
        self.capacities[session.agent_id].take(session.grants)
        if session.state is SessionState.ACTIVE and session.timeout_s is not None:
            assert session.active_at is not None
            self.timeouts.set(session.id, session.active_at + session.timeout_s)

    def insert_pool(self, pool: Pool) -> None:
        """Add a pool, new or from a snapshot."""
        self.pools[pool.id] = pool
        self.pool_by_name[pool.name] = pool.id

    def insert_token(self, token: Token) -> None:
        """Add a token, new or from a snapshot."""
        self.tokens[token.id] = token
        self.token_by_hash[token.secret_sha256] = token.id

    def _pool_created(self, event: ev.PoolCreated) -> None:
        self.insert_pool(Pool(event.pool_id, event.name))
        self.hopeless.clear()

    def _pool_deleted(self, event: ev.PoolDeleted) -> None:
        del self.pool_by_name[self.pools.pop(event.pool_id).name]
        self._views.pop(event.pool_id, None)
        self.hopeless.clear()

    def _permission_granted(self, event: ev.PermissionGranted) -> None:
        self.pools[event.pool_id].permissions.setdefault(event.user_id, set()).add(event.permission)
        self.hopeless.clear()

    def _permission_revoked(self, event: ev.PermissionRevoked) -> None:
        permissions = self.pools[event.pool_id].permissions
        held = permissions.get(event.user_id, set())
        held.discard(event.permission)
        if not held:
            permissions.pop(event.user_id, None)
        self.hopeless.clear()

    def _token_created(self, event: ev.TokenCreated) -> None:
        self.insert_token(event.token)

    def _token_revoked(self, event: ev.TokenRevoked) -> None:
        del self.token_by_hash[self.tokens.pop(event.token_id).secret_sha256]

    def _node_types_declared(self, event: ev.NodeTypesDeclared) -> None:
        self.node_types = event.node_types
        self.hopeless.clear()

    def _agent_registered(self, event: ev.AgentRegistered) -> None:
        agent = Agent(
            id=event.agent_id,
            hostname=event.hostname,
            address=event.address,
            version=event.version,
            pool_id=event.pool_id,
            gpus=event.gpus,
            labels=dict(event.labels),
            taints=dict(event.taints),
            registered_at=event.at,
            last_seen=event.at,
            owner=event.owner,
        )
        self.insert_agent(agent)
        self.silence.set(agent.id, event.at + self.settings.missing_after_s)

    def _agent_state_changed(self, event: ev.AgentStateChanged) -> None:
        agent = self.agents[event.agent_id]
        agent.state = event.state
        capacity = self.capacities[agent.id]
        capacity.set_schedulable(event.state is AgentState.ACTIVE)
        if event.state is AgentState.MISSING:
            self.silence.set(agent.id, event.at + self.settings.removed_after_s)
        elif event.state is not AgentState.CLOSED:
            self.silence.set(agent.id, event.at + self.settings.missing_after_s)
        else:
            agent.closed_at = event.at
            self.silence.discard(agent.id)
            self.forget_agents.set(agent.id, event.at + self.settings.history_s)
            self.open_agents[agent.pool_id] -= 1
            if self.agent_by_address.get((agent.hostname, agent.address)) == agent.id:
                del self.agent_by_address[agent.hostname, agent.address]
            for view in list(capacity.places):
                view.remove(capacity)
            del self.capacities[agent.id]

    def _session_queued(self, event: ev.SessionQueued) -> None:
        self.insert_session(
            Session(
                id=event.session_id,
                requirements=event.requirements,
                owner=event.owner,
                requested_at=event.at,
                pool_id=event.requirements.pool_id,
                idempotency_key=event.idempotency_key,
                name=event.name,
                timeout_s=event.timeout_s,
                owner_is_admin=event.owner_is_admin,
            )
        )

    def _session_assigned(self, event: ev.SessionAssigned) -> None:
        session = self.sessions[event.session_id]
        agent = self.agents[event.agent_id]
        self.waiting.remove(session.id)
        session.state = SessionState.ASSIGNED
        session.agent_id = agent.id
        session.address = agent.address
        session.version = agent.version
        session.assigned_at = event.at
        session.grants = event.grants
        if session.pool_id != agent.pool_id:
            self.open_sessions[session.pool_id] -= 1
            self.open_sessions[agent.pool_id] += 1
            session.pool_id = agent.pool_id
        agent.session_ids.add(session.id)
        self.capacities[agent.id].take(event.grants)

    def _session_activated(self, event: ev.SessionActivated) -> None:
        session = self.sessions[event.session_id]
        session.state = SessionState.ACTIVE
        session.active_at = event.at
        if session.timeout_s is not None:
            self.timeouts.set(session.id, event.at + session.timeout_s)

    def _session_canceling(self, event: ev.SessionCanceling) -> None:
        session = self.sessions[event.session_id]
        session.state = SessionState.CANCELING
        session.close_reason = event.reason
        self.timeouts.discard(session.id)

    def _session_closed(self, event: ev.SessionClosed) -> None:
        session = self.sessions[event.session_id]
        self.waiting.remove(session.id)
        self.timeouts.discard(session.id)
        if session.agent_id:
            self.agents[session.agent_id].session_ids.discard(session.id)
            self.capacities[session.agent_id].give_back(session.grants)
        session.state = SessionState.CLOSED
        session.closed_at = event.at
        session.close_reason = event.reason
        self.open_sessions[session.pool_id] -= 1
        self.forget_sessions.set(session.id, event.at + self.settings.history_s)

    def _connection_changed(self, event: ev.ConnectionChanged) -> None:
        connections = self.sessions[event.session_id].connections
        connections[event.connection.id] = event.connection
        if len(connections) > KEPT_CONNECTIONS:  # a job may start thousands of processes; the latest are shown
            ended = next((cid for cid, connection in connections.items() if connection.exit_code is not None), None)
            if ended is not None:
                del connections[ended]

    def _history_purged(self, event: ev.HistoryPurged) -> None:
        for session_id in event.session_ids:
            session = self.sessions.pop(session_id)
            self.forget_sessions.discard(session_id)
            self.stories.pop(session_id, None)
            key = (session.owner, session.idempotency_key)
            if self.session_by_key.get(key) == session_id:
                del self.session_by_key[key]
        for agent_id in event.agent_ids:
            agent = self.agents.pop(agent_id)
            self.forget_agents.discard(agent_id)
            profile = _profile(agent)
            self.profiles[profile] -= 1
            if not self.profiles[profile]:
                del self.profiles[profile]
                self.hopeless.clear()


def _profile(agent: Agent) -> Profile:
    return agent.pool_id, pairs(agent.labels), pairs(agent.taints), gpu_profile(agent.gpus)


def _offer_to(view: View, capacity: Capacity, pool_id: str) -> None:
    agent = capacity.agent
    if agent.pool_id == pool_id and view.accepts(agent.labels, agent.taints):
        view.add(capacity)


_APPLY: dict[type[ev.Event], Callable[[State, Any], None]] = {
    ev.PoolCreated: State._pool_created,
    ev.PoolDeleted: State._pool_deleted,
    ev.PermissionGranted: State._permission_granted,
    ev.PermissionRevoked: State._permission_revoked,
    ev.TokenCreated: State._token_created,
    ev.TokenRevoked: State._token_revoked,
    ev.NodeTypesDeclared: State._node_types_declared,
    ev.AgentRegistered: State._agent_registered,
    ev.AgentStateChanged: State._agent_state_changed,
    ev.SessionQueued: State._session_queued,
    ev.SessionAssigned: State._session_assigned,
    ev.SessionActivated: State._session_activated,
    ev.SessionCanceling: State._session_canceling,
    ev.SessionClosed: State._session_closed,
    ev.ConnectionChanged: State._connection_changed,
    ev.HistoryPurged: State._history_purged,
}
