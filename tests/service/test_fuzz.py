"""Whatever is sent, the controller answers, never with 500, and keeps every invariant."""

from __future__ import annotations

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from juice_sim import openapi
from juice_sim.server import ControllerServer

GIB = 1 << 30
MEMBERS = [
    *("id", "state", "State", "hostname", "address", "version", "poolId", "gpus", "labels", "taints", "sessions"),
    *("connections", "matchLabels", "tolerates", "labelSelector", "vramStrict", "sessionTimeout", "name", "userId"),
    *("description", "expireDays", "admin", "permissions", "permission", "maxWorkers", "action", "path", "index"),
    *("uuid", "vram", "vramRequired", "pciBus", "metrics", "pid", "processName", "exitCode"),
]
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.floats(),
    st.text(max_size=20),
    st.sampled_from(["active", "closed", "queued", "admin", "create_session", "", "0", "a=b", "k in (a)", "status"]),
)
names = st.one_of(
    st.sampled_from(MEMBERS),
    st.text(max_size=8),
)
values = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(names, inner, max_size=6)),
    max_leaves=25,
)
bodies = st.one_of(
    st.dictionaries(names, values, max_size=8).map(lambda value: json.dumps(value).encode()),
    values.map(lambda value: json.dumps(value).encode()),
    st.lists(st.dictionaries(names, values, max_size=5), max_size=3).map(lambda value: json.dumps(value).encode()),
    st.binary(max_size=60),
)
operations = [(op.method.upper(), op.path) for op in openapi.OPERATIONS if "events" not in op.path]


@pytest.fixture(scope="module")
def world(caller_of):
    with ControllerServer(None) as server:
        admin = caller_of(server.url, server.admin_token)
        pool = admin.ok("PUT", "/v1/pool", {"name": "p"})["id"]
        gpus = [{"index": index, "vram": 24 * GIB} for index in range(2)]
        agent = admin.ok(
            "POST", "/v1/register/agent", {"hostname": "h", "address": "10.0.0.1:1", "poolId": pool, "gpus": gpus}
        )
        session = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{"vramRequired": GIB}]})
        yield server, admin, {"pool": pool, "agent": agent, "session": session, "user": "admin", "m2m": "nobody"}


def check(server):
    """The invariants, looked at from the server's own thread."""
    import asyncio

    async def validate():
        server.running.service.reader.validate()

    asyncio.run_coroutine_threadsafe(validate(), server._loop).result(30)


def fill(body, ids):
    """Real ids in the places of some strings, so that the fuzz gets past the first look-up."""
    for mark, value in ((b'"poolId": ""', "pool"), (b'"id": ""', "agent")):
        body = body.replace(mark, mark[:-1] + ids[value].encode() + b'"')
    return body


@settings(
    max_examples=400, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(operation=st.sampled_from(operations), body=bodies, known=st.booleans(), query=st.sampled_from(["", "?wait=0", "?all=1", "?state=x", "?sessions=1"]))  # fmt: skip # noqa: E501
def test_no_body_brings_a_500(world, operation, body, known, query):
    server, admin, ids = world
    method, path = operation
    if "faults" in path and method == "PUT":
        query = ""
    kind = path.split("/")[2] if path.count("/") > 1 else ""
    path = path.replace("{id}", ids.get(kind, "x") if known else "unknown")
    if method == "DELETE" and known and kind == "pool":
        return
    response = admin(method, path + query, data=fill(body, ids) if method != "GET" else None)
    assert response.status_code < 500 or response.status_code == 503, response.text
    if "faults" in path:
        admin.ok("DELETE", "/v1/faults")
    if response.status_code >= 400:
        assert response.json()["message"]
    check(server)


session_shapes = st.fixed_dictionaries(
    {
        "gpus": st.lists(
            st.fixed_dictionaries({"vramRequired": st.one_of(st.integers(0, 30 * GIB), st.integers())}), max_size=3
        )
    },
    optional={
        "matchLabels": st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
        "labelSelector": st.text(max_size=20),
        "sessionTimeout": st.floats(),
        "vramStrict": st.booleans(),
        "name": st.text(max_size=40),
    },
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(shape=session_shapes)
def test_sessions_of_any_shape(world, shape):
    server, admin, ids = world
    response = admin("POST", "/v1/request/session", data=json.dumps({**shape, "poolId": ids["pool"]}))
    assert response.status_code in (200, 400)
    if response.status_code == 200:
        admin.ok("DELETE", f"/v1/session/{response.text}")
    check(server)
