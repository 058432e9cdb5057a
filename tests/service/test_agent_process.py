"""Simulated agents against a real controller over HTTP, and what a client of an agent sees on its connection."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from concurrent.futures import Future

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families

from juice_sim.agent_process import AgentFailed, AgentHost, AgentSpec
from juice_sim.core.settings import Settings
from juice_sim.gpu_profiles import make_gpus

GIB = 1 << 30


class Loop:
    """An event loop in a thread, so that tests can wait with plain calls."""

    def __init__(self):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever)
        self.thread.start()
        self.hosts = []

    def __call__(self, coroutine):
        future: Future = asyncio.run_coroutine_threadsafe(coroutine, self.loop)
        return future.result(60)

    async def _host(self, *args, **more):
        return await AgentHost(*args, **more).start()

    def host(self, *args, **more):
        host = self(self._host(*args, **more))
        self.hosts.append(host)
        return host

    def close(self):
        for host in self.hosts:
            self(host.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


@pytest.fixture
def loop(start):  # after `start`, so that agents sign off while the controller is still there
    one = Loop()
    yield one
    one.close()


@pytest.fixture(params=["waits", "polls"])
def host(request, loop, server):
    """A host whose agents wait at the controller, and one whose agents poll as the real ones do."""
    waits = request.param == "waits"
    return loop.host(server.url, server.admin_token, may_wait=waits, poll_s=0.05)


def spec(pool, gpus=2, **more):
    return AgentSpec(pool, make_gpus("A10", gpus), pool_name="test", **more)


def request_session(admin, pool, vram=GIB):
    return admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{"vramRequired": vram}]})


def has_state(admin, session_id, state):
    return lambda: admin.ok("GET", f"/v1/session/{session_id}")["state"] == state


class Process:
    """A client that is connected to its session at the agent."""

    def __init__(self, address, session_id, first=b"", **body):
        host, port = address.rsplit(":", 1)
        self.socket = socket.create_connection((host, int(port)), timeout=30)
        content = json.dumps({"id": "", "pid": 7, "processName": "python", **body}).encode()
        head = f"POST /v1/connect/session/{session_id} HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        self.socket.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(content) + content + first)
        self.lines = self.socket.makefile("rb")

    def say(self, **what):
        self.socket.sendall(json.dumps(what).encode() + b"\n")

    def close(self):
        self.lines.close()
        self.socket.close()


def connections(admin, session_id):
    return admin.ok("GET", f"/v1/session/{session_id}")["connections"]


def test_registers_starts_cancels(loop, host, admin, pool, wait_until):
    agent = loop(host.add(spec(pool, labels={"zone": "a"}, taints={"t": "1"})))
    shown = admin.ok("GET", f"/v1/agent/{agent.id}")
    assert (shown["state"], shown["address"], shown["labels"], shown["taints"]) == (
        "active",
        agent.address,
        {"zone": "a"},
        {"t": "1"},
    )
    assert [gpu["name"] for gpu in shown["gpus"]] == ["NVIDIA A10"] * 2
    body = {"poolId": pool, "gpus": [{"vramRequired": GIB}], "tolerates": {"t": "1"}}
    session_id = admin.ok("POST", "/v1/request/session", body)
    wait_until(has_state(admin, session_id, "active"), "active")
    assert requests.get(f"http://{agent.address}/v1/session/{session_id}", timeout=30).json()["state"] == "active"
    admin.ok("DELETE", f"/v1/session/{session_id}")
    wait_until(has_state(admin, session_id, "closed"), "closed")
    wait_until(
        lambda: requests.get(f"http://{agent.address}/v1/session/{session_id}", timeout=30).status_code == 404,
        "forgotten",
    )


def test_connection_is_taken_over_shown_and_its_exit_code_reported(loop, host, admin, pool, wait_until):
    agent = loop(host.add(spec(pool)))
    session_id = request_session(admin, pool)
    wait_until(has_state(admin, session_id, "active"), "active")
    process = Process(agent.address, session_id, id="c1", pid=4711, processName="train.py")
    (shown,) = wait_until(lambda: connections(admin, session_id), "the connection is shown")
    assert shown == {"id": "c1", "pid": 4711, "processName": "train.py", "exitCode": None}
    process.say(exitCode=3)
    process.close()
    wait_until(lambda: connections(admin, session_id)[0]["exitCode"] == 3, "the exit code is reported")
    assert admin.ok("GET", f"/v1/session/{session_id}")["state"] == "active"  # a session outlives its connections
    second = Process(agent.address, session_id, id="c2")
    second.close()
    wait_until(
        lambda: [c["exitCode"] for c in connections(admin, session_id)] == [3, 0], "orderly close is exit code 0"
    )


def test_exit_code_sent_in_one_piece_with_the_request_is_not_lost(loop, host, admin, pool, wait_until):
    agent = loop(host.add(spec(pool)))
    session_id = request_session(admin, pool)
    wait_until(has_state(admin, session_id, "active"), "active")
    Process(agent.address, session_id, first=b'{"exitCode":42}\n', id="c1").close()
    wait_until(lambda: [c["exitCode"] for c in connections(admin, session_id)] == [42], "reported")


def test_cancel_kills_running_processes_and_spares_other_sessions(loop, host, admin, pool, wait_until):
    agent = loop(host.add(spec(pool)))
    ids = [request_session(admin, pool) for _ in range(2)]
    for session_id in ids:
        wait_until(has_state(admin, session_id, "active"), "active")
    doomed, spared = (Process(agent.address, session_id, id=session_id) for session_id in ids)
    wait_until(lambda: connections(admin, ids[0]) and connections(admin, ids[1]), "both shown")
    admin.ok("DELETE", f"/v1/session/{ids[0]}")
    assert doomed.lines.readline() == b'{"canceled":true}\n'
    assert doomed.lines.readline() == b""
    wait_until(has_state(admin, ids[0], "closed"), "closed")
    assert connections(admin, ids[0])[0]["exitCode"] == -1
    assert admin.ok("GET", f"/v1/session/{ids[1]}")["state"] == "active"
    assert connections(admin, ids[1])[0]["exitCode"] is None
    spared.close()
    doomed.close()


def test_nos_52_two_processes_of_one_session_share_one_slice(loop, host, admin, pool, wait_until):
    agent = loop(host.add(spec(pool)))
    session_id = request_session(admin, pool, vram=GIB)
    wait_until(has_state(admin, session_id, "active"), "active")
    one, two = (Process(agent.address, session_id, id=name) for name in ("one", "two"))
    one.say(vramUsed=GIB * 3 // 4)
    assert json.loads(one.lines.readline()) == {"granted": True, "vramFree": GIB // 4}
    two.say(vramUsed=GIB // 2)
    assert json.loads(two.lines.readline()) == {"granted": False, "vramFree": GIB // 4}
    one.close()
    two.close()


@pytest.mark.parametrize("body", [b"{", b"[1]", b'{"pid":"x"}', b'{"pid":-1}', b"\xff"])
def test_bad_connection_requests(loop, host, admin, pool, wait_until, body):
    agent = loop(host.add(spec(pool)))
    session_id = request_session(admin, pool)
    wait_until(has_state(admin, session_id, "active"), "active")
    response = requests.post(f"http://{agent.address}/v1/connect/session/{session_id}", data=body, timeout=30)
    assert response.status_code in (400, 409)
    assert requests.post(f"http://{agent.address}/v1/connect/session/nobody", json={}, timeout=30).status_code == 404
    assert connections(admin, session_id) == []


def test_own_endpoint(loop, host, pool):
    agent = loop(host.add(spec(pool)))
    base = f"http://{agent.address}"
    assert requests.get(base + "/health", timeout=30).content == b""
    assert requests.get(base + "/v1/status", timeout=30).json()["state"] == "Active"
    assert requests.get(base + "/nothing", timeout=30).status_code == 404
    assert requests.post(base + "/health", timeout=30).status_code == 405
    assert requests.put(base + "/health", data=b"x" * 100_000, timeout=30).status_code == 413


def test_metrics_by_the_documented_names(loop, host, admin, pool, wait_until):
    agent = loop(host.add(spec(pool)))
    session_id = request_session(admin, pool)
    wait_until(has_state(admin, session_id, "active"), "active")
    process = Process(agent.address, session_id, id="c")
    wait_until(lambda: connections(admin, session_id), "shown")
    text = requests.get(f"http://{agent.address}/metrics", timeout=30).text
    found = {family.name: family.samples for family in text_string_to_metric_families(text)}
    names = (
        "gpu_allocated",
        "gpu_count",
        "gpu_utilization",
        "gpu_vram_allocated",
        "gpu_vram_available",
        "gpu_vram_total",
    )
    assert {f"juice_agent_{name}" for name in (*names, "session")} == set(found)
    assert found["juice_agent_gpu_count"][0].value == 2
    assert [sample.value for sample in found["juice_agent_gpu_allocated"]] == [1, 0]
    assert found["juice_agent_gpu_vram_allocated"][0].value == pytest.approx(GIB / 1e6)
    assert set(found["juice_agent_session"][0].labels) == {"gpu_id", "gpu_name", "pool_id", "pool_name", "user_id"}
    assert 0 < found["juice_agent_gpu_utilization"][0].value <= 1
    process.close()


def test_stop_signs_off_and_closes_sessions(loop, host, admin, pool, wait_until):
    agent = loop(host.add(spec(pool)))
    session_id = request_session(admin, pool)
    wait_until(has_state(admin, session_id, "active"), "active")
    process = Process(agent.address, session_id, id="c")
    wait_until(lambda: connections(admin, session_id), "shown")
    loop(agent.stop())
    assert admin.ok("GET", f"/v1/session/{session_id}")["state"] == "closed"
    assert admin.ok("GET", "/v1/agents?all=1") == []
    process.close()


def test_drain_takes_no_further_sessions(loop, host, admin, pool, wait_until):
    agent = loop(host.add(spec(pool)))
    running = request_session(admin, pool)
    wait_until(has_state(admin, running, "active"), "active")

    async def drain(on):
        agent.drain() if on else agent.resume()

    loop(drain(True))
    wait_until(lambda: admin.ok("GET", f"/v1/agent/{agent.id}")["state"] == "disabled", "disabled")
    later = request_session(admin, pool)
    assert admin.ok("GET", f"/v1/session/{later}")["state"] == "queued"
    assert admin.ok("GET", f"/v1/session/{running}")["state"] == "active"
    loop(drain(False))
    wait_until(has_state(admin, later, "active"), "taken after all")


def test_survives_a_restart_of_the_controller(loop, start, caller_of, tmp_path, wait_until):
    first = start(tmp_path / "d")
    port = int(first.url.rsplit(":", 1)[1])
    admin = caller_of(first.url, first.admin_token)
    pool = admin.ok("PUT", "/v1/pool", {"name": "p"})["id"]
    host = loop.host(first.url, first.admin_token, poll_s=0.05)
    agent = loop(host.add(spec(pool)))
    running = request_session(admin, pool)
    wait_until(has_state(admin, running, "active"), "active")
    process = Process(agent.address, running, id="c")
    wait_until(lambda: connections(admin, running), "shown")
    before = agent.id
    first.stop()
    second = start(tmp_path / "d", port=port)
    admin = caller_of(second.url, second.admin_token)
    fresh = request_session(admin, pool)
    wait_until(has_state(admin, fresh, "active"), "a session after the restart")
    assert agent.id == before
    assert connections(admin, running)[0]["exitCode"] is None
    process.say(exitCode=0)
    process.close()
    wait_until(lambda: connections(admin, running)[0]["exitCode"] == 0, "reported after the restart")


def test_registers_again_when_the_controller_has_forgotten_it(loop, start, caller_of, wait_until):
    server = start(None, settings=Settings(missing_after_s=0.3, removed_after_s=0.3))
    admin = caller_of(server.url, server.admin_token)
    pool = admin.ok("PUT", "/v1/pool", {"name": "p"})["id"]
    host = loop.host(server.url, server.admin_token, poll_s=0.05, may_wait=False)
    agent = loop(host.add(spec(pool)))
    first = agent.id
    admin.ok("PUT", "/v1/faults", [{"path": "/v1/agent/", "action": "status", "status": 503}])
    wait_until(lambda: admin.ok("GET", "/v1/agents?all=1") == [], "removed after its silence")
    admin.ok("DELETE", "/v1/faults")
    wait_until(lambda: [a["id"] for a in admin.ok("GET", "/v1/agents")] not in ([], [first]), "registered again")
    wait_until(has_state(admin, request_session(admin, pool), "active"), "serves again")


def test_faults_at_the_controller_end_no_session(loop, host, admin, pool, wait_until):
    loop(host.add(spec(pool)))
    running = request_session(admin, pool)
    wait_until(has_state(admin, running, "active"), "active")
    rules = [
        {"path": "/v1/agent/", "action": action, "count": 2, "status": 500}
        for action in ("status", "drop_before", "drop_after", "garbage", "empty")
    ]
    admin.ok("PUT", "/v1/faults", rules)
    other = request_session(admin, pool)
    wait_until(lambda: all(rule["fired"] >= 2 for rule in admin.ok("GET", "/v1/faults")), "all faults met", 60)
    wait_until(has_state(admin, other, "active"), "active in the end")
    assert admin.ok("GET", f"/v1/session/{running}")["state"] == "active"


def test_works_with_a_controller_without_extensions(loop, start, caller_of, wait_until):
    server = start(None, quirks="open-source")
    admin = caller_of(server.url, server.admin_token)
    pool = admin.ok("PUT", "/v1/pool", {"name": "p"})["id"]
    loop(loop.host(server.url, server.admin_token, poll_s=0.1).add(spec(pool)))
    session_id = request_session(admin, pool)
    wait_until(has_state(admin, session_id, "active"), "active")
    admin.ok("DELETE", f"/v1/session/{session_id}")
    wait_until(has_state(admin, session_id, "closed"), "closed")


def test_many_agents_share_one_address(loop, server, admin, pool, wait_until):
    host = loop.host(server.url, server.admin_token, shared=("127.0.0.1", 0))

    async def fill():
        return await asyncio.gather(*(host.add(spec(pool, gpus=1)) for _ in range(50)))

    agents = loop(fill())
    assert len({agent.id for agent in agents}) == 50
    assert len({agent.address for agent in agents}) == 1
    ids = [admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{}]}) for _ in range(50)]
    for session_id in ids:
        wait_until(has_state(admin, session_id, "active"), "active")
    process = Process(agents[0].address, ids[31], id="c")
    wait_until(lambda: connections(admin, ids[31]), "the right agent reports it")
    process.close()
    wait_until(lambda: connections(admin, ids[31])[0]["exitCode"] == 0, "ended")


def test_refused_agent_fails_with_one_line(loop, server, admin):
    host = loop.host(server.url, server.admin_token)
    with pytest.raises(AgentFailed, match=r"does not take this agent.*no such pool"):
        loop(host.add(spec("00000000-0000-0000-0000-000000000000")))
    assert host.agents == []


def test_wrong_token_is_not_for_ever_silent(loop, server, pool):
    host = loop.host(server.url, "m2mwrong")
    with pytest.raises(AgentFailed, match=r"has not answered|does not take"):
        loop(host.add(spec(pool), timeout_s=0.5))
