"""Machine-to-machine tokens (`/v1/m2m`) and `GET /v1/whoami`. Extensions all.

A token is `m2m` and 32 random bytes in URL-safe base64; only its SHA-256 is kept. With an Idempotency-Key the secret is
derived from the key and a secret of this controller, so that a repeated POST can show it again although nobody
stored it.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import secrets

from aiohttp import web

from . import wire
from . import wire_types as w
from .core.commands import CreateToken, RevokeToken
from .core.model import Permission, Token
from .rest_base import api_of, as_json, caller, idempotency_key, once, read
from .rest_pools import permissions_of, pool_object

PREFIX = "m2m"


def new_secret() -> str:
    """The text of a new token."""
    return PREFIX + base64.urlsafe_b64encode(secrets.token_bytes(32)).decode().rstrip("=")


def _derived_secret(server_secret: bytes, *parts: str) -> str:
    mac = hmac.new(server_secret, digestmod=hashlib.sha256)
    for part in parts:
        raw = part.encode("utf-8", "surrogatepass")
        mac.update(len(raw).to_bytes(8, "big") + raw)
    return PREFIX + base64.urlsafe_b64encode(mac.digest()).decode().rstrip("=")


def sha256_hex(secret: str) -> str:
    """What is kept of a secret."""
    return hashlib.sha256(secret.encode()).hexdigest()


async def create(request: web.Request) -> web.Response:
    """TokenRequest -> the token with its secret, which is shown only here."""
    body, raw = await read(request, w.TokenRequest)
    service = api_of(request).service
    principal = caller(request)
    key = idempotency_key(request)
    secret = _derived_secret(service.secret, principal.user_id, key) if key else new_secret()
    command = CreateToken(
        description=body.description,
        secret_sha256=sha256_hex(secret),
        user_id=body.user_id,
        lifetime_s=body.expire_days * 86400.0,
        is_admin=body.admin,
        permissions=tuple((Permission(p.permission), p.pool_id) for p in body.permissions),
    )

    def carry_out() -> str:
        token: Token = service.command(command, principal)
        return wire.encode(wire.token_object(token)).decode()

    stored = once(request, raw, carry_out)
    return as_json({**wire.decode(stored.encode(), dict), "token": secret})


async def listing(request: web.Request) -> web.Response:
    """The tokens that the caller uses or has made, without their secrets."""
    return as_json([wire.token_object(token) for token in api_of(request).service.reader.tokens(caller(request))])


async def revoke(request: web.Request) -> web.Response:
    """The token is worth nothing from now on."""
    token_id = request.match_info["id"]
    api_of(request).service.command(RevokeToken(token_id), caller(request))
    return as_json(f"Token {token_id} removed")


async def whoami(request: web.Request) -> web.Response:
    """The caller as the controller sees it."""
    api = api_of(request)
    principal = caller(request)
    pools = api.service.reader.pools(principal)
    if principal.is_admin:
        shown = [pool_object(api, pool) for pool in pools]
        permissions: dict[w.PermissionName, list[w.Pool]] = (
            {permission.value: shown for permission in Permission} if shown else {}
        )
    else:
        permissions = permissions_of(api, principal.user_id, pools)
    return as_json(
        w.WhoAmI(
            user_id=principal.user_id,
            admin=principal.is_admin,
            expires_at=wire.iso(principal.expires_at),
            permissions=permissions,
        )
    )


ROUTES = (
    ("POST", "/v1/m2m", create, True),
    ("GET", "/v1/m2m", listing, True),
    ("DELETE", "/v1/m2m/{id}", revoke, True),
    ("GET", "/v1/whoami", whoami, True),
)
