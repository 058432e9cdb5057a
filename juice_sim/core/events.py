"""What happened: one frozen dataclass each. A controller is the fold of its events; the store keeps exactly these.

Each event carries its time `at` (the caller's clock, seconds). Events are facts: applying them never fails.
"""

from __future__ import annotations

from dataclasses import dataclass

from .model import AgentState, Connection, Gpu, GpuGrant, NodeType, Permission, Requirements, Token


@dataclass(frozen=True)
class Event:
    """Base of all events."""

    at: float


@dataclass(frozen=True)
class PoolCreated(Event):
    """A pool without permissions; those of its maker follow as `PermissionGranted`."""

    pool_id: str
    name: str


@dataclass(frozen=True)
class PoolDeleted(Event):
    """The pool has neither agents nor open sessions."""

    pool_id: str


@dataclass(frozen=True)
class PermissionGranted(Event):
    """The user may do this in the pool from now on."""

    permission: Permission
    user_id: str
    pool_id: str


@dataclass(frozen=True)
class PermissionRevoked(Event):
    """The user may not do this in the pool any more; sessions that run go on."""

    permission: Permission
    user_id: str
    pool_id: str


@dataclass(frozen=True)
class TokenCreated(Event):
    """A token of which only the SHA-256 of the secret is known."""

    token: Token


@dataclass(frozen=True)
class TokenRevoked(Event):
    """The token is worth nothing from now on."""

    token_id: str


@dataclass(frozen=True)
class NodeTypesDeclared(Event):
    """The whole list of node types that an autoscaler may still start; it replaces the one before."""

    node_types: tuple[NodeType, ...]


@dataclass(frozen=True)
class AgentRegistered(Event):
    """A new agent, active, with all its GPUs free. `owner` is the user whose reports it takes."""

    agent_id: str
    hostname: str
    address: str
    version: str
    pool_id: str
    gpus: tuple[Gpu, ...]
    labels: dict[str, str]
    taints: dict[str, str]
    owner: str


@dataclass(frozen=True)
class AgentStateChanged(Event):
    """`missing` after silence, `active` or `disabled` on a report, `closed` when removed or shut down."""

    agent_id: str
    state: AgentState
    reason: str


@dataclass(frozen=True)
class SessionQueued(Event):
    """A request was accepted and waits. `timeout_s` counts from `active` on; None: no limit."""

    session_id: str
    requirements: Requirements
    owner: str
    idempotency_key: str
    name: str
    timeout_s: float | None
    owner_is_admin: bool = False


@dataclass(frozen=True)
class SessionAssigned(Event):
    """The one event that takes VRAM: `grants` are held on the agent until `SessionClosed`."""

    session_id: str
    agent_id: str
    grants: tuple[GpuGrant, ...]


@dataclass(frozen=True)
class SessionActivated(Event):
    """The agent has reported that the session runs."""

    session_id: str
    agent_id: str


@dataclass(frozen=True)
class SessionCanceling(Event):
    """The session is to end; it holds its GPUs until its agent has reported that nothing of it runs."""

    session_id: str
    reason: str


@dataclass(frozen=True)
class SessionClosed(Event):
    """The one event that gives VRAM back."""

    session_id: str
    reason: str


@dataclass(frozen=True)
class ConnectionChanged(Event):
    """A process of the session has connected or ended, as its agent reported."""

    session_id: str
    connection: Connection


@dataclass(frozen=True)
class HistoryPurged(Event):
    """Sessions and agents that were closed long ago (`Settings.history_s`) are forgotten, idempotency keys included."""

    session_ids: tuple[str, ...]
    agent_ids: tuple[str, ...]
