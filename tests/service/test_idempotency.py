"""Idempotency-Key on POSTs: the same key gives the same answer, kept durably."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

SESSION = {"gpus": [{"vramRequired": 1 << 30}]}


def key(text):
    return {"headers": {"Idempotency-Key": text}}


def test_anthropic_sdk_java_370_same_key_same_session(admin, pool, agent):
    body = {**SESSION, "poolId": pool}
    first = admin.ok("POST", "/v1/request/session", body, **key("job-1-0"))
    assert admin.ok("POST", "/v1/request/session", body, **key("job-1-0")) == first
    assert admin.ok("POST", "/v1/request/session", body, **key("job-1-1")) != first
    admin.ok("DELETE", f"/v1/session/{first}")
    agent.start_all()
    assert admin.ok("GET", f"/v1/session/{first}")["state"] == "closed"
    assert admin.ok("POST", "/v1/request/session", body, **key("job-1-0")) == first
    assert len(admin.ok("GET", "/v1/sessions?all=1")) == 2


def test_same_key_with_another_body_is_422(admin, pool):
    body = {**SESSION, "poolId": pool}
    admin.ok("POST", "/v1/request/session", body, **key("k"))
    response = admin("POST", "/v1/request/session", {**body, "gpus": [{}, {}]}, **key("k"))
    assert (response.status_code, response.json()["code"]) == (422, "key_reused")
    assert len(admin.ok("GET", "/v1/sessions?all=1")) == 1


def test_key_belongs_to_its_caller(pool, member):
    body = {**SESSION, "poolId": pool}
    one, two = (member("create_session").ok("POST", "/v1/request/session", body, **key("shared")) for _ in range(2))
    assert one != two


def test_a_refusal_does_not_use_the_key_up(admin, pool, agent_type):
    body = {**SESSION, "poolId": pool, "gpus": [{"vramRequired": 1 << 40}]}
    strict = {"headers": {"Idempotency-Key": "k", "Prefer": "handling=strict"}}
    assert admin("POST", "/v1/request/session", body, **strict).status_code == 422
    agent_type(admin, pool, vram=1 << 41).register()
    assert admin("POST", "/v1/request/session", body, **strict).status_code == 200


def test_registration_with_a_key_makes_one_agent(admin, pool, agent_type):
    body = agent_type(admin, pool).body()
    first = admin.ok("POST", "/v1/register/agent", body, **key("a"))
    assert admin.ok("POST", "/v1/register/agent", body, **key("a")) == first
    assert [agent["id"] for agent in admin.ok("GET", "/v1/agents")] == [first]
    response = admin("POST", "/v1/register/agent", {**body, "hostname": "x"}, **key("a"))
    assert (response.status_code, response.json()["code"]) == (422, "key_reused")


def test_token_with_a_key_is_one_token_and_the_same_secret(server, admin, caller_of):
    body = {"description": "ci"}
    first = admin.ok("POST", "/v1/m2m", body, **key("t"))
    assert admin.ok("POST", "/v1/m2m", body, **key("t")) == first
    assert len([token for token in admin.ok("GET", "/v1/m2m") if token["description"] == "ci"]) == 1
    assert caller_of(server.url, first["token"])("GET", "/v1/whoami").status_code == 200
    assert admin.ok("POST", "/v1/m2m", body, **key("u"))["token"] != first["token"]


def test_one_key_at_once_from_many_makes_one_session(server, pool, caller_of):
    body = {**SESSION, "poolId": pool}

    def post(_):
        return caller_of(server.url, server.admin_token).ok("POST", "/v1/request/session", body, **key("same"))

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(post, range(24)))) == 1


def test_keys_survive_a_restart(start, caller_of, agent_type, tmp_path):
    def posts(server):
        admin = caller_of(server.url, server.admin_token)
        pools = admin.ok("GET", "/v1/pools")
        pool = pools[0]["id"] if pools else admin.ok("PUT", "/v1/pool", {"name": "p"})["id"]
        return [
            admin.ok("POST", path, body, **key("k"))
            for path, body in (
                ("/v1/request/session", {**SESSION, "poolId": pool}),
                ("/v1/register/agent", agent_type(admin, pool).body()),
                ("/v1/m2m", {"description": "ci"}),
            )
        ]

    first = start(tmp_path / "d")
    answers = posts(first)
    first.stop()
    assert posts(start(tmp_path / "d")) == answers


@pytest.mark.parametrize("bad", ["x" * 256, "tab\tinside"])
def test_bad_key_is_400(admin, pool, bad):
    response = admin("POST", "/v1/request/session", {**SESSION, "poolId": pool}, **key(bad))
    assert response.status_code == 400
    assert response.json()["field"] == "Idempotency-Key"
