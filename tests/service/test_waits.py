"""Waiting requests: `?wait=` on sessions and agents."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

SESSION = {"gpus": [{"vramRequired": 1 << 30}]}


@pytest.fixture
def threads():
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_session_is_answered_when_it_becomes_active(admin, pool, agent, server, caller_of, threads):
    session_id = admin.ok("POST", "/v1/request/session", {**SESSION, "poolId": pool})
    other = caller_of(server.url, server.admin_token)
    waiting = threads.submit(other.ok, "GET", f"/v1/session/{session_id}?wait=30")
    agent.start_all()
    assert waiting.result(30)["state"] == "active"


def test_session_wait_ends_when_the_time_is_over(admin, pool):
    session_id = admin.ok("POST", "/v1/request/session", {**SESSION, "poolId": pool})
    assert admin.ok("GET", f"/v1/session/{session_id}?wait=0.05")["state"] == "queued"


def test_agent_is_answered_when_a_session_is_assigned(admin, pool, agent, server, caller_of, threads):
    other = caller_of(server.url, server.admin_token)
    waiting = threads.submit(other.ok, "GET", f"/v1/agent/{agent.id}?wait=30")
    session_id = admin.ok("POST", "/v1/request/session", {**SESSION, "poolId": pool})
    assert [session["id"] for session in waiting.result(30)["sessions"]] == [session_id]


def test_report_that_waits_is_answered_by_what_is_newer_than_seen(admin, pool, agent, server, caller_of, threads):
    session_id = admin.ok("POST", "/v1/request/session", {**SESSION, "poolId": pool})
    first = admin("GET", f"/v1/agent/{agent.id}")
    seen = first.headers["ETag"].strip('"')
    report = {"id": agent.id, "sessions": {session_id: {"State": "active"}}}
    other = caller_of(server.url, server.admin_token)
    waiting = threads.submit(other, "PUT", f"/v1/agent/{agent.id}?wait=30&seen={seen}", report)
    assert admin.ok("GET", f"/v1/session/{session_id}?wait=30")["state"] == "active"  # taken at once, answered later
    assert not waiting.done()
    admin.ok("DELETE", f"/v1/session/{session_id}")
    answer = waiting.result(30)
    assert [session["state"] for session in answer.json()["sessions"]] == ["canceling"]
    assert int(answer.headers["ETag"].strip('"')) > int(seen)
    missed = admin("PUT", f"/v1/agent/{agent.id}?wait=30&seen={seen}", {"id": agent.id})  # news is never missed
    assert missed.headers["ETag"] == answer.headers["ETag"]


def test_a_later_request_of_the_agent_ends_its_wait(admin, agent, server, caller_of, threads, wait_until):
    seen = admin("GET", f"/v1/agent/{agent.id}").headers["ETag"].strip('"')
    other = caller_of(server.url, server.admin_token)
    waiting = threads.submit(other.ok, "GET", f"/v1/agent/{agent.id}?wait=60&seen={seen}")

    def nudge():
        admin.ok("GET", f"/v1/agent/{agent.id}?wait=0")
        return waiting.done()

    wait_until(nudge, "the wait ends")
    assert waiting.result()["id"] == agent.id


def test_waiting_requests_do_not_hold_up_the_stop(start, caller_of, threads):
    server = start(None)
    admin = caller_of(server.url, server.admin_token)
    pool = admin.ok("PUT", "/v1/pool", {"name": "p"})["id"]
    session_id = admin.ok("POST", "/v1/request/session", {**SESSION, "poolId": pool})
    other = caller_of(server.url, server.admin_token)
    waiting = threads.submit(other.ok, "GET", f"/v1/session/{session_id}?wait=60")
    admin.ok("GET", "/health")
    server.stop(20)
    assert waiting.exception(30) is not None or waiting.result()["state"] == "queued"
