"""What a machine cannot do is skipped with one line: why, and how to get it. JUICE_SIM_REQUIRE forbids such skips."""

from __future__ import annotations

import functools

import pytest

from juice_sim import machine

NEEDS = ("slurm", "docker", "compiler", "clang", "valgrind")
"""Markers that stand for a capability of the machine."""

_probe = functools.cache(machine.probe)


def pytest_configure(config: pytest.Config) -> None:
    try:
        machine.required()
    except ValueError as error:
        raise pytest.UsageError(str(error)) from None


def pytest_runtest_setup(item: pytest.Item) -> None:
    for name in NEEDS:
        if item.get_closest_marker(name) is None:
            continue
        capability = _probe(name)
        if capability.ok:
            continue
        reason = f"{name}: {capability.detail}; to get it: {capability.remedy}"
        if name in machine.required():
            pytest.fail(f"{machine.REQUIRE_VARIABLE} demands {reason}", pytrace=False)
        pytest.skip(reason)
