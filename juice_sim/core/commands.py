"""What can be asked of the controller: one frozen dataclass each. `Controller.handle` takes them."""

from __future__ import annotations

from dataclasses import dataclass, field

from .model import AgentState, Connection, Gpu, NodeType, Permission, Requirements, SessionState


@dataclass(frozen=True)
class Command:
    """Base of all commands."""


@dataclass(frozen=True)
class CreatePool(Command):
    """Reply: Pool. The caller gets all three permissions in it. Names need not be unique on the real controller;
    here they are (409), because hooks look pools up by name."""

    name: str


@dataclass(frozen=True)
class DeletePool(Command):
    """Reply: None. 409 while the pool has agents or open sessions."""

    pool_id: str


@dataclass(frozen=True)
class GrantPermission(Command):
    """Reply: None."""

    permission: Permission
    user_id: str
    pool_id: str


@dataclass(frozen=True)
class RevokePermission(Command):
    """Reply: None."""

    permission: Permission
    user_id: str
    pool_id: str


@dataclass(frozen=True)
class CreateToken(Command):
    """Reply: Token. The secret is made by the caller; only its hash enters the core. `lifetime_s` at most 365 days."""

    description: str
    secret_sha256: str
    user_id: str = ""  # "" gives the token a user of its own, `m2m:<token id>`
    lifetime_s: float = 30 * 86400.0
    is_admin: bool = False
    permissions: tuple[tuple[Permission, str], ...] = ()  # (permission, pool id) granted to its user at once


@dataclass(frozen=True)
class RevokeToken(Command):
    """Reply: None. 404 for an unknown id."""

    token_id: str


@dataclass(frozen=True)
class RegisterAgent(Command):
    """Reply: agent id. The id is made by the controller; state becomes active."""

    hostname: str
    address: str
    pool_id: str
    gpus: tuple[Gpu, ...]
    version: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    taints: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class SessionReport:
    """What an agent says of one of its sessions."""

    state: SessionState
    connections: dict[str, Connection] = field(default_factory=dict)


@dataclass(frozen=True)
class UpdateAgent(Command):
    """Reply: None. Every call is a heartbeat. Sessions that are not this agent's are refused as a whole."""

    agent_id: str
    state: AgentState | None = None
    sessions: dict[str, SessionReport] = field(default_factory=dict)


@dataclass(frozen=True)
class RequestSession(Command):
    """Reply: session id. The same `idempotency_key` from the same owner gives the same session again, closed or not.

    With `refuse_unsatisfiable` a request that nothing registered or startable could ever serve raises
    Refused(UNSATISFIABLE); without it such a session waits in the queue, as the real controller does.
    """

    requirements: Requirements
    idempotency_key: str = ""
    name: str = ""
    timeout_s: float | None = None
    refuse_unsatisfiable: bool = False


@dataclass(frozen=True)
class CloseSession(Command):
    """Reply: None. queued -> closed; assigned or active -> canceling until the agent reports closed; twice is fine."""

    session_id: str
    reason: str = "deleted by its owner"


@dataclass(frozen=True)
class DeclareNodeTypes(Command):
    """Reply: None. Replaces the list of node types that the autoscaler may start."""

    node_types: tuple[NodeType, ...]


@dataclass(frozen=True)
class Tick(Command):
    """Reply: None. Carries out what is due by time: silent agents go missing and are removed, sessions time out.
    `Controller.next_deadline()` says when the next one is needed."""
