"""Events and the nouns as JSON-able dicts and back. What is written here is on disk in stores: change VERSION with it.

Explicit field by field, so that renaming an attribute does not change the format silently. Readers ignore unknown
fields and give fields that were added later their default.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from . import events as ev
from .model import (
    Agent,
    AgentState,
    Connection,
    Gpu,
    GpuGrant,
    GpuRequirement,
    NodeType,
    Permission,
    Pool,
    Requirements,
    Session,
    SessionState,
    Token,
)

VERSION = 1
Json = dict[str, Any]


class CodecError(ValueError):
    """Data that this version cannot read; one line that says what and what it can read."""


def check_version(data: Json) -> None:
    """Raise CodecError unless the data were written by this version."""
    version = data.get("version") if isinstance(data, dict) else None
    if version != VERSION:
        raise CodecError(f"data of version {version!r} cannot be read; accepted: {VERSION}")


# Nouns


def encode_gpu(gpu: Gpu) -> Json:
    """One GPU."""
    return {
        "index": gpu.index,
        "uuid": gpu.uuid,
        "name": gpu.name,
        "vram": gpu.vram,
        "vendor": gpu.vendor,
        "model": gpu.model,
        "vendor_id": gpu.vendor_id,
        "device_id": gpu.device_id,
        "sub_device_id": gpu.sub_device_id,
        "driver": gpu.driver,
        "pci_bus": gpu.pci_bus,
    }


def decode_gpu(data: Json) -> Gpu:
    """The reverse of `encode_gpu`."""
    return Gpu(
        data["index"],
        data["uuid"],
        data["name"],
        data["vram"],
        data["vendor"],
        data["model"],
        data["vendor_id"],
        data["device_id"],
        data["sub_device_id"],
        data["driver"],
        data["pci_bus"],
    )


def encode_requirements(requirements: Requirements) -> Json:
    """What a session requires; what is not asked for is left out."""
    data: Json = {"gpus": [[gpu.vram_required, gpu.pci_bus] for gpu in requirements.gpus]}
    for name in ("pool_id", "version", "label_selector", "strict"):
        value = getattr(requirements, name)
        if value:
            data[name] = value
    for name in ("match_labels", "tolerates"):
        value = getattr(requirements, name)
        if value:
            data[name] = dict(value)
    return data


def decode_requirements(data: Json) -> Requirements:
    """The reverse of `encode_requirements`."""
    return Requirements(
        gpus=tuple(GpuRequirement(vram, bus) for vram, bus in data["gpus"]),
        pool_id=data.get("pool_id", ""),
        version=data.get("version", ""),
        match_labels=dict(data.get("match_labels", ())),
        tolerates=dict(data.get("tolerates", ())),
        label_selector=data.get("label_selector", ""),
        strict=data.get("strict", False),
    )


def encode_grant(grant: GpuGrant) -> list[Any]:
    """[index, bytes, whole]."""
    return [grant.index, grant.vram, grant.whole]


def decode_grant(data: list[Any]) -> GpuGrant:
    """The reverse of `encode_grant`."""
    return GpuGrant(*data)


def encode_connection(connection: Connection) -> list[Any]:
    """[id, pid, process name, exit code]."""
    return [connection.id, connection.pid, connection.process_name, connection.exit_code]


def decode_connection(data: list[Any]) -> Connection:
    """The reverse of `encode_connection`."""
    return Connection(*data)


def encode_token(token: Token) -> Json:
    """One token; its secret is not in it, only the hash."""
    return {
        "id": token.id,
        "description": token.description,
        "secret_sha256": token.secret_sha256,
        "user_id": token.user_id,
        "created_at": token.created_at,
        "expires_at": token.expires_at,
        "is_admin": token.is_admin,
        "created_by": token.created_by,
    }


def decode_token(data: Json) -> Token:
    """The reverse of `encode_token`."""
    return Token(
        data["id"],
        data["description"],
        data["secret_sha256"],
        data["user_id"],
        data["created_at"],
        data["expires_at"],
        data["is_admin"],
        data.get("created_by", ""),
    )


def encode_node_type(node: NodeType) -> Json:
    """One node type."""
    return {
        "name": node.name,
        "pool_id": node.pool_id,
        "gpus": [encode_gpu(gpu) for gpu in node.gpus],
        "labels": dict(node.labels),
        "taints": dict(node.taints),
        "max_workers": node.max_workers,
    }


def decode_node_type(data: Json) -> NodeType:
    """The reverse of `encode_node_type`."""
    return NodeType(
        data["name"],
        data["pool_id"],
        tuple(decode_gpu(gpu) for gpu in data["gpus"]),
        dict(data["labels"]),
        dict(data["taints"]),
        data["max_workers"],
    )


def encode_pool(pool: Pool) -> Json:
    """One pool with its users' permissions, sorted."""
    permissions = {user: sorted(one.value for one in held) for user, held in sorted(pool.permissions.items())}
    return {"id": pool.id, "name": pool.name, "permissions": permissions}


def decode_pool(data: Json) -> Pool:
    """The reverse of `encode_pool`."""
    permissions = {user: {Permission(name) for name in held} for user, held in data["permissions"].items()}
    return Pool(data["id"], data["name"], permissions)


def encode_agent(agent: Agent) -> Json:
    """One agent, without `last_seen` (soft) and its sessions (which name it)."""
    return {
        "id": agent.id,
        "hostname": agent.hostname,
        "address": agent.address,
        "version": agent.version,
        "pool_id": agent.pool_id,
        "gpus": [encode_gpu(gpu) for gpu in agent.gpus],
        "labels": dict(agent.labels),
        "taints": dict(agent.taints),
        "state": agent.state.value,
        "registered_at": agent.registered_at,
        "owner": agent.owner,
        "closed_at": agent.closed_at,
    }


def decode_agent(data: Json) -> Agent:
    """The reverse of `encode_agent`."""
    return Agent(
        id=data["id"],
        hostname=data["hostname"],
        address=data["address"],
        version=data["version"],
        pool_id=data["pool_id"],
        gpus=tuple(decode_gpu(gpu) for gpu in data["gpus"]),
        labels=dict(data["labels"]),
        taints=dict(data["taints"]),
        state=AgentState(data["state"]),
        registered_at=data["registered_at"],
        last_seen=data["registered_at"],
        owner=data["owner"],
        closed_at=data["closed_at"],
    )


def encode_session(session: Session) -> Json:
    """One session."""
    return {
        "id": session.id,
        "requirements": encode_requirements(session.requirements),
        "owner": session.owner,
        "owner_is_admin": session.owner_is_admin,
        "requested_at": session.requested_at,
        "state": session.state.value,
        "agent_id": session.agent_id,
        "address": session.address,
        "version": session.version,
        "pool_id": session.pool_id,
        "grants": [encode_grant(grant) for grant in session.grants],
        "connections": [encode_connection(connection) for connection in session.connections.values()],
        "idempotency_key": session.idempotency_key,
        "name": session.name,
        "timeout_s": session.timeout_s,
        "assigned_at": session.assigned_at,
        "active_at": session.active_at,
        "closed_at": session.closed_at,
        "close_reason": session.close_reason,
    }


def decode_session(data: Json) -> Session:
    """The reverse of `encode_session`."""
    connections = [decode_connection(connection) for connection in data["connections"]]
    return Session(
        id=data["id"],
        requirements=decode_requirements(data["requirements"]),
        owner=data["owner"],
        requested_at=data["requested_at"],
        state=SessionState(data["state"]),
        agent_id=data["agent_id"],
        address=data["address"],
        version=data["version"],
        pool_id=data["pool_id"],
        grants=tuple(decode_grant(grant) for grant in data["grants"]),
        connections={connection.id: connection for connection in connections},
        idempotency_key=data["idempotency_key"],
        name=data["name"],
        timeout_s=data["timeout_s"],
        assigned_at=data["assigned_at"],
        active_at=data["active_at"],
        closed_at=data["closed_at"],
        close_reason=data["close_reason"],
        owner_is_admin=data["owner_is_admin"],
    )


# Events

_Coder = tuple[Callable[[Any], Any], Callable[[Any], Any]]
_PLAIN: _Coder = (lambda value: value, lambda value: value)
_CODERS: dict[str, _Coder] = {
    "permission": (lambda value: value.value, Permission),
    "token": (encode_token, decode_token),
    "node_types": (
        lambda nodes: [encode_node_type(node) for node in nodes],
        lambda nodes: tuple(decode_node_type(node) for node in nodes),
    ),
    "gpus": (lambda gpus: [encode_gpu(gpu) for gpu in gpus], lambda gpus: tuple(decode_gpu(gpu) for gpu in gpus)),
    "labels": (dict, dict),
    "taints": (dict, dict),
    "state": (lambda value: value.value, AgentState),
    "requirements": (encode_requirements, decode_requirements),
    "grants": (
        lambda grants: [encode_grant(grant) for grant in grants],
        lambda grants: tuple(decode_grant(grant) for grant in grants),
    ),
    "connection": (encode_connection, decode_connection),
    "session_ids": (list, tuple),
    "agent_ids": (list, tuple),
}
_FIELDS: dict[type[ev.Event], tuple[str, ...]] = {
    ev.PoolCreated: ("pool_id", "name"),
    ev.PoolDeleted: ("pool_id",),
    ev.PermissionGranted: ("permission", "user_id", "pool_id"),
    ev.PermissionRevoked: ("permission", "user_id", "pool_id"),
    ev.TokenCreated: ("token",),
    ev.TokenRevoked: ("token_id",),
    ev.NodeTypesDeclared: ("node_types",),
    ev.AgentRegistered: (
        "agent_id",
        "hostname",
        "address",
        "version",
        "pool_id",
        "gpus",
        "labels",
        "taints",
        "owner",
    ),
    ev.AgentStateChanged: ("agent_id", "state", "reason"),
    ev.SessionQueued: (
        "session_id",
        "requirements",
        "owner",
        "idempotency_key",
        "name",
        "timeout_s",
        "owner_is_admin",
    ),
    ev.SessionAssigned: ("session_id", "agent_id", "grants"),
    ev.SessionActivated: ("session_id", "agent_id"),
    ev.SessionCanceling: ("session_id", "reason"),
    ev.SessionClosed: ("session_id", "reason"),
    ev.ConnectionChanged: ("session_id", "connection"),
    ev.HistoryPurged: ("session_ids", "agent_ids"),
}
_BY_NAME = {kind.__name__: kind for kind in _FIELDS}
_PLANS = {kind: tuple((name, _CODERS.get(name, _PLAIN)) for name in names) for kind, names in _FIELDS.items()}


def encode_event(event: ev.Event) -> Json:
    """`{"event": class name, "at": seconds, ...fields}`."""
    data: Json = {"event": type(event).__name__, "at": event.at}
    for name, (encode, _) in _PLANS[type(event)]:
        data[name] = encode(getattr(event, name))
    return data


def decode_event(data: Json) -> ev.Event:
    """The reverse of `encode_event`. Raises CodecError for an event that is unknown or incomplete."""
    name = data.get("event")
    kind = _BY_NAME.get(name) if isinstance(name, str) else None
    if kind is None:
        raise CodecError(f"event {name!r} is unknown; accepted: {', '.join(sorted(_BY_NAME))}")
    try:
        fields = {name: decode(data[name]) for name, (_, decode) in _PLANS[kind] if name in data}
        return kind(data["at"], **fields)
    except (KeyError, TypeError, ValueError) as error:
        raise CodecError(f"event {name} is malformed: {type(error).__name__} {error}") from error
