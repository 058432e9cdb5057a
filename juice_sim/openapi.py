"""`GET /openapi.json`: OpenAPI 3.1, generated from the structs of wire_types.py and the table below.

What the open-source controller does not have carries `x-juice-extension: true`.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import msgspec

from . import __version__
from . import wire_types as w

TEXT = "text/plain"
JSON = "application/json"


@dataclass(frozen=True)
class Operation:
    """One method of one path. `answer` is a type, or TEXT for a bare string, or None for an empty body."""

    method: str
    path: str
    summary: str
    answer: Any
    body: Any = None
    query: tuple[tuple[str, str, str, bool], ...] = ()  # (name, type, description, is extension)
    headers: tuple[tuple[str, str], ...] = ()
    errors: tuple[int, ...] = ()
    extension: bool = False
    is_open: bool = False
    media: str = JSON


KEY = ("Idempotency-Key", "the same key by the same caller gives the same answer again")
PREFER = ("Prefer", "handling=strict: 422 for a request that nothing could ever serve")
WAIT = ("wait", "number", "seconds to wait for something new before the answer is sent", True)
SEEN = ("seen", "integer", "the number in the ETag of the last answer; wait only for something newer", True)
ALL = ("all", "boolean", "also those that are shown only on request", True)

OPERATIONS = (
    Operation("get", "/health", "200 when it serves", None, is_open=True),
    Operation("get", "/v1/status", "State and version", w.Status, is_open=True),
    Operation("get", "/status", "Older form, with at most 20 active agents", dict[str, Any], is_open=True),
    Operation(
        "post",
        "/v1/register/agent",
        "Register an agent; the id is made by the server",
        TEXT,
        w.Agent,
        headers=(KEY,),
        errors=(403, 404, 409, 422),
    ),
    Operation(
        "get", "/v1/agent/{id}", "One agent with its open sessions", w.Agent, query=(WAIT, SEEN), errors=(403, 404)
    ),
    Operation(
        "put",
        "/v1/agent/{id}",
        "Heartbeat with what has changed; with `wait` the answer is the agent",
        None,
        w.AgentUpdate,
        query=(WAIT, SEEN),
        errors=(403, 404),
    ),
    Operation(
        "get",
        "/v1/agents",
        "Active agents",
        list[w.Agent],
        query=(
            ("pool_id", "string", "only those of this pool", False),
            ALL,
            ("sessions", "boolean", "with their sessions", True),
        ),
    ),
    Operation(
        "post",
        "/v1/request/session",
        "Request a session; it is queued",
        TEXT,
        w.SessionRequirements,
        headers=(KEY, PREFER),
        errors=(403, 404, 409, 422),
    ),
    Operation("get", "/v1/session/{id}", "One session", w.Session, query=(WAIT,), errors=(403, 404)),
    Operation("delete", "/v1/session/{id}", "Close or cancel a session; twice is fine", str, errors=(403, 404)),
    Operation("put", "/v1/pool", "Create a pool", w.Pool, w.PoolRequest, errors=(403, 409)),
    Operation("get", "/v1/pool/{id}", "One pool", w.Pool, errors=(403, 404)),
    Operation("delete", "/v1/pool/{id}", "Delete an empty pool", str, errors=(403, 404, 409)),
    Operation("get", "/v1/pool/{id}/permissions", "Who may do what in a pool", w.PoolPermissions, errors=(403, 404)),
    Operation("get", "/v1/user/permissions/{id}", "What a user may do, and where", w.UserPermissions),
    Operation("put", "/v1/user/permissions", "Give a permission", str, w.PermissionChange, errors=(403, 404)),
    Operation("delete", "/v1/user/permissions", "Take a permission away", str, w.PermissionChange, errors=(403, 404)),
    Operation("get", "/v1/pools", "The pools that the caller may see", list[w.Pool], extension=True),
    Operation(
        "get",
        "/v1/sessions",
        "The sessions that the caller may see",
        list[w.SessionDetails],
        query=(
            ("state", "string", "only those in this state", True),
            ("pool_id", "string", "only those of this pool", True),
            ALL,
        ),
        extension=True,
    ),
    Operation(
        "get",
        "/v1/session/{id}/story",
        "What happened to a session",
        list[dict[str, Any]],
        errors=(403, 404),
        extension=True,
    ),
    Operation(
        "post",
        "/v1/m2m",
        "Make a token",
        w.NewToken,
        w.TokenRequest,
        headers=(KEY,),
        errors=(403, 404, 422),
        extension=True,
    ),
    Operation("get", "/v1/m2m", "The tokens, without secrets", list[w.Token], extension=True),
    Operation("delete", "/v1/m2m/{id}", "Revoke a token", str, errors=(403, 404), extension=True),
    Operation("get", "/v1/whoami", "The caller", w.WhoAmI, extension=True),
    Operation(
        "get",
        "/v1/events",
        "The events, one JSON object a line",
        dict[str, Any],
        query=(
            ("since", "integer", "only those after this seq", True),
            ("follow", "boolean", "stay for new ones", True),
        ),
        errors=(403, 410),
        extension=True,
        media="application/x-ndjson",
    ),
    Operation(
        "put",
        "/v1/node-types",
        "What an autoscaler may still start",
        list[w.NodeType],
        list[w.NodeType],
        errors=(403, 404),
        extension=True,
    ),
    Operation("get", "/v1/faults", "The injected faults", list[w.FaultRule], errors=(403,), extension=True),
    Operation(
        "put",
        "/v1/faults",
        "Replace the injected faults",
        list[w.FaultRule],
        list[w.FaultRule],
        errors=(403,),
        extension=True,
    ),
    Operation("delete", "/v1/faults", "Remove the injected faults", str, errors=(403,), extension=True),
    Operation("get", "/metrics", "Prometheus metrics", TEXT, extension=True, is_open=True),
    Operation("get", "/openapi.json", "This document", dict[str, Any], extension=True, is_open=True),
)

ERRORS = {
    400: "a value that is never acceptable",
    401: "no valid token",
    403: "a permission is missing",
    404: "no such object",
    409: "the state of the object forbids it",
    410: "no longer kept",
    413: "the body is too large",
    415: "the content type is not exactly application/json",
    422: "unsatisfiable, or an idempotency key used for another request",
    503: "not now; see Retry-After",
}
_EXTENSION_MEMBERS = {"SessionRequirements": ("labelSelector", "vramStrict", "sessionTimeout", "name")}


@functools.cache
def document() -> dict[str, Any]:
    """The document."""
    kinds = [kind for op in OPERATIONS for kind in (op.answer, op.body) if kind not in (None, TEXT)]
    schemas, components = msgspec.json.schema_components(
        [*kinds, w.Problem], ref_template="#/components/schemas/{name}"
    )
    by_kind = {str(kind): schema for kind, schema in zip([*kinds, w.Problem], schemas, strict=True)}
    for name, members in _EXTENSION_MEMBERS.items():
        for member in members:
            components[name]["properties"][member]["x-juice-extension"] = True
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method] = _operation(operation, by_kind)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Juice Controller, simulated",
            "version": __version__,
            "description": "REST API v1 of the open-source Juice Controller and extensions (x-juice-extension: true).",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "servers": [{"url": "/"}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(op: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    words = [op.method, *(part.strip("{}").replace(".", "_") for part in op.path.split("/") if part)]
    result: dict[str, Any] = {"summary": op.summary, "operationId": "_".join(words).replace("-", "_")}
    if op.extension:
        result["x-juice-extension"] = True
    if op.is_open:
        result["security"] = []
    parameters = []
    if "{id}" in op.path:
        parameters.append({"name": "id", "in": "path", "required": True, "schema": {"type": "string"}})
    for name, kind, text, extension in op.query:
        parameter: dict[str, Any] = {"name": name, "in": "query", "description": text, "schema": {"type": kind}}
        if extension:
            parameter["x-juice-extension"] = True
        parameters.append(parameter)
    for name, text in op.headers:
        parameters.append(
            {"name": name, "in": "header", "description": text, "schema": {"type": "string"}, "x-juice-extension": True}
        )
    if parameters:
        result["parameters"] = parameters
    if op.body is not None:
        result["requestBody"] = {"required": True, "content": {JSON: {"schema": schemas[str(op.body)]}}}
    success: dict[str, Any] = {"description": "success"}
    if op.answer == TEXT:
        success["content"] = {TEXT: {"schema": {"type": "string"}}}
    elif op.answer is not None:
        success["content"] = {op.media: {"schema": schemas[str(op.answer)]}}
    result["responses"] = {"200": success}
    errors = set(op.errors)
    if not op.is_open:
        errors.add(401)
    if op.body is not None:
        errors |= {400, 413, 415, 503}
    elif op.query or op.headers:
        errors.add(400)
    for status in sorted(errors):
        schema = {"type": "object", "properties": {"message": {"type": "string"}}} if status == 401 else None
        result["responses"][str(status)] = {
            "description": ERRORS[status],
            "content": {JSON: {"schema": schema or schemas[str(w.Problem)]}},
        }
    return result
