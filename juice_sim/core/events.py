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
    pool_id: str
    name: str


@dataclass(frozen=True)
class PoolDeleted(Event):
    pool_id: str


@dataclass(frozen=True)
class PermissionGranted(Event):
    permission: Permission
    user_id: str
    pool_id: str


@dataclass(frozen=True)
class PermissionRevoked(Event):
    permission: Permission
    user_id: str
    pool_id: str


@dataclass(frozen=True)
class TokenCreated(Event):
    token: Token


@dataclass(frozen=True)
class TokenRevoked(Event):
    token_id: str


@dataclass(frozen=True)
class NodeTypesDeclared(Event):
    node_types: tuple[NodeType, ...]


@dataclass(frozen=True)
class AgentRegistered(Event):
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
    session_id: str
    requirements: Requirements
    owner: str
    idempotency_key: str
    name: str
    timeout_s: float | None
    owner_is_admin: bool = False


@dataclass(frozen=True)
class SessionAssigned(Event):
    session_id: str
    agent_id: str
    grants: tuple[GpuGrant, ...]


@dataclass(frozen=True)
class SessionActivated(Event):
    session_id: str
    agent_id: str


@dataclass(frozen=True)
class SessionCanceling(Event):
    session_id: str
    reason: str


@dataclass(frozen=True)
class SessionClosed(Event):
    """The one event that gives VRAM back."""

    session_id: str
    reason: str


@dataclass(frozen=True)
class ConnectionChanged(Event):
    session_id: str
    connection: Connection


@dataclass(frozen=True)
class HistoryPurged(Event):
    """Sessions and agents that were closed long ago (`Settings.history_s`) are forgotten, idempotency keys included."""

    session_ids: tuple[str, ...]
    agent_ids: tuple[str, ...]
