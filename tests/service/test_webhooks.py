"""Webhooks: `agent session state` is POSTed when an agent reports a change, and never holds a request up."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

SESSION = {"gpus": [{"vramRequired": 1 << 30}]}


@pytest.fixture
def receiver():
    """(url, received messages, statuses to answer before 200)."""
    received, statuses = [], []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status = statuses.pop(0) if statuses else 200
            if status == 200:
                received.append(json.loads(body))
            self.send_response(status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/hook", received, statuses
        server.shutdown()
        thread.join()


def lifecycle(start, caller_of, agent_type, url):
    server = start(None, webhook=url)
    admin = caller_of(server.url, server.admin_token)
    pool = admin.ok("PUT", "/v1/pool", {"name": "p"})["id"]
    agent = agent_type(admin, pool)
    agent.register()
    session_id = admin.ok("POST", "/v1/request/session", {**SESSION, "poolId": pool})
    agent.start_all()
    admin.ok("DELETE", f"/v1/session/{session_id}")
    agent.start_all()
    return server, agent.id, session_id


def test_message_for_each_reported_change(start, caller_of, agent_type, receiver, wait_until):
    url, received, _ = receiver
    _, agent, session = lifecycle(start, caller_of, agent_type, url)
    wait_until(lambda: len(received) == 2, "two messages")
    assert received == [{"agent": agent, "session": session, "state": state} for state in ("active", "closed")]


def test_failed_delivery_is_tried_again_in_order(start, caller_of, agent_type, receiver, wait_until):
    url, received, statuses = receiver
    statuses += [500, 503]
    lifecycle(start, caller_of, agent_type, url)
    wait_until(lambda: len(received) == 2, "two messages after two failures")
    assert [message["state"] for message in received] == ["active", "closed"]


def test_receiver_that_is_not_there_holds_nobody_up(start, caller_of, agent_type):
    server, _, session = lifecycle(start, caller_of, agent_type, "http://127.0.0.1:9/none")
    admin = caller_of(server.url, server.admin_token)
    assert admin.ok("GET", f"/v1/session/{session}")["state"] == "closed"
    server.stop()
