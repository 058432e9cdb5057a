"""Who may do what: principals and the permissions of users in pools."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .errors import Kind, Refused
from .model import Permission, Pool, Session


@dataclass(frozen=True)
class Principal:
    """On whose behalf a command runs. `token_id` and `expires_at` are those of the token that was shown, if any."""

    user_id: str
    is_admin: bool = False
    token_id: str = ""
    expires_at: float | None = None


ADMIN = Principal("admin", is_admin=True)
"""The principal of every caller when the service runs without authentication."""


def may(principal: Principal, permission: Permission, pool: Pool) -> bool:
    """Whether the principal has the permission in the pool; an admin of the pool has all of them."""
    if principal.is_admin:
        return True
    held = pool.permissions.get(principal.user_id)
    return held is not None and (permission in held or Permission.ADMIN in held)


def require(principal: Principal, permission: Permission, pool: Pool) -> None:
    """Raise Refused(FORBIDDEN) unless `may`."""
    if not may(principal, permission, pool):
        raise Refused(
            Kind.FORBIDDEN,
            f"user {principal.user_id!r} lacks the permission {permission.value} in pool {pool.name!r}",
            field="poolId",
            value=pool.id,
            accepted="a pool in which you have it; an admin of the pool can grant it",
        )


def may_see(principal: Principal, session: Session, pools: Mapping[str, Pool]) -> bool:
    """A session is seen, and closed, by its owner and by the admins of its pool."""
    if principal.is_admin or principal.user_id == session.owner:
        return True
    pool = pools.get(session.pool_id)
    return pool is not None and may(principal, Permission.ADMIN, pool)


def require_admin(principal: Principal, what: str, value: Any = None) -> None:
    """Raise Refused(FORBIDDEN) unless the principal is an admin of the whole service."""
    if not principal.is_admin:
        raise Refused(
            Kind.FORBIDDEN,
            f"user {principal.user_id!r} may not {what}",
            value=value,
            accepted="a token made with admin rights",
        )
