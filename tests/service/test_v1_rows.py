"""REST API v1, row by row: sections 1 and 2 of the facts about the open-source controller, on the wire."""

from __future__ import annotations

import re
import uuid

import pytest

GIB = 1 << 30
UUID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
AGENT = ["id", "state", "hostname", "address", "version", "poolId", "gpus", "labels", "taints", "sessions"]
GPU = (
    "index uuid name vendor model vendorId deviceId subDeviceId driver vram pciBus metrics".split()  # noqa: SIM905
)
METRICS = (
    "clockCore clockMemory utilizationGpu utilizationVram temperatureGpu vramUsed powerDraw powerLimit fanSpeed".split()  # noqa: SIM905
)
SESSION = ["id", "state", "address", "version", "poolId", "gpus", "connections"]


def one_gpu(pool, vram=GIB):
    return {"version": "1.2.3", "poolId": pool, "gpus": [{"vramRequired": vram, "pciBus": ""}]}


# Section 1: wire rules


def test_row_json_success_is_200_application_json(admin, pool):
    response = admin("GET", f"/v1/pool/{pool}")
    assert (response.status_code, response.headers["Content-Type"]) == (200, "application/json")
    assert list(response.json()) == ["id", "name", "sessionCount", "agentCount", "userCount"]


def test_row_string_success_is_a_bare_uuid_as_text_plain(admin, pool, agent_type):
    for response in (
        admin("POST", "/v1/register/agent", agent_type(admin, pool).body()),
        admin("POST", "/v1/request/session", one_gpu(pool)),
    ):
        assert (response.status_code, response.headers["Content-Type"]) == (200, "text/plain")
        assert UUID.fullmatch(response.text)


def test_row_put_agent_answers_200_with_nothing(agent):
    response = agent.report()
    assert (response.status_code, response.content) == (200, b"")
    assert "Content-Type" not in response.headers


def test_row_delete_and_permissions_answer_json_strings(admin, pool):
    session_id = admin.ok("POST", "/v1/request/session", one_gpu(pool))
    assert admin.ok("DELETE", f"/v1/session/{session_id}") == f"Session {session_id} cancelled"
    change = {"permission": "create_session", "userId": "u1", "poolId": pool}
    assert admin.ok("PUT", "/v1/user/permissions", change) == "Permission create_session added"
    assert admin.ok("DELETE", "/v1/user/permissions", change) == "Permission create_session deleted"
    assert admin.ok("DELETE", f"/v1/pool/{pool}") == f"Pool {pool} deleted"


@pytest.mark.parametrize("path", ["/status", "/v1/status", "/health", "/metrics", "/openapi.json"])
def test_row_open_paths_need_no_token(server, caller_of, path):
    assert caller_of(server.url)("GET", path).status_code == 200


@pytest.mark.parametrize("path", ["/v1/pools", "/v1/agents", "/v1/session/x", "/v1/faults", "/nowhere", "/v1/statusx"])
@pytest.mark.parametrize("header", [None, "Bearer ", "Bearer wrong", "Basic abc", "bearer", "Bearer \u00e9"])
def test_row_401_for_everything_else(server, caller_of, path, header):
    headers = {"Authorization": header.encode("utf-8")} if header else {}
    response = caller_of(server.url)("GET", path, headers=headers)
    assert response.status_code == 401
    assert response.content == b'{"message":"Failed to validate JWT."}'
    assert response.headers["Content-Type"] == "application/json"


def test_row_400_when_the_id_of_a_report_is_not_the_paths(agent):
    response = agent.call("PUT", f"/v1/agent/{agent.id}", {"id": str(uuid.uuid4())})
    assert response.status_code == 400
    assert response.json()["field"] == "id"


def test_row_unknown_path_is_404_and_wrong_method_405(admin):
    assert admin("GET", "/v1/nothing").status_code == 404
    response = admin("POST", "/v1/agents", {})
    assert response.status_code == 405
    assert response.headers["Allow"] == "GET"
    assert admin("HEAD", "/v1/agents").status_code == 405


def test_row_content_type_is_exactly_application_json(admin):
    for wrong in ("application/json; charset=utf-8", "text/json", "application/x-www-form-urlencoded", ""):
        response = admin("PUT", "/v1/pool", data=b'{"name":"a"}', headers={"Content-Type": wrong})
        assert response.status_code == 415, wrong
        assert response.json()["accepted"].startswith("application/json")
    assert admin("PUT", "/v1/pool", {"name": "a"}).status_code == 200


def test_row_unknown_members_are_ignored(admin, pool):
    body = {**one_gpu(pool), "persistent": True, "extra": {"a": [1, {"b": None}]}}
    assert UUID.fullmatch(admin.ok("POST", "/v1/request/session", body))


def test_row_null_is_taken_as_an_empty_object(admin, agent):
    assert admin("PUT", "/v1/pool", data=b"null").json()["message"].find("name") >= 0
    for null in ("gpus", "sessions"):
        response = admin("PUT", f"/v1/agent/{agent.id}", {"id": agent.id, null: None})
        assert response.status_code == 200
    nulls = {"gpus": [{"vramRequired": GIB, "pciBus": None}], "matchLabels": None, "tolerates": None, "version": None}
    assert admin("POST", "/v1/request/session", nulls).status_code == 200


# Section 2: endpoints


def test_row_health_is_empty(admin):
    response = admin("GET", "/health")
    assert (response.status_code, response.content) == (200, b"")


def test_row_status(admin):
    status = admin.ok("GET", "/v1/status")
    assert list(status) == ["state", "version", "hostname"]
    assert status["state"] == "Active"


def test_row_old_status_lists_at_most_20_active_agents(admin, pool, agent_type):
    for number in range(22):
        agent_type(admin, pool, address=f"10.0.0.{number}:43210", hostname=f"h{number}").register()
    status = admin.ok("GET", "/status")
    assert status["status"] == "ok"
    assert [host["hostname"] for host in status["hosts"]] == [f"h{number}" for number in range(20)]
    assert status["hosts"][3]["ip"] == "10.0.0.3"
    assert status["hosts"][3]["port"] == 43210


def test_row_register_ignores_id_state_and_sessions_of_the_client(admin, pool, agent_type):
    agent = agent_type(admin, pool)
    mine = str(uuid.uuid4())
    given = agent.register(id=mine, state="closed", sessions=[{"id": "x", "state": "active"}])
    assert given != mine
    shown = agent.read()
    assert (shown["id"], shown["state"], shown["sessions"]) == (given, "active", [])


def test_row_registered_address_without_host_gets_the_callers(admin, pool, agent_type):
    agent = agent_type(admin, pool, address=":43210")
    agent.register()
    assert agent.read()["address"] == "127.0.0.1:43210"


def test_row_agent_object_field_by_field(agent):
    shown = agent.read()
    assert list(shown) == AGENT
    assert list(shown["gpus"][0]) == GPU
    assert list(shown["gpus"][0]["metrics"]) == METRICS
    assert shown["gpus"][0]["vram"] == 24 * GIB
    assert (shown["hostname"], shown["address"], shown["version"]) == ("gpu01", "10.1.2.3:43210", "1.2.3")


def test_row_agent_shows_its_sessions_without_closed_ones(admin, pool, agent):
    first, second = (admin.ok("POST", "/v1/request/session", one_gpu(pool)) for _ in range(2))
    agent.start_all()
    agent.report(**{first: "closed"})
    assert [session["id"] for session in agent.read()["sessions"]] == [second]


@pytest.mark.parametrize("spelling", ["State", "state"])
def test_row_report_takes_both_spellings_of_state(admin, pool, agent, spelling):
    session_id = admin.ok("POST", "/v1/request/session", one_gpu(pool))
    connection = {"id": "c", "pid": 7, "processName": "py", "exitCode": 3}
    body = {"id": agent.id, "sessions": {session_id: {spelling: "active", "connections": {"c": connection}}}}
    assert admin("PUT", f"/v1/agent/{agent.id}", body).status_code == 200
    session = admin.ok("GET", f"/v1/session/{session_id}")
    assert session["state"] == "active"
    assert session["connections"] == [connection]


def test_row_report_carries_gpu_metrics(admin, agent):
    metrics = dict.fromkeys(METRICS, 7)
    admin.ok("PUT", f"/v1/agent/{agent.id}", {"id": agent.id, "gpus": [metrics]})
    assert agent.read()["gpus"][0]["metrics"] == metrics


def test_row_agents_lists_active_ones_by_pool_without_sessions(admin, pool, agent, agent_type):
    other = admin.ok("PUT", "/v1/pool", {"name": "other"})["id"]
    elsewhere = agent_type(admin, other, address="10.0.0.9:1", hostname="gpu02")
    elsewhere.register()
    admin.ok("POST", "/v1/request/session", one_gpu(pool))
    assert {shown["id"] for shown in admin.ok("GET", "/v1/agents")} == {agent.id, elsewhere.id}
    (shown,) = admin.ok("GET", f"/v1/agents?pool_id={pool}")
    assert (shown["id"], shown["sessions"]) == (agent.id, [])
    (shown,) = admin.ok("GET", f"/v1/agents?pool_id={pool}&sessions=1")
    assert len(shown["sessions"]) == 1
    admin.ok("PUT", f"/v1/agent/{agent.id}", {"id": agent.id, "state": "disabled"})
    assert admin.ok("GET", f"/v1/agents?pool_id={pool}") == []
    assert [shown["state"] for shown in admin.ok("GET", f"/v1/agents?pool_id={pool}&all=1")] == ["disabled"]


def test_row_session_is_queued_at_once_and_shown_as_such(admin, pool):
    session_id = admin.ok("POST", "/v1/request/session", one_gpu(pool))
    session = admin.ok("GET", f"/v1/session/{session_id}")
    assert list(session) == SESSION
    assert session == {
        "id": session_id,
        "state": "queued",
        "address": "",
        "version": "1.2.3",
        "poolId": pool,
        "gpus": [],
        "connections": [],
    }


def test_row_session_from_request_to_closed_stays_readable(admin, pool, agent):
    session_id = admin.ok("POST", "/v1/request/session", one_gpu(pool))
    session = admin.ok("GET", f"/v1/session/{session_id}")
    assert (session["state"], session["address"]) == ("assigned", "10.1.2.3:43210")
    assert session["gpus"] == [{"index": 0, "vramRequired": GIB}]
    agent.start_all()
    assert admin.ok("GET", f"/v1/session/{session_id}")["state"] == "active"
    admin.ok("DELETE", f"/v1/session/{session_id}")
    assert admin.ok("GET", f"/v1/session/{session_id}")["state"] == "canceling"
    admin.ok("DELETE", f"/v1/session/{session_id}")
    agent.start_all()
    closed = admin.ok("GET", f"/v1/session/{session_id}")
    assert (closed["state"], closed["address"]) == ("closed", "10.1.2.3:43210")
    admin.ok("DELETE", f"/v1/session/{session_id}")
    assert admin.ok("GET", f"/v1/session/{session_id}")["state"] == "closed"


def test_row_queued_session_is_closed_at_once_by_delete(admin, pool):
    session_id = admin.ok("POST", "/v1/request/session", one_gpu(pool))
    admin.ok("DELETE", f"/v1/session/{session_id}")
    assert admin.ok("GET", f"/v1/session/{session_id}")["state"] == "closed"


def test_row_put_pool_gives_the_caller_all_three_permissions(server, admin, member, caller_of):
    token = admin.ok("POST", "/v1/m2m", {"description": "plain"})
    plain = caller_of(server.url, token["token"])
    made = plain.ok("PUT", "/v1/pool", {"name": "mine"})
    held = plain.ok("GET", f"/v1/pool/{made['id']}/permissions")
    assert held == {"userIds": {token["userId"]: ["admin", "create_session", "register_agent"]}}
    mine = plain.ok("GET", f"/v1/user/permissions/{token['userId']}")["permissions"]
    assert set(mine) == {"admin", "create_session", "register_agent"}
    assert mine["admin"] == [made]


def test_row_pool_counts(admin, pool, agent):
    admin.ok("POST", "/v1/request/session", one_gpu(pool))
    shown = admin.ok("GET", f"/v1/pool/{pool}")
    assert (shown["sessionCount"], shown["agentCount"], shown["userCount"]) == (1, 1, 1)


def test_row_matching_labels_taints_pool(admin, pool, agent_type):
    agent = agent_type(admin, pool)
    agent.register(labels={"zone": "a", "model": "A10"}, taints={"dedicated": "ml"})

    def state(**more):
        session_id = admin.ok("POST", "/v1/request/session", {**one_gpu(""), **more})
        return admin.ok("GET", f"/v1/session/{session_id}")["state"]

    tolerant = {"tolerates": {"dedicated": "ml"}}
    assert state() == "queued"
    assert state(**tolerant) == "assigned"
    assert state(**tolerant, matchLabels={"zone": "a"}) == "assigned"
    assert state(**tolerant, matchLabels={"zone": "b"}) == "queued"
    assert state(**tolerant, labelSelector="zone in (a,b), model!=T4") == "assigned"
    assert state(**tolerant, labelSelector="zone!=a") == "queued"


def test_row_all_gpus_come_from_one_agent(admin, pool, agent_type):
    for number in range(2):
        agent_type(admin, pool, gpus=2, address=f"10.0.0.{number}:1", hostname=f"h{number}").register()
    three = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{}, {}, {}]})
    two = admin.ok("POST", "/v1/request/session", {"poolId": pool, "gpus": [{}, {}]})
    assert admin.ok("GET", f"/v1/session/{three}")["state"] == "queued"
    assert [gpu["index"] for gpu in admin.ok("GET", f"/v1/session/{two}")["gpus"]] == [0, 1]


def test_row_every_report_is_a_heartbeat_and_revives(start, caller_of, agent_type, wait_until):
    from juice_sim.core.settings import Settings

    server = start(None, settings=Settings(missing_after_s=0.3, removed_after_s=60))
    admin = caller_of(server.url, server.admin_token)
    pool = admin.ok("PUT", "/v1/pool", {"name": "p"})["id"]
    agent = agent_type(admin, pool)
    agent.register()
    wait_until(lambda: agent.read()["state"] == "missing", "missing after silence")
    assert admin.ok("GET", "/v1/agents") == []
    assert agent.report().status_code == 200
    assert agent.read()["state"] == "active"


def test_row_silent_agent_is_removed_and_its_sessions_closed(start, caller_of, agent_type, wait_until):
    from juice_sim.core.settings import Settings

    server = start(None, settings=Settings(missing_after_s=0.2, removed_after_s=0.2))
    admin = caller_of(server.url, server.admin_token)
    pool = admin.ok("PUT", "/v1/pool", {"name": "p"})["id"]
    agent = agent_type(admin, pool)
    agent.register()
    session_id = admin.ok("POST", "/v1/request/session", one_gpu(pool))
    wait_until(lambda: admin.ok("GET", f"/v1/session/{session_id}")["state"] == "closed", "closed with its agent")
    response = agent.report()
    assert response.status_code == 404
    assert "register it again" in response.json()["accepted"]
