"""Injected faults: docs/contracts.md, section 5, each action on a real connection."""

from __future__ import annotations

import threading
import time

import pytest
import requests

from juice_sim.faults import Faults
from juice_sim.wire_types import FaultRule


def put(admin, *rules):
    return admin.ok("PUT", "/v1/faults", list(rules))


def test_status_with_body_and_retry_after(admin):
    put(admin, {"name": "busy", "path": "/v1/pools", "action": "status", "status": 503, "retry_after": 2, "count": 1})
    response = admin("GET", "/v1/pools")
    assert (response.status_code, response.headers["Retry-After"]) == (503, "2")
    assert "busy" in response.text
    assert admin("GET", "/v1/pools").status_code == 200


def test_jira_129_retry_after_as_a_date(admin):
    date = "Wed, 21 Oct 2026 07:28:00 GMT"
    put(admin, {"action": "status", "status": 429, "retry_after": date, "body": '{"message":"slow down"}', "count": 1})
    response = admin("GET", "/v1/pools")
    assert (response.status_code, response.headers["Retry-After"]) == (429, date)
    assert response.json() == {"message": "slow down"}


def test_drop_before_takes_no_effect(admin):
    put(admin, {"method": "PUT", "path": "/v1/pool", "action": "drop_before", "count": 1})
    with pytest.raises(requests.ConnectionError):
        admin("PUT", "/v1/pool", {"name": "a"})
    assert admin.ok("GET", "/v1/pools") == []


def test_drop_after_takes_effect(admin):
    put(admin, {"method": "PUT", "path": "/v1/pool", "action": "drop_after", "count": 1})
    with pytest.raises(requests.ConnectionError):
        admin("PUT", "/v1/pool", {"name": "a"})
    assert [pool["name"] for pool in admin.ok("GET", "/v1/pools")] == ["a"]


def test_hang_reads_the_request_and_never_answers(admin):
    put(admin, {"path": "/v1/pools", "action": "hang", "count": 1})
    with pytest.raises(requests.ReadTimeout):
        requests.get(admin.url + "/v1/pools", headers=dict(admin.http.headers), timeout=0.5)
    assert admin("GET", "/v1/pools").status_code == 200


def test_a_hanging_request_does_not_hold_up_the_stop(start, caller_of):
    server = start(None)
    admin = caller_of(server.url, server.admin_token)
    put(admin, {"path": "/v1/pools", "action": "hang"})
    failed = []

    def ask():
        try:
            admin("GET", "/v1/pools")
        except requests.ConnectionError as error:
            failed.append(error)

    thread = threading.Thread(target=ask)
    thread.start()
    watcher = caller_of(server.url, server.admin_token)
    while watcher.ok("GET", "/v1/faults")[0]["fired"] == 0:
        time.sleep(0.01)
    server.stop()
    thread.join(30)
    assert failed


def test_fake_gpu_operator_108_garbage_and_empty(admin):
    put(
        admin,
        {"path": "/v1/pools", "action": "garbage", "count": 1},
        {"path": "/v1/pools", "action": "empty", "count": 1},
    )
    garbage = admin("GET", "/v1/pools")
    assert garbage.status_code == 200
    with pytest.raises(ValueError):
        garbage.json()
    empty = admin("GET", "/v1/pools")
    assert (empty.status_code, empty.content) == (200, b"")
    assert admin.ok("GET", "/v1/pools") == []


def test_delay_then_answer(admin):
    put(admin, {"path": "/v1/pools", "action": "delay", "seconds": 0.3, "count": 1})
    began = time.monotonic()
    assert admin("GET", "/v1/pools").status_code == 200
    assert time.monotonic() - began >= 0.3


def test_fault_paths_never_fail_and_rules_go_away(admin):
    shown = put(admin, {"action": "status", "status": 500})
    assert shown[0]["fired"] == 0
    assert admin("GET", "/v1/pools").status_code == 500
    assert admin("GET", "/health").status_code == 500
    assert admin.ok("GET", "/v1/faults")[0]["fired"] == 2
    assert admin.ok("DELETE", "/v1/faults") == "Faults removed"
    assert admin("GET", "/v1/pools").status_code == 200


@pytest.mark.parametrize(
    "rule",
    [{"action": "explode"}, {}, {"action": "status", "status": 99}, {"action": "delay", "seconds": -1},
     {"action": "hang", "probability": 2}, {"action": "hang", "path": "v1"}, {"action": "hang", "method": "FETCH"}],
)  # fmt: skip
def test_bad_rules_are_refused_as_a_whole(admin, rule):
    put(admin, {"path": "/v1/none", "action": "empty"})
    assert admin("PUT", "/v1/faults", [{"action": "empty"}, rule]).status_code == 400
    assert len(admin.ok("GET", "/v1/faults")) == 1


def test_rules_are_tried_in_order_with_after_and_count():
    faults = Faults(
        [
            FaultRule(name="third", action="empty", method="POST", path="/v1/request", after=2, count=1),
            FaultRule(name="rest", action="hang", method="*", path="/v1/request/session"),
        ]
    )
    names = [rule.name if (rule := faults.match("POST", "/v1/request/session")) else None for _ in range(5)]
    assert names == ["rest", "rest", "third", "rest", "rest"]
    assert faults.match("GET", "/v1/pools") is None


def test_probability_is_repeatable_with_a_seed():
    def run(seed):
        faults = Faults([FaultRule(action="empty", probability=0.3)], seed)
        return [faults.match("GET", "/x") is not None for _ in range(1000)]

    assert run(1) == run(1)
    assert run(1) != run(2)
    assert 200 < sum(run(3)) < 400


@pytest.mark.parametrize(
    ("rule", "named"),
    [
        ({"action": "delay", "sekonds": 3}, "sekonds"),
        ({"action": "status", "status": 503, "retry_after": "1\r\nX-Evil: 1"}, "retry_after"),
        ({"action": "status", "status": 503, "retry_after": "1\n"}, "retry_after"),
    ],
)
def test_a_misspelt_member_or_a_header_that_would_be_two_is_refused(admin, rule, named):
    answer = admin("PUT", "/v1/faults", [rule])
    assert answer.status_code == 400 and named in answer.text
    assert admin.ok("GET", "/v1/faults") == []
