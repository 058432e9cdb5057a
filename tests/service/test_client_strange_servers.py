"""The client in front of what is no Juice controller: proxies, login pages, load balancers. Answers are scripted."""

from __future__ import annotations

import email.utils
import time
from collections.abc import Iterator

import pytest
import requests
import responses
from responses.registries import OrderedRegistry

from juice_sim.client import ApiError, Client

URL = "http://127.0.0.1:9"
PAGE = "<html><body><h1>502 Bad Gateway</h1></body></html>"


@pytest.fixture
def script() -> Iterator[responses.RequestsMock]:
    """Answers in the order in which they are added; one that is not asked for, or one too few, fails the test."""
    with responses.RequestsMock(registry=OrderedRegistry, assert_all_requests_are_fired=True) as mock:
        yield mock


@pytest.fixture
def client() -> Iterator[Client]:
    with Client(URL, "m2m-not-a-secret", tries=3, pause_s=0.001, longest_pause_s=0.01) as made:
        yield made


def test_an_error_page_is_tried_again_and_then_told_in_one_line(script: responses.RequestsMock, client: Client) -> None:
    for _ in range(3):
        script.get(f"{URL}/v1/pools", body=PAGE, status=502, content_type="text/html")
    with pytest.raises(ApiError) as caught:
        client.pools()
    assert caught.value.status == 502
    assert "\n" not in str(caught.value)


def test_a_login_page_with_status_200_is_no_list_of_pools(script: responses.RequestsMock, client: Client) -> None:
    script.get(f"{URL}/v1/pools", body="<html>Please log in</html>", status=200, content_type="text/html")
    with pytest.raises(ApiError):
        client.pools()


def test_a_redirect_is_an_error_and_takes_the_token_nowhere(script: responses.RequestsMock, client: Client) -> None:
    script.get(f"{URL}/v1/pools", status=302, headers={"Location": "http://elsewhere.invalid/"})
    with pytest.raises(ApiError) as caught:
        client.pools()
    assert caught.value.status == 302
    assert len(script.calls) == 1


def test_jira_129_retry_after_as_seconds_and_as_a_date(script: responses.RequestsMock, client: Client) -> None:
    later = email.utils.formatdate(time.time() + 3600, usegmt=True)
    script.get(f"{URL}/v1/pools", status=429, headers={"Retry-After": "3600"})
    script.get(f"{URL}/v1/pools", status=503, headers={"Retry-After": later})
    script.get(f"{URL}/v1/pools", json=[])
    assert client.pools() == []  # an hour is cut to the client's longest pause


def test_a_reset_connection_is_tried_again_with_the_same_key(script: responses.RequestsMock, client: Client) -> None:
    session = "6ff33ba0-4d1a-4f36-9d4e-3a4f8e5f0c11"
    script.post(f"{URL}/v1/request/session", body=requests.ConnectionError("reset by peer"))
    script.post(f"{URL}/v1/request/session", body=session, content_type="text/plain")
    assert client.request_session() == session
    keys = {call.request.headers["Idempotency-Key"] for call in script.calls}
    assert len(script.calls) == 2
    assert len(keys) == 1


def test_the_token_goes_out_once_and_in_no_error(script: responses.RequestsMock, client: Client) -> None:
    script.get(f"{URL}/v1/pools", status=403, json={"message": "no"})
    with pytest.raises(ApiError) as caught:
        client.pools()
    assert script.calls[0].request.headers["Authorization"] == "Bearer m2m-not-a-secret"
    assert "m2m-not-a-secret" not in str(caught.value)
