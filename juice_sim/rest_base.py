"""What all REST handlers share: reading a body, answering, errors, the caller.

Handlers translate and nothing more: which request is allowed and what it does is the core's business.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from aiohttp import web

from . import wire
from . import wire_types as w
from .core.errors import Kind, Refused
from .core.permissions import Principal
from .faults import Faults
from .quirks import Quirks
from .service import Service, fingerprint
from .store import Answer

T = TypeVar("T")

STATUS = {
    Kind.INVALID: 400,
    Kind.UNAUTHORIZED: 401,
    Kind.FORBIDDEN: 403,
    Kind.NOT_FOUND: 404,
    Kind.CONFLICT: 409,
    Kind.UNSATISFIABLE: 422,
}
JSON_HEADERS = {"Content-Type": "application/json"}
TEXT_HEADERS = {"Content-Type": "text/plain"}
UNAUTHORIZED_BODY = b'{"message":"Failed to validate JWT."}'
MAX_WAIT_S = 60.0


@dataclass
class Api:
    """What the handlers of one server work on."""

    service: Service
    auth: bool = True
    quirks: Quirks = field(default_factory=Quirks)
    faults: Faults = field(default_factory=Faults)
    hostname: str = "localhost"
    gpu_metrics: dict[str, list[w.GpuMetrics]] = field(default_factory=dict)  # per agent, as last reported; not kept
    reopened: set[str] = field(default_factory=set)  # quirk reopen-closed
    lost: set[str] = field(default_factory=set)  # quirk lost-request
    held: Any = None  # quirk slow-tick: rest_quirks.SlowTick


API: web.AppKey[Api] = web.AppKey("api", Api)
# aiohttp has typed keys for requests since 3.14 and warns about plain ones.
PRINCIPAL: Any = web.RequestKey("principal", Principal) if hasattr(web, "RequestKey") else "principal"


class HttpProblem(Exception):
    """An error of the HTTP side itself (wrong content type, too large, reused key, ...)."""

    def __init__(self, status: int, problem: w.Problem, headers: dict[str, str] | None = None) -> None:
        super().__init__(problem.message)
        self.status = status
        self.problem = problem
        self.headers = headers or {}


def problem_of(error: Refused) -> w.Problem:
    """A refusal of the core as the JSON of an error."""
    return w.Problem(
        message=str(error), code=error.kind.value, field=error.field, value=_plain(error.value), accepted=error.accepted
    )


def _plain(value: Any) -> Any:
    """A value that JSON can hold, of bounded size."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) < 2**63 else str(value)[:120]
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return str(value)[:200].encode("utf-8", "replace").decode()


def api_of(request: web.Request) -> Api:
    """The Api that this request belongs to."""
    return request.app[API]


def caller(request: web.Request) -> Principal:
    """On whose behalf this request runs."""
    principal: Principal = request[PRINCIPAL]
    return principal


async def read(request: web.Request, kind: type[T]) -> tuple[T, bytes]:
    """The body as `kind`, and its bytes. Raises HttpProblem (413, 415) and Refused (400).

    The content type must be exactly `application/json`, without parameters: the real controller compares so.
    """
    content_type = request.headers.get("Content-Type", "")
    if content_type != "application/json":
        raise HttpProblem(
            415,
            w.Problem(
                message=f"Content-Type is {content_type[:100]!r}; accepted: exactly application/json",
                code="unsupported_media_type",
                field="Content-Type",
                value=content_type[:100],
                accepted="application/json, without parameters",
            ),
        )
    if request.content_length is not None and request.content_length > wire.MAX_BODY:
        raise too_large(request.content_length)
    body = await request.read()
    return wire.decode(body, kind), body


def too_large(size: int | None) -> HttpProblem:
    """The body is larger than MAX_BODY."""
    return HttpProblem(
        413,
        w.Problem(
            message=f"the body is too large; accepted: at most {wire.MAX_BODY} bytes",
            code="too_large",
            value=size,
            accepted=f"at most {wire.MAX_BODY} bytes",
        ),
    )


def query_seconds(request: web.Request, name: str, default: float = 0.0) -> float:
    """A number of seconds from the query, clipped to MAX_WAIT_S. Raises Refused."""
    text = request.query.get(name)
    if text is None:
        return default
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise Refused(Kind.INVALID, "not a number of seconds", field=name, value=text, accepted="0 or more")
    return min(value, MAX_WAIT_S)


def query_flag(request: web.Request, name: str) -> bool:
    """Whether `?name=1` (or true, yes) is given. Raises Refused for anything but a yes or a no."""
    text = request.query.get(name, "0").lower()
    if text in ("1", "true", "yes", ""):
        return True
    if text in ("0", "false", "no"):
        return False
    raise Refused(Kind.INVALID, "not a yes or no", field=name, value=text, accepted="0, 1, true, false, yes, no")


def query_choice(request: web.Request, name: str, accepted: tuple[str, ...]) -> str | None:
    """One of some words from the query, None when absent. Raises Refused."""
    text = request.query.get(name)
    if text is None or text == "":
        return None
    if text not in accepted:
        raise Refused(Kind.INVALID, "unknown", field=name, value=text, accepted=", ".join(accepted))
    return text


def as_json(value: Any, headers: dict[str, str] | None = None) -> web.Response:
    """200 with `value` as JSON."""
    return web.Response(body=wire.encode(value), headers={**JSON_HEADERS, **headers} if headers else JSON_HEADERS)


def as_text(value: str, headers: dict[str, str] | None = None) -> web.Response:
    """200 with a bare string, as v1 gives ids."""
    return web.Response(body=value.encode(), headers={**TEXT_HEADERS, **headers} if headers else TEXT_HEADERS)


def as_problem(status: int, problem: w.Problem, headers: dict[str, str] | None = None) -> web.Response:
    """An error."""
    return web.Response(status=status, body=wire.encode(problem), headers={**JSON_HEADERS, **(headers or {})})


MAX_KEY = 255


def idempotency_key(request: web.Request) -> str:
    """The Idempotency-Key header, "" when absent. Raises Refused."""
    if "no-extensions" in api_of(request).quirks:
        return ""
    key = request.headers.get("Idempotency-Key", "")
    if len(key) > MAX_KEY or not key.isprintable():
        raise Refused(
            Kind.INVALID,
            "the key is too long or not printable",
            field="Idempotency-Key",
            value=key[:120],
            accepted=f"1 to {MAX_KEY} printable characters",
        )
    return key


def reused_key(key: str) -> HttpProblem:
    """The key came with another body before."""
    return HttpProblem(
        422,
        w.Problem(
            message=f"Idempotency-Key {key!r} was used for another request; take a new key for a new request",
            code="key_reused",
            field="Idempotency-Key",
            value=key,
            accepted="the same body as before, or a new key",
        ),
    )


def once(request: web.Request, body: bytes, carry_out: Callable[[], str]) -> str:
    """Carry out a POST at most once per key; returns what `carry_out` returned the first time.

    Only successes use a key up. The answer is stored in the commit of the events that it reports.
    """
    key = idempotency_key(request)
    if not key:
        return carry_out()
    service = api_of(request).service
    key_sha256 = fingerprint(caller(request).user_id, request.path, key)
    body_sha256 = fingerprint(body)
    known = service.answered(key_sha256)
    if known is not None:
        if known.body_sha256 != body_sha256:
            raise reused_key(key)
        return known.value
    value = carry_out()
    service.remember(Answer(key_sha256, body_sha256, value, service.now()))
    return value
