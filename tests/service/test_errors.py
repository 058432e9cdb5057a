"""Bad input: 4xx with a reason that names field and value, and nothing changed."""

from __future__ import annotations

import json
import socket

import pytest

GIB = 1 << 30
SOMEWHERE = "00000000-0000-0000-0000-000000000000"


def problem(response, status, code=None):
    assert response.status_code == status, response.text
    body = response.json()
    assert set(body) == {"message", "code", "field", "value", "accepted"}
    assert body["message"]
    assert "\n" not in body["message"]
    if code:
        assert body["code"] == code
    return body


def state_of(admin):
    """Everything that a refused request must not have changed."""
    return [
        admin.ok("GET", path) for path in ("/v1/pools", "/v1/agents?all=1&sessions=1", "/v1/sessions?all=1", "/v1/m2m")
    ]


BAD_SESSIONS = {
    "no GPUs": ({"gpus": []}, "gpus"),
    "gpus absent": ({}, "gpus"),
    "gpus is an object": ({"gpus": {}}, "gpus"),
    "gpu is a number": ({"gpus": [3]}, "gpus"),
    "vram as text": ({"gpus": [{"vramRequired": "1"}]}, "gpus[0].vramRequired"),
    "vram 1.5": ({"gpus": [{"vramRequired": 1.5}]}, "gpus[0].vramRequired"),
    "vram true": ({"gpus": [{"vramRequired": True}]}, "gpus[0].vramRequired"),
    "vram negative": ({"gpus": [{"vramRequired": -1}]}, "gpus[0].vramRequired"),
    "vram 2^63": ({"gpus": [{"vramRequired": 2**63}]}, "gpus[0].vramRequired"),
    "vram 2^64": ({"gpus": [{"vramRequired": 2**64}]}, "gpus[0].vramRequired"),
    "vram 10^4000": ({"gpus": [{"vramRequired": 10**4000}]}, "gpus[0].vramRequired"),
    "slices of two GPUs": ({"gpus": [{"vramRequired": GIB}, {"vramRequired": GIB}]}, "gpus"),
    "too many GPUs": ({"gpus": [{}] * 2000}, "gpus"),
    "label is a number": ({"gpus": [{}], "matchLabels": {"a": 1}}, "matchLabels"),
    "selector malformed": ({"gpus": [{}], "labelSelector": "a in (b"}, "labelSelector"),
    "time-out 0": ({"gpus": [{}], "sessionTimeout": 0}, "sessionTimeout"),
    "time-out too long": ({"gpus": [{}], "sessionTimeout": 1e300}, "sessionTimeout"),
    "pool id is a list": ({"gpus": [{}], "poolId": []}, "poolId"),
    "a list": ([], ""),
    "a string": ("x", ""),
}


@pytest.mark.parametrize("name", BAD_SESSIONS)
def test_bad_session_request(admin, agent, name):
    body, field = BAD_SESSIONS[name]
    before = state_of(admin)
    found = problem(admin("POST", "/v1/request/session", body), 400)
    assert found["field"].startswith(field)
    assert state_of(admin) == before


NAMED = {
    "value of a label": ({"matchLabels": {"a": "x", "b": 1, "c": "y"}}, "matchLabels.b", 1, "str"),
    "name of a label": ({"matchLabels": {"a": "x", "n" * 257: "y"}}, "matchLabels", "n" * 200, "str of length <= 256"),
    "one of many GPUs": ({"gpus": [{}, {}, {"pciBus": 7}]}, "gpus[2].pciBus", 7, "str"),
}


@pytest.mark.parametrize("name", NAMED)
def test_the_very_member_is_named(admin, name):
    body, field, value, accepted = NAMED[name]
    found = problem(admin("POST", "/v1/request/session", {"gpus": [{}], **body}), 400, "invalid")
    assert (found["field"], found["value"], found["accepted"]) == (field, value, accepted)


def test_one_of_many_sessions_in_a_report_is_named_with_the_states_that_there_are(admin, agent):
    sessions = {str(number): {"state": "active"} for number in range(1000)}
    sessions["777"] = {"state": "active", "connections": {"a": {"pid": 1}, "b": {"pid": -1}}}
    found = problem(admin("PUT", f"/v1/agent/{agent.id}", {"id": agent.id, "sessions": sessions}), 400)
    assert (found["field"], found["value"]) == ("sessions.777.connections.b.pid", -1)
    sessions["777"] = {"state": "dancing"}
    found = problem(admin("PUT", f"/v1/agent/{agent.id}", {"id": agent.id, "sessions": sessions}), 400)
    assert (found["field"], found["value"]) == ("sessions.777.state", "dancing")
    assert found["accepted"] == "active, assigned, canceling, closed, queued"


def test_a_state_that_no_agent_reports_is_told_in_the_word_of_the_wire(admin, agent):
    found = problem(admin("PUT", f"/v1/agent/{agent.id}", {"id": agent.id, "state": "missing"}), 400)
    assert (found["field"], found["value"]) == ("state", "missing")
    assert "got 'missing'" in found["message"]


@pytest.mark.parametrize(
    ("raw", "field", "value"),
    [
        (b'{"gpus":[{},{"vramRequired":NaN}]}', "gpus[1].vramRequired", "NaN"),
        (b'{"gpus":[{}],"sessionTimeout":-Infinity}', "sessionTimeout", "-Infinity"),
    ],
)
def test_what_is_no_number_is_named(admin, raw, field, value):
    found = problem(admin("POST", "/v1/request/session", data=raw), 400, "invalid")
    assert (found["field"], found["value"]) == (field, value)


@pytest.mark.parametrize(
    ("method", "path", "body", "field", "accepted"),
    [
        ("PUT", "/v1/pool", {}, "name", "see /openapi.json"),
        (
            "POST",
            "/v1/m2m",
            {"permissions": [{"poolId": "x"}]},
            "permissions[0].permission",
            "admin, create_session, register_agent",
        ),
    ],
)
def test_a_missing_member_is_named(admin, method, path, body, field, accepted):
    found = problem(admin(method, path, body), 400, "invalid")
    assert (found["field"], found["value"], found["accepted"]) == (field, None, accepted)


def test_session_in_an_unknown_pool_is_404(admin):
    found = problem(admin("POST", "/v1/request/session", {"poolId": SOMEWHERE, "gpus": [{}]}), 404, "not_found")
    assert (found["field"], found["value"]) == ("poolId", SOMEWHERE)


RAW = {
    "NaN": b'{"gpus":[{"vramRequired":NaN}]}',
    "Infinity": b'{"gpus":[{}],"sessionTimeout":Infinity}',
    "1e999": b'{"gpus":[{}],"sessionTimeout":1e999}',
    "1e3 for a whole number": b'{"gpus":[{"vramRequired":1e3}]}',
    "digits without end": b'{"gpus":[{"vramRequired":' + b"9" * 5000 + b"}]}",
    "truncated": b'{"gpus":[{',
    "empty": b"",
    "two values": b'{"gpus":[{}]}{}',
    "single quotes": b"{'gpus':[{}]}",
    "comment": b'{"gpus":[{}]/**/}',
    "member given twice": b'{"gpus":[{}],"gpus":[]}',
    "member given twice, inside": b'{"gpus":[{"vramRequired":1,"vramRequired":2}]}',
    "not UTF-8": b'{"gpus":[{}],"name":"\xff"}',
    "UTF-16": '{"gpus":[{}]}'.encode("utf-16"),
    "byte order mark": b'\xef\xbb\xbf{"gpus":[{}]}',
    "half a surrogate pair": b'{"gpus":[{}],"name":"\\ud800"}',
    "NUL bytes": b"\x00" * 64,
    "nested 100 deep": b'{"gpus":[{}],"x":' + b"[" * 100 + b"]" * 100 + b"}",
    "nested 100,000 deep": b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}",
    "nested and never closed": b"[" * 200_000,
    "nested objects": b'{"x":' * 90 + b"1" + b"}" * 90,
}


@pytest.mark.parametrize("name", RAW)
def test_body_that_is_no_good_json(admin, agent, name):
    before = state_of(admin)
    problem(admin("POST", "/v1/request/session", data=RAW[name]), 400, "invalid")
    assert state_of(admin) == before


def test_brackets_in_strings_are_no_nesting(admin, pool):
    body = {"poolId": pool, "gpus": [{}], "name": "[{" * 200}
    assert admin("POST", "/v1/request/session", body).status_code == 200


def test_many_brackets_that_are_not_deep_are_fine(admin, agent):
    body = {"id": agent.id, "gpus": [{} for _ in range(500)]}
    assert admin("PUT", f"/v1/agent/{agent.id}", body).status_code == 200


def test_oversized_body_is_413(admin):
    body = b'{"gpus":[{}],"name":"' + b"a" * (1 << 20) + b'"}'
    problem(admin("POST", "/v1/request/session", data=body), 413, "too_large")

    def chunks():
        for _ in range(40):
            yield b" " * (1 << 15)

    problem(admin("POST", "/v1/request/session", data=chunks()), 413, "too_large")
    assert admin("GET", "/v1/pools").status_code == 200


def test_body_of_another_type_is_415(admin):
    found = problem(
        admin("POST", "/v1/request/session", data=b"{}", headers={"Content-Type": "text/plain"}),
        415,
        "unsupported_media_type",
    )
    assert found["value"] == "text/plain"


BAD_AGENTS = {
    "two GPUs of one index": ({"gpus": [{"index": 0, "vram": 1}, {"index": 0, "vram": 1}]}, "gpus[1].index"),
    "two GPUs of one uuid": (
        {"gpus": [{"index": 0, "uuid": "a", "vram": 1}, {"index": 1, "uuid": "a", "vram": 1}]},
        "gpus[1].uuid",
    ),
    "index negative": ({"gpus": [{"index": -1, "vram": 1}]}, "gpus[0].index"),
    "vram 2^64": ({"gpus": [{"index": 0, "vram": 2**64}]}, "gpus[0].vram"),
    "vram 0": ({"gpus": [{"index": 0, "vram": 0}]}, "gpus[0].vram"),
    "labels too many": ({"labels": {str(n): "" for n in range(300)}}, "labels"),
    "hostname a number": ({"hostname": 1}, "hostname"),
}


@pytest.mark.parametrize("name", BAD_AGENTS)
def test_bad_registration(admin, pool, agent_type, name):
    change, field = BAD_AGENTS[name]
    before = state_of(admin)
    found = problem(admin("POST", "/v1/register/agent", {**agent_type(admin, pool).body(), **change}), 400)
    assert found["field"] == field
    assert state_of(admin) == before


def test_report_of_a_foreign_session_changes_nothing(admin, pool, agent, agent_type):
    other = agent_type(admin, pool, address="10.0.0.9:1", hostname="gpu02")
    other.register()
    session_id = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{}]})
    owner, stranger = (agent, other) if agent.read()["sessions"] else (other, agent)
    before = state_of(admin)
    found = problem(stranger.report(**{session_id: "closed"}), 400)
    assert session_id in found["field"]
    problem(owner.report(**{session_id: "active", SOMEWHERE: "closed"}), 400)
    assert state_of(admin) == before


@pytest.mark.parametrize("state", ["queued", "failed", "ACTIVE", "", 1, None, [], {"a": 1}])
def test_report_of_an_unknown_state_changes_nothing(admin, pool, agent, state):
    session_id = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{}]})
    before = state_of(admin)
    body = {"id": agent.id, "sessions": {session_id: {"State": state}}}
    problem(admin("PUT", f"/v1/agent/{agent.id}", body), 400)
    assert state_of(admin) == before


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/session/{}"),
        ("DELETE", "/v1/session/{}"),
        ("GET", "/v1/session/{}/story"),
        ("GET", "/v1/agent/{}"),
        ("GET", "/v1/pool/{}"),
        ("DELETE", "/v1/pool/{}"),
        ("GET", "/v1/pool/{}/permissions"),
        ("DELETE", "/v1/m2m/{}"),
    ],
)
@pytest.mark.parametrize("given", [SOMEWHERE, "no-uuid", "%00", "%ff%fe", "a" * 3000, "%F0%9F%92%A5", "..%2f.."])
def test_unknown_object_is_404(admin, method, path, given):
    response = admin(method, path.format(given))
    assert response.status_code == 404
    assert response.json()["code"] == "not_found"


@pytest.mark.parametrize("query", ["wait=x", "wait=-1", "wait=nan", "wait=inf", "wait=1&seen=x"])
def test_bad_query_is_400(agent, query):
    assert problem(agent.call("GET", f"/v1/agent/{agent.id}?{query}"), 400)["field"] in ("wait", "seen")


@pytest.mark.parametrize("query", ["state=lost", "all=maybe"])
def test_bad_list_query_is_400(admin, query):
    problem(admin("GET", f"/v1/sessions?{query}"), 400, "invalid")


@pytest.mark.parametrize("name", ["", "a" * 256, "tab\there", "new\nline", "nul\0", 7, None, ["a"]])
def test_bad_pool_name(admin, name):
    before = state_of(admin)
    assert problem(admin("PUT", "/v1/pool", {"name": name}), 400)["field"] in ("name", "")
    assert state_of(admin) == before


@pytest.mark.parametrize("name", ["a b", "#", "a;b", "$(id)", "'\"", "dédé", "池", "a" * 255])
def test_strange_pool_names_are_fine(admin, name):
    made = admin.ok("PUT", "/v1/pool", {"name": name})
    assert made["name"] == name
    assert made in admin.ok("GET", "/v1/pools")


def test_pool_name_twice_is_409(admin, pool):
    problem(admin("PUT", "/v1/pool", {"name": "test"}), 409, "conflict")


def test_pool_with_agents_or_sessions_is_not_deleted(admin, pool, agent):
    problem(admin("DELETE", f"/v1/pool/{pool}"), 409, "conflict")
    admin.ok("PUT", f"/v1/agent/{agent.id}", {"id": agent.id, "state": "closed"})
    session_id = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{}]})
    problem(admin("DELETE", f"/v1/pool/{pool}"), 409, "conflict")
    admin.ok("DELETE", f"/v1/session/{session_id}")
    admin.ok("DELETE", f"/v1/pool/{pool}")
    assert admin.ok("GET", "/v1/pools") == []


def test_bytes_that_are_no_http_do_no_harm(server, admin):
    host, port = server.url.removeprefix("http://").split(":")
    for junk in (b"\x16\x03\x01\x02\x00", b"GET / HTTP/9.9\r\n\r\n", b"A" * 100_000, b"POST /v1/pool HTTP/1.1\r\nContent-Length: -5\r\n\r\n"):  # fmt: skip # noqa: E501
        with socket.create_connection((host, int(port)), timeout=10) as connection:
            connection.sendall(junk)
            connection.shutdown(socket.SHUT_WR)
            answer = connection.recv(65536)
            assert b" 500 " not in answer.split(b"\r\n")[0]
    assert admin("GET", "/v1/pools").status_code == 200


def test_session_that_can_never_fit_harms_nobody(admin, pool, agent):
    huge = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{"vramRequired": 2**63 - 1}]})
    fits = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{"vramRequired": GIB}]})
    assert admin.ok("GET", f"/v1/session/{huge}")["state"] == "queued"
    assert admin.ok("GET", f"/v1/session/{fits}")["state"] == "assigned"


def test_strict_handling_refuses_what_nothing_could_ever_serve(admin, pool, agent):
    strict = {"Prefer": "handling=strict"}
    body = {"poolId": pool, "gpus": [{"vramRequired": 2**62}]}
    response = admin("POST", "/v1/request/session", body, headers=strict)
    problem(response, 422, "unsatisfiable")
    assert response.headers["Preference-Applied"] == "handling=strict"
    assert admin.ok("GET", "/v1/sessions?all=1") == []
    served = admin(
        "POST", "/v1/request/session", {"poolId": pool, "gpus": [{}]}, headers={"Prefer": "foo, Handling = strict; x"}
    )
    assert (served.status_code, served.headers["Preference-Applied"]) == (200, "handling=strict")
    loose = admin("POST", "/v1/request/session", body, headers={"Prefer": "handling=lenient"})
    assert loose.status_code == 200
    assert "Preference-Applied" not in loose.headers


def test_strict_handling_counts_what_an_autoscaler_may_start(admin, pool):
    strict = {"Prefer": "handling=strict"}
    body = {"poolId": pool, "gpus": [{"vramRequired": 40 * GIB}]}
    problem(admin("POST", "/v1/request/session", body, headers=strict), 422, "unsatisfiable")
    node = {"name": "gpu_node", "poolId": pool, "gpus": [{"index": 0, "vram": 80 * GIB}], "maxWorkers": 2}
    assert admin.ok("PUT", "/v1/node-types", [node])[0]["name"] == "gpu_node"
    assert admin("POST", "/v1/request/session", body, headers=strict).status_code == 200


def test_error_values_are_bounded(admin):
    response = admin("GET", "/v1/sessions", params={"state": "x" * 4000})
    assert len(response.text) < 2000
    json.loads(response.text)
