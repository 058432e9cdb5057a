"""Pools and permissions. v1: create, read, delete, permissions; extension: `GET /v1/pools`."""

from __future__ import annotations

from aiohttp import web

from . import wire_types as w
from .core.commands import CreatePool, DeletePool, GrantPermission, RevokePermission
from .core.errors import Kind, Refused
from .core.model import Permission, Pool
from .core.permissions import Principal, may
from .rest_base import Api, api_of, as_json, caller, read


async def create(request: web.Request) -> web.Response:
    """`{"name"}` -> Pool; the caller gets all three permissions in it."""
    body, _ = await read(request, w.PoolRequest)
    api = api_of(request)
    pool = api.service.command(CreatePool(body.name), caller(request))
    return as_json(pool_object(api, pool))


async def get(request: web.Request) -> web.Response:
    """One pool."""
    api = api_of(request)
    return as_json(pool_object(api, visible_pool(api, request.match_info["id"], caller(request))))


async def delete(request: web.Request) -> web.Response:
    """409 while the pool has agents or open sessions."""
    pool_id = request.match_info["id"]
    api_of(request).service.command(DeletePool(pool_id), caller(request))
    return as_json(f"Pool {pool_id} deleted")


async def permissions(request: web.Request) -> web.Response:
    """Who may do what in the pool."""
    api = api_of(request)
    pool = visible_pool(api, request.match_info["id"], caller(request))
    return as_json(
        w.PoolPermissions(
            user_ids={
                user: sorted(permission.value for permission in held)
                for user, held in sorted(pool.permissions.items())
                if held
            }
        )
    )


async def listing(request: web.Request) -> web.Response:
    """The pools that the caller may see, in order of creation."""
    api = api_of(request)
    principal = caller(request)
    return as_json([pool_object(api, pool) for pool in api.service.reader.pools(principal)])


async def of_user(request: web.Request) -> web.Response:
    """What a user may do and where. Everybody may ask about themselves; about others one sees the pools that one
    administers."""
    api = api_of(request)
    principal = caller(request)
    user_id = request.match_info["id"]
    pools = [
        pool
        for pool in api.service.reader.pools()
        if user_id == principal.user_id or may(principal, Permission.ADMIN, pool)
    ]
    return as_json(w.UserPermissions(permissions=permissions_of(api, user_id, pools)))


def permissions_of(api: Api, user_id: str, pools: list[Pool]) -> dict[w.PermissionName, list[w.Pool]]:
    """permission -> pools in which the user has it, for each permission that the user has anywhere."""
    result: dict[w.PermissionName, list[w.Pool]] = {}
    for permission in Permission:
        held = [pool_object(api, pool) for pool in pools if permission in pool.permissions.get(user_id, ())]
        if held:
            result[permission.value] = held
    return result


async def grant(request: web.Request) -> web.Response:
    """`{"permission","userId","poolId"}` -> string."""
    body, _ = await read(request, w.PermissionChange)
    command = GrantPermission(Permission(body.permission), body.user_id, body.pool_id)
    api_of(request).service.command(command, caller(request))
    return as_json(f"Permission {body.permission} added")


async def revoke(request: web.Request) -> web.Response:
    """`{"permission","userId","poolId"}` -> string."""
    body, _ = await read(request, w.PermissionChange)
    command = RevokePermission(Permission(body.permission), body.user_id, body.pool_id)
    api_of(request).service.command(command, caller(request))
    return as_json(f"Permission {body.permission} deleted")


def visible_pool(api: Api, pool_id: str, principal: Principal) -> Pool:
    """The pool. Raises Refused when there is none, or none that the caller may know of."""
    pool = api.service.reader.pool(pool_id)
    if not any(may(principal, permission, pool) for permission in Permission):
        raise Refused(
            Kind.FORBIDDEN,
            f"user {principal.user_id!r} has no permission in this pool",
            field="id",
            value=pool_id,
            accepted="a pool in which you have a permission",
        )
    return pool


def pool_object(api: Api, pool: Pool) -> w.Pool:
    """One pool with its counts."""
    sessions, agents, users = api.service.reader.pool_counts(pool.id)
    return w.Pool(id=pool.id, name=pool.name, session_count=sessions, agent_count=agents, user_count=users)


ROUTES = (
    ("PUT", "/v1/pool", create, False),
    ("GET", "/v1/pool/{id}", get, False),
    ("DELETE", "/v1/pool/{id}", delete, False),
    ("GET", "/v1/pool/{id}/permissions", permissions, False),
    ("GET", "/v1/user/permissions/{id}", of_user, False),
    ("PUT", "/v1/user/permissions", grant, False),
    ("DELETE", "/v1/user/permissions", revoke, False),
    ("GET", "/v1/pools", listing, True),
)
