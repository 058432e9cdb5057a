"""The Python client against a real controller with injected faults."""

from __future__ import annotations

import pytest

from juice_sim.client import ApiError, Client
from juice_sim.wire_types import FaultRule


@pytest.fixture
def client(server):
    with Client(server.url, server.admin_token, pause_s=0.01) as one:
        yield one


def test_a_lost_reply_is_asked_for_again_and_makes_one_session(client, pool):
    client.set_faults(FaultRule(action="drop_after", method="POST", path="/v1/request/session", count=2))
    session_id = client.request_session(pool)
    assert client.faults()[0].fired == 2
    assert [session.id for session in client.sessions()] == [session_id]


def test_503_and_429_are_tried_again_and_400_is_not(client, pool):
    client.set_faults(
        FaultRule(action="status", status=503, path="/v1/pools", count=1, retry_after=0.0),
        FaultRule(action="status", status=429, path="/v1/pools", count=1, retry_after="Wed, 21 Oct 2015 07:28:00 GMT"),
    )
    assert [one.id for one in client.pools()] == [pool]
    client.set_faults(FaultRule(action="status", status=400, path="/v1/pools", count=2, body='{"message":"no"}'))
    with pytest.raises(ApiError, match="400 no") as caught:
        client.pools()
    assert caught.value.status == 400
    assert client.faults()[0].fired == 1


def test_in_the_end_it_gives_up(client):
    client.set_faults(FaultRule(action="drop_before", path="/v1/pools"))
    with pytest.raises(ApiError, match="no answer from") as caught:
        client.pools()
    assert caught.value.status is None
    assert client.faults()[0].fired == 5


def test_fake_gpu_operator_108_garbage_is_an_error_of_one_line(client):
    client.set_faults(FaultRule(action="garbage", path="/v1/pools"))
    with pytest.raises(ApiError, match="the answer cannot be read") as caught:
        client.pools()
    assert "\n" not in str(caught.value)


def test_errors_carry_status_code_and_field(client, pool):
    with pytest.raises(ApiError) as caught:
        client.request_session(pool, vram=1 << 61, strict_handling=True)
    assert (caught.value.status, caught.value.code) == (422, "unsatisfiable")
    with pytest.raises(ApiError) as caught:
        client.create_pool("")
    assert (caught.value.status, caught.value.field) == (400, "name")
    with pytest.raises(ApiError, match="http://"):
        Client("localhost:80")


def test_wait_for_session_says_in_which_state_it_is(client, pool):
    session_id = client.request_session(pool)
    with pytest.raises(TimeoutError, match="still queued"):
        client.wait_for_session(session_id, 0.1)
    client.release_session(session_id)
    assert client.wait_for_session(session_id).state == "closed"
    client.release_session("00000000-0000-0000-0000-000000000000")


def test_tokens_permissions_and_events(server, client, pool):
    made = client.create_token("ci", permissions=[("create_session", pool)])
    with Client(server.url, made.token) as user:
        assert user.whoami().user_id == made.user_id
        client.grant("register_agent", made.user_id, pool)
        assert set(user.whoami().permissions) == {"create_session", "register_agent"}
        client.revoke("register_agent", made.user_id, pool)
        client.revoke_token(made.id)
        with pytest.raises(ApiError) as caught:
            user.whoami()
        assert caught.value.status == 401
    assert [event["event"] for event in client.events()][-1] == "TokenRevoked"


def test_pool_is_found_by_name_or_id_or_made(client, pool):
    assert client.find_or_create_pool("test") == (pool, "test", False)
    assert client.find_or_create_pool(pool) == (pool, "test", False)
    made = client.find_or_create_pool("fresh")
    assert made[1:] == ("fresh", True)
    with pytest.raises(ApiError, match="unknown"):
        client.find_or_create_pool("00000000-0000-0000-0000-000000000000")
