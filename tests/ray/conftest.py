"""Shared by the tests of Ray's fake clusters. Whatever starts a cluster carries the mark `ray`."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator

import pytest

from fake_cluster.process_tree import read_process


def until(condition: Callable[[], object], what: str, timeout_s: float = 60.0) -> None:
    """Wait for a condition; the limit is generous, since the machine may be busy."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, f"waited {timeout_s:g} s in vain: {what}"
        time.sleep(0.05)


def living(pids: list[int]) -> list[int]:
    """Those of the processes that still run (zombies do not)."""
    return [pid for pid in pids if (process := read_process(pid)) is not None and process.state != "Z"]


@pytest.fixture(autouse=True, scope="module")
def address_of_no_other_cluster() -> Iterator[None]:
    """Tests must not talk to a Ray of the developer's own, and must leave the environment as it was."""
    before = os.environ.pop("RAY_ADDRESS", None)
    yield
    assert "RAY_ADDRESS" not in os.environ
    if before is not None:
        os.environ["RAY_ADDRESS"] = before
