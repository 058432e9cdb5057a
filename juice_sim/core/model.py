"""The nouns: Gpu, Agent, Session, Pool, Token and what a session requires.

All sizes of VRAM are whole bytes (int), all times are seconds (float) on the clock that the caller of the controller
uses. Field names follow REST API v1 in snake case; `rest.py` owns the JSON spelling.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class AgentState(str, Enum):
    """`active` serves; `disabled` keeps its sessions, gets no new ones; `missing` has been silent; `closed` is gone."""

    ACTIVE = "active"
    DISABLED = "disabled"
    MISSING = "missing"
    CLOSED = "closed"


class SessionState(str, Enum):
    """`queued -> assigned -> active -> closed`, with `canceling` on the way down."""

    QUEUED = "queued"
    ASSIGNED = "assigned"
    ACTIVE = "active"
    CANCELING = "canceling"
    CLOSED = "closed"


class Permission(str, Enum):
    """What a user may do in one pool. `admin` includes the other two."""

    CREATE_SESSION = "create_session"
    REGISTER_AGENT = "register_agent"
    ADMIN = "admin"


@dataclass(frozen=True)
class Gpu:
    """One GPU as its agent registered it. `vram` in bytes; ids as PCI gives them."""

    index: int
    uuid: str
    name: str
    vram: int
    vendor: str = "NVIDIA"
    model: str = ""
    vendor_id: int = 0x10DE
    device_id: int = 0
    sub_device_id: int = 0
    driver: str = ""
    pci_bus: str = ""


@dataclass(frozen=True)
class GpuRequirement:
    """One GPU wanted. `vram_required` in bytes; 0 means the whole GPU, which is then shared with nobody."""

    vram_required: int = 0
    pci_bus: str = ""


@dataclass(frozen=True)
class Requirements:
    """What a session needs; all its GPUs come from one agent.

    `pool_id` "" means any pool in which the caller may create sessions. `label_selector` (extension) is a
    comma-separated selector: `k=v`, `k!=v`, `k in (a,b)`. `strict` (extension) switches the 93 % rule off.
    """

    gpus: tuple[GpuRequirement, ...]
    pool_id: str = ""
    version: str = ""
    match_labels: dict[str, str] = field(default_factory=dict)
    tolerates: dict[str, str] = field(default_factory=dict)
    label_selector: str = ""
    strict: bool = False


@dataclass(frozen=True)
class GpuGrant:
    """One GPU of a session: its index on the agent and the bytes of VRAM held there (the whole GPU: its full VRAM)."""

    index: int
    vram: int
    whole: bool


@dataclass(frozen=True)
class Connection:
    """One process of a session as the agent reports it; `exit_code` None while it runs, -1 when killed by a cancel."""

    id: str
    pid: int
    process_name: str
    exit_code: int | None = None


@dataclass
class Session:
    """One session. `grants`, `agent_id` and `address` are set from `assigned` on and stay readable when closed."""

    id: str
    requirements: Requirements
    owner: str
    requested_at: float
    state: SessionState = SessionState.QUEUED
    agent_id: str = ""
    address: str = ""
    version: str = ""
    pool_id: str = ""
    grants: tuple[GpuGrant, ...] = ()
    connections: dict[str, Connection] = field(default_factory=dict)
    idempotency_key: str = ""
    name: str = ""
    timeout_s: float | None = None
    assigned_at: float | None = None
    active_at: float | None = None
    closed_at: float | None = None
    close_reason: str = ""
    owner_is_admin: bool = False  # the owner asked with an admin's token: "any pool" then really means any


@dataclass
class Agent:
    """One agent. `last_seen` is soft state: it is not logged, and a restarted controller starts it anew."""

    id: str
    hostname: str
    address: str
    version: str
    pool_id: str
    gpus: tuple[Gpu, ...]
    labels: dict[str, str] = field(default_factory=dict)
    taints: dict[str, str] = field(default_factory=dict)
    state: AgentState = AgentState.ACTIVE
    registered_at: float = 0.0
    last_seen: float = 0.0
    session_ids: set[str] = field(default_factory=set)
    owner: str = ""
    closed_at: float | None = None


@dataclass
class Pool:
    """One pool; `permissions` maps a user id to what that user may do in it."""

    id: str
    name: str
    permissions: dict[str, set[Permission]] = field(default_factory=dict)


@dataclass(frozen=True)
class Token:
    """One machine-to-machine token. Only the SHA-256 of its secret is kept; `expires_at` on the caller's clock.

    A token acts as user `user_id`, whose permissions per pool apply; `is_admin` passes every check.
    """

    id: str
    description: str
    secret_sha256: str
    user_id: str
    created_at: float
    expires_at: float
    is_admin: bool = False
    created_by: str = ""  # user who made it, who may also list and revoke it


@dataclass(frozen=True)
class NodeType:
    """A kind of node that the autoscaler may still start, so that a request only it could serve is not hopeless."""

    name: str
    pool_id: str
    gpus: tuple[Gpu, ...]
    labels: dict[str, str] = field(default_factory=dict)
    taints: dict[str, str] = field(default_factory=dict)
    max_workers: int = 1
