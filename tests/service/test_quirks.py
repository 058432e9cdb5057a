"""Each quirk of the open-source controller, on and off."""

from __future__ import annotations

import threading
import uuid

import pytest

from juice_sim.quirks import QUIRKS, UnknownQuirk, parse

GIB = 1 << 30
EMPTY = {"id": "", "state": "", "address": "", "version": "", "poolId": "", "gpus": None, "connections": None}


@pytest.fixture
def with_quirks(start, caller_of):
    """(admin, pool id) of a controller with these quirks."""

    def begin(quirks):
        server = start(None, quirks=quirks)
        admin = caller_of(server.url, server.admin_token)
        return admin, admin.ok("PUT", "/v1/pool", {"name": "p"})["id"]

    return begin


def test_names_are_checked():
    assert parse("open-source").names == frozenset(QUIRKS)
    assert parse("open-source,-slow-tick").names == frozenset(QUIRKS) - {"slow-tick"}
    assert parse(" one-read , ").names == {"one-read"}
    assert not parse("none")
    with pytest.raises(UnknownQuirk, match="accepted: open-source, none, empty-queued"):
        parse("on-read")


def test_empty_queued(with_quirks, agent_type):
    admin, pool = with_quirks("empty-queued")
    session_id = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{}]})
    assert admin.ok("GET", f"/v1/session/{session_id}") == EMPTY
    agent_type(admin, pool).register()
    assert admin.ok("GET", f"/v1/session/{session_id}")["state"] == "assigned"


@pytest.mark.parametrize(
    "change", [{"poolId": str(uuid.uuid4())}, {"poolId": "not a uuid"}, {"gpus": [{"vramRequired": 2**63}]}]
)
def test_lost_request(with_quirks, change):
    admin, pool = with_quirks("lost-request,text-errors")
    answer = admin("POST", "/v1/request/session", {"poolId": pool, "gpus": [{}], **change})
    assert answer.status_code == 200
    assert str(uuid.UUID(answer.text)) == answer.text
    missing = admin("GET", f"/v1/session/{answer.text}")
    assert (missing.status_code, missing.headers["Content-Type"]) == (500, "text/plain")
    assert "not found" in missing.text
    good = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{}]})
    assert admin.ok("GET", f"/v1/session/{good}")["state"] == "queued"


def test_every_gpu(with_quirks, agent_type):
    admin, pool = with_quirks("every-gpu")
    agent = agent_type(admin, pool, gpus=3)
    agent.register()
    session_id = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{"vramRequired": GIB}]})
    shown = admin.ok("GET", f"/v1/session/{session_id}")
    assert shown["gpus"] == [{"index": index, "vramRequired": GIB} for index in range(3)]
    (held,) = agent.read()["sessions"]
    assert held["gpus"] == [{"index": 0, "vramRequired": GIB}]  # the agent is told the truth, and nobody loses a GPU
    waiting = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{}, {}, {}]})
    assert admin.ok("GET", f"/v1/session/{waiting}")["gpus"] == []
    bus = agent.read()["gpus"][1]["pciBus"]
    one = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{"vramRequired": GIB, "pciBus": bus}]})
    assert [gpu["index"] for gpu in admin.ok("GET", f"/v1/session/{one}")["gpus"]] == [1]


def test_text_errors(with_quirks, agent_type):
    admin, pool = with_quirks("text-errors")
    for method, path, body in (
        ("GET", f"/v1/agent/{uuid.uuid4()}", None),
        ("POST", "/v1/request/session", {"gpus": 3}),
        ("PUT", "/v1/pool", {}),
    ):
        response = admin(method, path, body)
        assert (response.status_code, response.headers["Content-Type"]) == (500, "text/plain"), path
    agent = agent_type(admin, pool)
    agent.register()
    assert admin("PUT", f"/v1/agent/{agent.id}", {"id": "other"}).status_code == 400
    assert admin("GET", "/v1/nowhere").status_code == 404
    assert admin("POST", "/v1/agents", {}).status_code == 405
    assert admin("GET", "/v1/pools", headers={"Authorization": "Bearer x"}).json() == {
        "message": "Failed to validate JWT."
    }


def test_slow_tick(with_quirks, agent_type, wait_until):
    admin, pool = with_quirks("slow-tick")
    agent = agent_type(admin, pool, gpus=8)
    agent.register()
    body = {"poolId": pool, "gpus": [{"vramRequired": GIB}]}
    ids = [admin.ok("POST", "/v1/request/session", body) for _ in range(25)]

    def states():
        return [admin.ok("GET", f"/v1/session/{session_id}")["state"] for session_id in ids]

    assert states().count("queued") >= 5
    admin.ok("DELETE", f"/v1/session/{ids[-1]}")
    assert states()[-1] == "closed"
    wait_until(lambda: states()[:-1] == ["assigned"] * 24, "assigned by ticks")
    assert states()[-1] == "closed"


def test_slow_tick_stops_at_20_that_cannot_be_served(with_quirks, agent_type, wait_until):
    admin, pool = with_quirks("slow-tick")
    agent_type(admin, pool, gpus=8).register()
    hopeless = {"poolId": pool, "gpus": [{"vramRequired": 1 << 50}]}
    blocking = [admin.ok("POST", "/v1/request/session", hopeless) for _ in range(20)]
    behind = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{"vramRequired": GIB}]})
    wait_until(lambda: len(admin.ok("GET", "/v1/sessions")) == 20, "the head of the queue was looked at")
    assert admin.ok("GET", f"/v1/session/{behind}")["state"] == "queued"
    admin.ok("DELETE", f"/v1/session/{blocking[3]}")
    wait_until(lambda: admin.ok("GET", f"/v1/session/{behind}")["state"] == "assigned", "the queue moves again")


def test_reopen_closed(with_quirks):
    admin, pool = with_quirks("reopen-closed")
    session_id = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{}]})
    admin.ok("DELETE", f"/v1/session/{session_id}")
    assert admin.ok("GET", f"/v1/session/{session_id}")["state"] == "closed"
    admin.ok("DELETE", f"/v1/session/{session_id}")
    assert admin.ok("GET", f"/v1/session/{session_id}")["state"] == "canceling"


def test_one_read(with_quirks):
    admin, pool = with_quirks("one-read")
    body = {"poolId": pool, "gpus": [{}], "name": "x" * 900}
    assert admin("POST", "/v1/request/session", body).status_code == 200
    response = admin("POST", "/v1/request/session", {**body, "matchLabels": {str(n): "v" * 200 for n in range(20)}})
    assert (response.status_code, response.text) == (500, "unexpected end of JSON input")


def test_too_many_clients(with_quirks, caller_of, wait_until):
    admin, pool = with_quirks("too-many-clients")
    session_id = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{}]})
    path = f"/v1/session/{session_id}?wait=5"
    waiting = [threading.Thread(target=caller_of(admin.url, admin.token), args=("GET", path)) for _ in range(99)]
    for thread in waiting:
        thread.start()
    wait_until(lambda: admin("GET", "/v1/pools").text == "pq: sorry, too many clients already", "98 requests at once")
    wait_until(lambda: admin("DELETE", f"/v1/session/{session_id}").status_code == 200, "room for a request again")
    for thread in waiting:
        thread.join(30)


def test_first_20_agents(with_quirks, agent_type):
    admin, pool = with_quirks("first-20-agents")
    for number in range(22):
        agent_type(admin, pool, address=f"10.0.0.{number}:1", hostname=f"h{number}").register()
    assert len(admin.ok("GET", "/v1/agents")) == 20


def test_no_permissions(with_quirks, caller_of):
    admin, pool = with_quirks("no-permissions")
    stranger = caller_of(admin.url, admin.ok("POST", "/v1/m2m", {"description": "x"})["token"])
    assert stranger("POST", "/v1/request/session", {"poolId": pool, "gpus": [{}]}).status_code == 200
    assert caller_of(admin.url, "wrong")("GET", "/v1/agents").status_code == 401


def test_no_extensions(with_quirks):
    admin, pool = with_quirks("no-extensions")
    for path in ("/v1/pools", "/v1/sessions", "/v1/whoami", "/v1/events", "/openapi.json", "/v1/session/x/story"):
        assert admin("GET", path).status_code == 404, path
    body = {"poolId": pool, "gpus": [{"vramRequired": 1 << 60}], "labelSelector": "a in (", "vramStrict": True}
    headers = {"Prefer": "handling=strict", "Idempotency-Key": "k"}
    answers = [admin("POST", "/v1/request/session", body, headers=headers) for _ in range(2)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert answers[0].text != answers[1].text
    assert "Preference-Applied" not in answers[0].headers
    assert admin.ok("GET", f"/v1/session/{answers[0].text}?wait=30")["state"] == "queued"


def test_all_of_them_at_once_still_serve_a_real_client(with_quirks, agent_type, wait_until):
    admin, pool = with_quirks("open-source")
    agent = agent_type(admin, pool)
    agent.register()
    session_id = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{"vramRequired": GIB}]})
    wait_until(lambda: admin.ok("GET", f"/v1/session/{session_id}")["state"] == "assigned", "assigned by a tick")
    agent.start_all()
    assert admin.ok("GET", f"/v1/session/{session_id}")["state"] == "active"
    admin.ok("DELETE", f"/v1/session/{session_id}")
    agent.start_all()
    assert admin.ok("GET", f"/v1/session/{session_id}")["state"] == "closed"
