"""The JSON objects of REST API v1 and of its extensions, field by field, as msgspec structs.

Requests and answers share the object types. A member that is `null` counts as absent (the real controller takes
`null` so), unknown members are ignored, and every size is bounded here, so that nothing further in needs to ask
again. All sizes of VRAM are whole bytes.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, field

MAX_VRAM = 2**63 - 1
MAX_GPUS = 1024
MAX_LABELS = 256

Text = Annotated[str, Meta(max_length=1024)]
Identifier = Annotated[str, Meta(max_length=128)]
Unsigned32 = Annotated[int, Meta(ge=0, le=2**32 - 1)]
Vram = Annotated[int, Meta(ge=0, le=MAX_VRAM)]
Labels = Annotated[
    dict[Annotated[str, Meta(max_length=256)], Annotated[str, Meta(max_length=256)]], Meta(max_length=MAX_LABELS)
]
AgentStateName = Literal["active", "disabled", "missing", "closed"]
SessionStateName = Literal["queued", "assigned", "active", "canceling", "closed"]
PermissionName = Literal["create_session", "register_agent", "admin"]


class Wire(Struct, rename="camel", kw_only=True):
    """Base: camelCase names, members given by name."""


class GpuMetrics(Wire):
    """What an agent measured on one GPU. Clocks in MHz, utilisation in percent, power in milliwatts, VRAM in bytes."""

    clock_core: Unsigned32 = 0
    clock_memory: Unsigned32 = 0
    utilization_gpu: Unsigned32 = 0
    utilization_vram: Unsigned32 = 0
    temperature_gpu: Unsigned32 = 0
    vram_used: Vram = 0
    power_draw: Unsigned32 = 0
    power_limit: Unsigned32 = 0
    fan_speed: Unsigned32 = 0


class Gpu(Wire):
    """One GPU of an agent; `vram` in bytes."""

    index: Annotated[int, Meta(ge=0, le=65535)] = 0
    uuid: Identifier = ""
    name: Text = ""
    vendor: Text = ""
    model: Text = ""
    vendor_id: Unsigned32 = 0
    device_id: Unsigned32 = 0
    sub_device_id: Unsigned32 = 0
    driver: Text = ""
    vram: Vram = 0
    pci_bus: Text = ""
    metrics: GpuMetrics = field(default_factory=GpuMetrics)


class SessionGpu(Wire):
    """One GPU that a session holds on its agent; `vramRequired` is what it holds there, in bytes."""

    index: int = 0
    vram_required: Vram = 0


class Connection(Wire):
    """One process of a session. `exitCode` null while it runs, -1 when a cancel ended it."""

    id: Identifier = ""
    pid: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    process_name: Text = ""
    exit_code: Annotated[int, Meta(ge=-(2**31), le=2**32 - 1)] | None = None


class Session(Wire):
    """One session as v1 shows it."""

    id: str = ""
    state: str = ""
    address: str = ""
    version: str = ""
    pool_id: str = ""
    gpus: list[SessionGpu] | None = None
    connections: list[Connection] | None = None


class SessionDetails(Session):
    """One session with what the extensions add. Times in ISO 8601, null when not reached."""

    name: str = ""
    agent_id: str = ""
    owner: str = ""
    requested_at: str | None = None
    assigned_at: str | None = None
    active_at: str | None = None
    closed_at: str | None = None
    close_reason: str = ""


class Agent(Wire):
    """One agent. When it registers, `id`, `state` and `sessions` are ignored."""

    id: Text = ""
    state: Text = ""
    hostname: Text = ""
    address: Text = ""
    version: Text = ""
    pool_id: Identifier = ""
    gpus: Annotated[list[Gpu], Meta(max_length=MAX_GPUS)] = field(default_factory=list)
    labels: Labels = field(default_factory=dict)
    taints: Labels = field(default_factory=dict)
    sessions: list[Session] = field(default_factory=list)


class AgentRegistration(Wire):
    """The body of `POST /v1/register/agent`: an Agent, of which only these members are read."""

    hostname: Text = ""
    address: Text = ""
    version: Text = ""
    pool_id: Identifier = ""
    gpus: Annotated[list[Gpu], Meta(max_length=MAX_GPUS)] = field(default_factory=list)
    labels: Labels = field(default_factory=dict)
    taints: Labels = field(default_factory=dict)


class GpuRequirement(Wire):
    """One GPU wanted; `vramRequired` in bytes, 0 means the whole GPU."""

    vram_required: Vram = 0
    pci_bus: Text = ""


class SessionRequirements(Wire):
    """The body of `POST /v1/request/session`; the last four members are extensions."""

    version: Text = ""
    pool_id: Identifier = ""
    gpus: Annotated[list[GpuRequirement], Meta(max_length=MAX_GPUS)] = field(default_factory=list)
    match_labels: Labels = field(default_factory=dict)
    tolerates: Labels = field(default_factory=dict)
    label_selector: Annotated[str, Meta(max_length=4096)] = ""
    vram_strict: bool = False
    session_timeout: Annotated[float, Meta(gt=0, le=10 * 365 * 86400)] | None = None
    name: Text = ""


class SessionUpdate(Struct, kw_only=True):
    """What an agent says of one session: `State` as the real agent spells it, or `state`."""

    state: SessionStateName | None = None
    State: SessionStateName | None = None
    connections: Annotated[dict[str, Connection], Meta(max_length=65536)] = field(default_factory=dict)


class AgentUpdate(Wire):
    """The body of `PUT /v1/agent/{id}`: a heartbeat with what has changed."""

    id: Text = ""
    state: AgentStateName | Literal[""] = ""
    sessions: Annotated[dict[str, SessionUpdate], Meta(max_length=65536)] = field(default_factory=dict)
    gpus: Annotated[list[GpuMetrics], Meta(max_length=MAX_GPUS)] = field(default_factory=list)


class PoolRequest(Wire):
    """The body of `PUT /v1/pool`. No control characters: pools are looked up by name in shell settings."""

    name: Annotated[str, Meta(min_length=1, max_length=255, pattern=r"^[^\x00-\x1f\x7f]*$")]


class Pool(Wire):
    """One pool with its counts: open sessions, agents that are not closed, users with any permission."""

    id: str
    name: str
    session_count: int = 0
    agent_count: int = 0
    user_count: int = 0


class PermissionChange(Wire):
    """The body of `PUT` and `DELETE /v1/user/permissions`."""

    permission: PermissionName
    user_id: Annotated[str, Meta(min_length=1, max_length=256)]
    pool_id: Annotated[str, Meta(min_length=1, max_length=128)]


class PoolPermissions(Wire):
    """Who may do what in one pool."""

    user_ids: dict[str, list[PermissionName]]


class UserPermissions(Wire):
    """What one user may do, and where."""

    permissions: dict[PermissionName, list[Pool]]


class TokenPermission(Wire):
    """One permission that a new token gets."""

    permission: PermissionName
    pool_id: Annotated[str, Meta(min_length=1, max_length=128)]


class TokenRequest(Wire):
    """The body of `POST /v1/m2m`. `expireDays` 30 when absent, 365 at most."""

    description: Annotated[str, Meta(max_length=1024)] = ""
    expire_days: Annotated[float, Meta(gt=0, le=365)] = 30
    user_id: Annotated[str, Meta(max_length=256)] = ""
    admin: bool = False
    permissions: Annotated[list[TokenPermission], Meta(max_length=1024)] = field(default_factory=list)


class Token(Wire):
    """One token without its secret."""

    id: str
    description: str
    user_id: str
    admin: bool
    created_at: str
    expires_at: str


class NewToken(Token):
    """The one answer that shows a token's secret."""

    token: str


class WhoAmI(Wire):
    """The caller, as the controller sees it. `expiresAt` null without authentication."""

    user_id: str
    admin: bool
    expires_at: str | None
    permissions: dict[PermissionName, list[Pool]]


class NodeType(Wire):
    """A kind of node that an autoscaler may still start."""

    name: Annotated[str, Meta(min_length=1, max_length=255)]
    pool_id: Identifier = ""
    gpus: Annotated[list[Gpu], Meta(max_length=MAX_GPUS)] = field(default_factory=list)
    labels: Labels = field(default_factory=dict)
    taints: Labels = field(default_factory=dict)
    max_workers: Annotated[int, Meta(ge=0, le=10**6)] = 1


class FaultRule(Struct, kw_only=True, forbid_unknown_fields=True):
    """One rule of `/v1/faults`; see docs/contracts.md, section 5, also for the names. `fired` is only ever answered."""

    action: Literal["delay", "status", "drop_before", "drop_after", "hang", "garbage", "empty"]
    name: Annotated[str, Meta(max_length=255)] = ""
    method: Literal["*", "GET", "POST", "PUT", "DELETE"] = "*"
    path: Annotated[str, Meta(max_length=1024, pattern="^/")] = "/"
    after: Annotated[int, Meta(ge=0, le=10**9)] = 0
    count: Annotated[int, Meta(ge=0, le=10**9)] | None = None
    probability: Annotated[float, Meta(ge=0, le=1)] = 1.0
    seconds: Annotated[float, Meta(ge=0, le=3600)] = 0.0
    status: Annotated[int, Meta(ge=200, le=599)] = 500
    body: Annotated[str, Meta(max_length=65536)] = ""
    retry_after: (
        Annotated[str, Meta(max_length=64, pattern=r"^[ -~]*$(?!\n)")] | Annotated[float, Meta(ge=0, le=86400)] | None
    ) = None
    fired: int = 0


class Status(Wire):
    """`GET /v1/status`."""

    state: str
    version: str
    hostname: str


class Problem(Wire):
    """Every error: what was wrong, with which value, what is accepted."""

    message: str
    code: str
    field: str = ""
    value: Any = None
    accepted: str = ""
