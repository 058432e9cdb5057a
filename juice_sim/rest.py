"""The REST API of one controller: routes, and what is around every handler (faults, callers, errors, durability)."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web

from . import faults, rest_agents, rest_extras, rest_pools, rest_quirks, rest_sessions, rest_tokens, wire
from . import wire_types as w
from .core.controller import ADMIN
from .core.errors import Refused
from .rest_base import (
    API,
    JSON_HEADERS,
    PRINCIPAL,
    STATUS,
    UNAUTHORIZED_BODY,
    Api,
    HttpProblem,
    as_problem,
    problem_of,
    too_large,
)
from .service import Unavailable

log = logging.getLogger("juice_sim.rest")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

OPEN_PATHS = frozenset({"/status", "/v1/status", "/health", "/metrics", "/openapi.json"})


def build_app(api: Api) -> web.Application:
    """The aiohttp application of a controller. Middlewares from the outside in: faults, quirks, errors."""
    middlewares: list[Any] = [faults.middleware(api.faults)]
    if api.quirks:
        middlewares.append(rest_quirks.middleware(api))
    middlewares.append(_around(api))
    app = web.Application(middlewares=middlewares, client_max_size=wire.MAX_BODY)
    app[API] = api
    for module in (rest_agents, rest_sessions, rest_pools, rest_tokens, rest_extras):
        for method, path, handler, extension in module.ROUTES:
            if extension and "no-extensions" in api.quirks:
                continue
            app.router.add_route(method, path, handler)
    return app


def _around(api: Api) -> Callable[[web.Request, Handler], Awaitable[web.StreamResponse]]:
    service = api.service

    @web.middleware
    async def around(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            if not api.auth or request.path in OPEN_PATHS:
                request[PRINCIPAL] = ADMIN
            else:
                scheme, _, secret = request.headers.get("Authorization", "").partition(" ")
                if scheme.lower() != "bearer" or not secret:
                    return _unauthorized()
                digest = hashlib.sha256(secret.strip().encode("utf-8", "surrogateescape")).hexdigest()
                principal = service.reader.authenticate(digest, service.now())
                if principal is None:
                    return _unauthorized()
                request[PRINCIPAL] = ADMIN if "no-permissions" in api.quirks else principal
            response = await handler(request)
            await service.settled()
            return response
        except Refused as error:
            if error.kind.value == "unauthorized":
                return _unauthorized()
            return as_problem(STATUS[error.kind], problem_of(error))
        except HttpProblem as error:
            return as_problem(error.status, error.problem, error.headers)
        except Unavailable as error:
            return as_problem(503, w.Problem(message=str(error), code="unavailable"), {"Retry-After": "1"})
        except web.HTTPRequestEntityTooLarge:
            problem = too_large(request.content_length)
            return as_problem(problem.status, problem.problem)
        except web.HTTPNotFound:
            return as_problem(404, w.Problem(message=f"no such path: {request.path[:200]}", code="not_found"))
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            return as_problem(
                405,
                w.Problem(
                    message=f"{request.method} is not for {request.path[:200]}; accepted: {allowed}",
                    code="method_not_allowed",
                    value=request.method,
                    accepted=allowed,
                ),
                {"Allow": allowed},
            )
        except web.HTTPException:
            raise
        except Exception:
            # A bug of ours: the reader of the log gets the traceback, the caller one line.
            log.exception("%s %s failed", request.method, request.path)
            return as_problem(
                500, w.Problem(message="the controller failed on this request; see its log", code="internal")
            )

    return around


def _unauthorized() -> web.Response:
    return web.Response(status=401, body=UNAUTHORIZED_BODY, headers=JSON_HEADERS)
