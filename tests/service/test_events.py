"""`GET /v1/events` and the story of a session."""

from __future__ import annotations

import json
import socket
import struct
import threading

SESSION = {"gpus": [{"vramRequired": 1 << 30}]}


def events(admin, query=""):
    response = admin("GET", f"/v1/events{query}")
    assert response.headers["Content-Type"] == "application/x-ndjson"
    return [json.loads(line) for line in response.text.splitlines()]


def test_every_change_is_one_line_with_seq(admin, pool, agent):
    session_id = admin.ok("POST", "/v1/request/session", {**SESSION, "poolId": pool})
    agent.start_all()
    admin.ok("DELETE", f"/v1/session/{session_id}")
    agent.start_all()
    lines = events(admin)
    assert [line["seq"] for line in lines] == list(range(1, len(lines) + 1))
    mine = [line["event"] for line in lines if line.get("session_id") == session_id]
    assert mine == ["SessionQueued", "SessionAssigned", "SessionActivated", "SessionCanceling", "SessionClosed"]
    assert events(admin, f"?since={len(lines) - 1}") == lines[-1:]
    assert events(admin, f"?since={len(lines)}") == []


def test_since_must_be_a_number(admin):
    for bad in ("x", "-1", "1.5", "9" * 30, "%C2%B2"):
        assert admin("GET", f"/v1/events?since={bad}").status_code == 400, bad


def test_follow_sends_new_events_as_they_come(admin, server, caller_of):
    seen = []
    first, done = threading.Event(), threading.Event()

    def follow():
        watcher = caller_of(server.url, server.admin_token)
        response = watcher("GET", "/v1/events?since=0&follow=1", stream=True)
        for line in response.iter_lines(chunk_size=1):
            seen.append(json.loads(line))
            first.set()
            if seen[-1].get("name") == "last":
                break
        response.close()
        done.set()

    thread = threading.Thread(target=follow)
    thread.start()
    assert first.wait(30)
    for name in ("one", "two", "last"):
        admin.ok("PUT", "/v1/pool", {"name": name})
    assert done.wait(30)
    thread.join()
    assert [line["name"] for line in seen if line["event"] == "PoolCreated"] == ["one", "two", "last"]


def test_a_follower_ends_when_the_controller_stops(start, caller_of):
    server = start(None)
    admin = caller_of(server.url, server.admin_token)
    response = admin("GET", "/v1/events?since=0&follow=1", stream=True)
    lines = response.iter_lines(chunk_size=1)
    next(lines)
    server.stop()
    assert all(json.loads(line)["seq"] for line in lines)  # and it ends


def test_story_is_told_in_order_and_survives_a_restart(start, caller_of, agent_type, tmp_path):
    first = start(tmp_path / "d")
    admin = caller_of(first.url, first.admin_token)
    pool = admin.ok("PUT", "/v1/pool", {"name": "p"})["id"]
    agent = agent_type(admin, pool)
    agent.register()
    session_id = admin.ok("POST", "/v1/request/session", {**SESSION, "poolId": pool})
    agent.start_all()
    story = admin.ok("GET", f"/v1/session/{session_id}/story")
    assert [told["event"] for told in story] == ["SessionQueued", "SessionAssigned", "SessionActivated"]
    assert all(told["at"].endswith("Z") for told in story)
    assert [told["at"] for told in story] == sorted(told["at"] for told in story)
    first.stop()
    second = start(tmp_path / "d")
    admin = caller_of(second.url, second.admin_token)
    assert admin.ok("GET", f"/v1/session/{session_id}/story") == story


def test_sessions_list_carries_times_and_reasons(admin, pool, agent):
    first = admin.ok("POST", "/v1/request/session", {**SESSION, "poolId": pool, "name": "train"})
    second = admin.ok("POST", "/v1/request/session", {**SESSION, "poolId": pool})
    agent.start_all()
    admin.ok("DELETE", f"/v1/session/{first}")
    agent.start_all()
    (still,) = admin.ok("GET", "/v1/sessions")
    assert (still["id"], still["state"], still["agentId"], still["closedAt"]) == (second, "active", agent.id, None)
    gone = admin.ok("GET", "/v1/sessions?all=1")[0]
    assert (gone["id"], gone["name"], gone["state"]) == (first, "train", "closed")
    times = [gone[name] for name in ("requestedAt", "assignedAt", "activeAt", "closedAt")]
    assert all(times)
    assert times == sorted(times)
    assert gone["closeReason"]
    assert [s["id"] for s in admin.ok("GET", "/v1/sessions?state=closed")] == [first]
    assert admin.ok("GET", "/v1/sessions?state=queued") == []


def test_clients_that_vanish_are_no_errors_in_the_log(admin, server, caplog):
    host, port = server.url.removeprefix("http://").rsplit(":", 1)
    request = f"GET /v1/events?follow=1 HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {admin.token}\r\n\r\n".encode()
    for number in range(20):
        with socket.create_connection((host, int(port)), timeout=30) as connection:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # reset, not close
            connection.sendall(request)
        admin.ok("PUT", "/v1/pool", {"name": f"pool {number}"})
    assert len(admin.ok("GET", "/v1/events").splitlines()) >= 20
    assert [record.getMessage() for record in caplog.records if record.levelname == "ERROR"] == []
