"""Machine-to-machine tokens and who may do what."""

from __future__ import annotations

import datetime
import time

import pytest

SESSION = {"gpus": [{"vramRequired": 1 << 30}]}


def days_left(token):
    expires = datetime.datetime.fromisoformat(token["expiresAt"].replace("Z", "+00:00"))
    return (expires.timestamp() - time.time()) / 86400


def test_token_starts_with_m2m_and_is_shown_once(admin):
    made = admin.ok("POST", "/v1/m2m", {"description": "ci"})
    assert made["token"].startswith("m2m")
    assert len(made["token"]) >= 40
    (listed,) = [token for token in admin.ok("GET", "/v1/m2m") if token["id"] == made["id"]]
    assert listed == {name: value for name, value in made.items() if name != "token"}


def test_token_lives_30_days_by_default_and_365_at_most(admin):
    assert 29.9 < days_left(admin.ok("POST", "/v1/m2m", {"description": "a"})) <= 30
    assert 364.9 < days_left(admin.ok("POST", "/v1/m2m", {"description": "b", "expireDays": 365})) <= 365
    for days in (366, 0, -1, "30", 1e999):
        response = admin("POST", "/v1/m2m", {"description": "c", "expireDays": days})
        assert response.status_code == 400
        assert response.json()["code"] == "invalid"


def test_secret_is_nowhere_on_disk_in_events_or_lists(start, caller_of, tmp_path):
    data = tmp_path / "data"
    server = start(data)
    admin = caller_of(server.url, server.admin_token)
    secrets = [admin.ok("POST", "/v1/m2m", {"description": "x"})["token"]]
    secrets.append(admin.ok("POST", "/v1/m2m", {"description": "y"}, headers={"Idempotency-Key": "k1"})["token"])
    shown = admin("GET", "/v1/events?since=0").text + admin("GET", "/v1/m2m").text + admin("GET", "/metrics").text
    assert '"event":"TokenCreated"' in shown
    assert "sha256" not in shown
    server.stop()
    stored = {path.name: path.read_bytes() for path in data.iterdir()}
    for secret in secrets:
        assert secret not in shown
        assert not any(secret.encode() in content for content in stored.values())
    holders = [name for name, content in stored.items() if admin.token.encode() in content]
    assert holders == ["admin.token"]
    assert (data / "admin.token").stat().st_mode & 0o777 == 0o600
    assert (data / "controller.db").stat().st_mode & 0o777 == 0o600


def test_revoked_token_is_worth_nothing(server, admin, caller_of):
    made = admin.ok("POST", "/v1/m2m", {"description": "x"})
    user = caller_of(server.url, made["token"])
    assert user.ok("GET", "/v1/whoami")["userId"] == made["userId"]
    assert admin.ok("DELETE", f"/v1/m2m/{made['id']}") == f"Token {made['id']} removed"
    assert user("GET", "/v1/whoami").status_code == 401
    assert admin("DELETE", f"/v1/m2m/{made['id']}").status_code == 404


def test_expired_token_is_worth_nothing(start, caller_of):
    shift = [0.0]
    server = start(None, clock=lambda: time.time() + shift[0])
    admin = caller_of(server.url, server.admin_token)
    made = admin.ok("POST", "/v1/m2m", {"description": "x", "expireDays": 1})
    user = caller_of(server.url, made["token"])
    shift[0] = 86399 - 60
    assert user("GET", "/v1/whoami").status_code == 200
    shift[0] = 86401
    assert user("GET", "/v1/whoami").status_code == 401


def test_whoami(admin, pool, member):
    user = member("create_session")
    me = user.ok("GET", "/v1/whoami")
    assert (me["userId"], me["admin"]) == (user.user_id, False)
    assert {name: [p["id"] for p in pools] for name, pools in me["permissions"].items()} == {"create_session": [pool]}
    assert me["expiresAt"].endswith("Z")
    boss = admin.ok("GET", "/v1/whoami")
    assert boss["admin"] is True
    assert set(boss["permissions"]) == {"create_session", "register_agent", "admin"}


def test_session_needs_create_session(pool, member):
    body = {**SESSION, "poolId": pool}
    for permissions, status in (((), 403), (("register_agent",), 403), (("create_session",), 200), (("admin",), 200)):
        response = member(*permissions)("POST", "/v1/request/session", body)
        assert response.status_code == status, permissions
        if status == 403:
            assert response.json()["code"] == "forbidden"
            assert "create_session" in response.json()["message"]


def test_agent_needs_register_agent(pool, member, agent_type):
    for number, (permissions, status) in enumerate(
        (((), 403), (("create_session",), 403), (("register_agent",), 200), (("admin",), 200))
    ):
        caller = member(*permissions)
        body = agent_type(caller, pool, address=f"10.0.0.{number}:1", hostname=f"h{number}").body()
        assert caller("POST", "/v1/register/agent", body).status_code == status, permissions


def test_only_its_owner_and_admins_report_for_an_agent(pool, member, admin, agent_type):
    owner, other, boss = member("register_agent"), member("register_agent", "create_session"), member("admin")
    agent = agent_type(owner, pool)
    agent.register()
    body = {"id": agent.id}
    assert other("PUT", f"/v1/agent/{agent.id}", body).status_code == 403
    for caller in (owner, boss, admin):
        assert caller("PUT", f"/v1/agent/{agent.id}", body).status_code == 200


def test_sessions_are_seen_and_closed_by_their_owner_and_admins(pool, member, admin):
    owner, other, boss = member("create_session"), member("create_session"), member("admin")
    session_id = owner.ok("POST", "/v1/request/session", {**SESSION, "poolId": pool})
    for path in (f"/v1/session/{session_id}", f"/v1/session/{session_id}/story"):
        assert other("GET", path).status_code == 403
        for caller in (owner, boss, admin):
            assert caller("GET", path).status_code == 200
    assert other.ok("GET", "/v1/sessions") == []
    assert [session["id"] for session in boss.ok("GET", "/v1/sessions")] == [session_id]
    assert other("DELETE", f"/v1/session/{session_id}").status_code == 403
    assert boss("DELETE", f"/v1/session/{session_id}").status_code == 200


def test_pools_and_agents_are_seen_by_those_who_may_do_something_there(admin, pool, agent, member):
    other = admin.ok("PUT", "/v1/pool", {"name": "other"})["id"]
    insider, outsider = member("create_session"), member()
    assert [p["id"] for p in admin.ok("GET", "/v1/pools")] == [pool, other]
    assert [p["id"] for p in insider.ok("GET", "/v1/pools")] == [pool]
    assert outsider.ok("GET", "/v1/pools") == []
    assert insider("GET", f"/v1/agent/{agent.id}").status_code == 200
    assert outsider("GET", f"/v1/agent/{agent.id}").status_code == 403
    assert [a["id"] for a in insider.ok("GET", "/v1/agents")] == [agent.id]
    assert outsider.ok("GET", "/v1/agents") == []
    assert outsider("GET", f"/v1/pool/{pool}").status_code == 403
    assert outsider("GET", f"/v1/pool/{pool}/permissions").status_code == 403


def test_any_pool_means_any_pool_of_the_caller(admin, agent, pool, member):
    outsider, insider = member(), member("create_session")
    response = outsider("POST", "/v1/request/session", SESSION)
    assert response.status_code in (200, 403)
    if response.status_code == 200:
        assert outsider.ok("GET", f"/v1/session/{response.text}")["state"] == "queued"
    session_id = insider.ok("POST", "/v1/request/session", SESSION)
    assert insider.ok("GET", f"/v1/session/{session_id}")["state"] == "assigned"


def test_permissions_are_given_and_taken_by_admins_of_the_pool(pool, member):
    boss, user = member("admin"), member()
    change = {"permission": "create_session", "userId": user.user_id, "poolId": pool}
    assert user("PUT", "/v1/user/permissions", change).status_code == 403
    boss.ok("PUT", "/v1/user/permissions", change)
    session_id = user.ok("POST", "/v1/request/session", {**SESSION, "poolId": pool})
    assert boss.ok("GET", f"/v1/user/permissions/{user.user_id}")["permissions"]["create_session"][0]["id"] == pool
    boss.ok("DELETE", "/v1/user/permissions", change)
    assert user("POST", "/v1/request/session", {**SESSION, "poolId": pool}).status_code == 403
    assert user("DELETE", f"/v1/session/{session_id}").status_code == 200  # one's own can still be released


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/v1/events", None),
        ("PUT", "/v1/node-types", []),
        ("GET", "/v1/faults", None),
        ("PUT", "/v1/faults", []),
        ("DELETE", "/v1/faults", None),
        ("POST", "/v1/m2m", {"admin": True}),
        ("POST", "/v1/m2m", {"userId": "admin"}),
    ],
)
def test_what_only_an_admin_of_the_service_may_do(member, method, path, body):
    response = member("admin")(method, path, body)
    assert response.status_code == 403
    assert response.json()["code"] == "forbidden"


def test_a_token_gives_no_more_than_its_maker_has(admin, pool, member):
    foreign = admin.ok("PUT", "/v1/pool", {"name": "foreign"})["id"]
    wanted = {"description": "x", "permissions": [{"permission": "admin", "poolId": foreign}]}
    assert member("admin")("POST", "/v1/m2m", wanted).status_code == 403


def test_no_auth_lets_everybody_do_everything(start, caller_of):
    server = start(None, auth=False)
    assert server.admin_token is None
    anyone = caller_of(server.url)
    assert anyone.ok("GET", "/v1/whoami")["admin"] is True
    assert caller_of(server.url, "whatever").ok("PUT", "/v1/pool", {"name": "p"})["name"] == "p"


def test_admin_token_survives_a_restart_and_is_renewed_when_lost(start, caller_of, tmp_path):
    first = start(tmp_path / "d")
    token = first.admin_token
    first.stop()
    second = start(tmp_path / "d")
    assert second.admin_token == token
    second.stop()
    (tmp_path / "d" / "admin.token").unlink()
    third = start(tmp_path / "d")
    assert third.admin_token not in (None, token)
    assert caller_of(third.url, third.admin_token)("GET", "/v1/whoami").status_code == 200
