"""Decisions about pools, permissions, tokens and node types."""

from __future__ import annotations

import re

from . import checks
from . import events as ev
from .commands import (
    CreatePool,
    CreateToken,
    DeclareNodeTypes,
    DeletePool,
    GrantPermission,
    RevokePermission,
    RevokeToken,
)
from .errors import Kind, Refused
from .model import Permission, Pool, Token
from .permissions import Principal, require, require_admin
from .scheduling import pool_closed_to_user, pools_opened
from .turn import Turn, found

_SHA256 = re.compile(r"[0-9a-f]{64}")


def create_pool(turn: Turn, command: CreatePool) -> Pool:
    """Make a pool; the caller gets all permissions in it."""
    checks.text("name", command.name, longest=checks.MAX_NAME, empty=False)
    taken = turn.state.pool_by_name.get(command.name)
    if taken is not None:
        raise Refused(
            Kind.CONFLICT,
            f"pool {taken} has this name",
            field="name",
            value=command.name,
            accepted="a name that no pool has",
        )
    pool_id = turn.new_id()
    turn.emit(ev.PoolCreated(turn.now, pool_id, command.name))
    for permission in (Permission.ADMIN, Permission.CREATE_SESSION, Permission.REGISTER_AGENT):
        turn.emit(ev.PermissionGranted(turn.now, permission, turn.principal.user_id, pool_id))
    return turn.state.pools[pool_id]


def delete_pool(turn: Turn, command: DeletePool) -> None:
    """Remove a pool without agents and open sessions."""
    pool = turn.pool(command.pool_id, "id")
    require(turn.principal, Permission.ADMIN, pool)
    agents, sessions = turn.state.open_agents[pool.id], turn.state.open_sessions[pool.id]
    if agents or sessions:
        raise Refused(
            Kind.CONFLICT,
            f"pool {pool.name!r} still has {agents} agents and {sessions} open sessions",
            field="id",
            value=pool.id,
            accepted="a pool without agents and open sessions; stop and close them first",
        )
    turn.emit(ev.PoolDeleted(turn.now, pool.id))


def grant_permission(turn: Turn, command: GrantPermission) -> None:
    """Give a user a permission; twice is fine."""
    pool = _pool_to_administer(turn, command.permission, command.user_id, command.pool_id)
    if command.permission not in pool.permissions.get(command.user_id, set()):
        turn.emit(ev.PermissionGranted(turn.now, command.permission, command.user_id, pool.id))
        pools_opened(turn, command.user_id)


def revoke_permission(turn: Turn, command: RevokePermission) -> None:
    """Take a permission away; twice is fine. Sessions and agents that exist stay."""
    pool = _pool_to_administer(turn, command.permission, command.user_id, command.pool_id)
    if command.permission in pool.permissions.get(command.user_id, set()):
        turn.emit(ev.PermissionRevoked(turn.now, command.permission, command.user_id, pool.id))
        pool_closed_to_user(turn, pool)


def create_token(turn: Turn, command: CreateToken) -> Token:
    """Make a token. Its rights never exceed those of who makes it."""
    principal = turn.principal
    checks.text("description", command.description)
    checks.text("userId", command.user_id, longest=checks.MAX_NAME)
    longest = turn.state.settings.max_token_lifetime_s
    checks.seconds("expireDays", command.lifetime_s, longest, f"more than 0, at most {longest / 86400:g} days")
    if not _SHA256.fullmatch(command.secret_sha256):
        raise checks.refuse("secret", "its hash is malformed", None, "64 hexadecimal digits, lower case")
    if command.secret_sha256 in turn.state.token_by_hash:
        raise Refused(
            Kind.CONFLICT, "a token with this secret exists", field="secret", accepted="a fresh random secret"
        )
    if command.is_admin:
        require_admin(principal, "make a token with admin rights")
    if command.user_id not in ("", principal.user_id):
        require_admin(principal, "make a token for another user", command.user_id)
    for permission, pool_id in command.permissions:
        _check_permission(permission)
        require(principal, Permission.ADMIN, turn.pool(pool_id, "permissions.poolId"))
    token_id = turn.new_id()
    user_id = command.user_id or f"m2m:{token_id}"
    expires_at = turn.now + command.lifetime_s
    token = Token(
        token_id,
        command.description,
        command.secret_sha256,
        user_id,
        turn.now,
        expires_at,
        command.is_admin,
        principal.user_id,
    )
    turn.emit(ev.TokenCreated(turn.now, token))
    for permission, pool_id in command.permissions:
        if permission not in turn.state.pools[pool_id].permissions.get(user_id, set()):
            turn.emit(ev.PermissionGranted(turn.now, permission, user_id, pool_id))
    if command.permissions:
        pools_opened(turn, user_id)
    return token


def revoke_token(turn: Turn, command: RevokeToken) -> None:
    """Make a token worthless at once; its sessions stay."""
    token = found(turn.state.tokens, command.token_id, "token")
    if not may_see_token(turn.principal, token):
        raise Refused(Kind.NOT_FOUND, "no such token", field="id", value=command.token_id, accepted="a token of yours")
    turn.emit(ev.TokenRevoked(turn.now, token.id))


def declare_node_types(turn: Turn, command: DeclareNodeTypes) -> None:
    """Replace the list of node types that may still be started."""
    require_admin(turn.principal, "declare node types")
    names: set[str] = set()
    for at, node in enumerate(command.node_types):
        here = f"[{at}]"
        checks.text(f"{here}.name", node.name, longest=checks.MAX_NAME, empty=False)
        if node.name in names:
            raise checks.refuse(
                f"{here}.name", "is that of an earlier node type", node.name, "a different name for each"
            )
        names.add(node.name)
        turn.pool(node.pool_id, f"{here}.poolId")
        checks.gpus(f"{here}.gpus", node.gpus)
        checks.string_pairs(f"{here}.labels", node.labels)
        checks.string_pairs(f"{here}.taints", node.taints)
        checks.whole_number(f"{here}.maxWorkers", node.max_workers, 0, 2**31 - 1, "0 or more")
    if command.node_types != turn.state.node_types:
        turn.emit(ev.NodeTypesDeclared(turn.now, tuple(command.node_types)))


def may_see_token(principal: Principal, token: Token) -> bool:
    """A token is listed and revoked by its user, by who made it, and by admins."""
    return principal.is_admin or principal.user_id in (token.user_id, token.created_by)


def _pool_to_administer(turn: Turn, permission: Permission, user_id: str, pool_id: str) -> Pool:
    _check_permission(permission)
    checks.text("userId", user_id, longest=checks.MAX_NAME, empty=False)
    pool = turn.pool(pool_id)
    require(turn.principal, Permission.ADMIN, pool)
    return pool


def _check_permission(permission: object) -> None:
    if not isinstance(permission, Permission):
        accepted = ", ".join(known.value for known in Permission)
        raise checks.refuse("permission", "is unknown", permission, accepted)
