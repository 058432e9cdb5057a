"""A site with the real Slurm, plugin and hooks, and a durable controller; logs are kept when a test fails."""

from __future__ import annotations

import os
import pwd
from collections.abc import Iterator

import pytest

from benchmarks.slurm_site import Site


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    """One site for the tests of a module: 2 nodes, pool `test` with 4 GPUs."""
    with Site(wait=5.0) as running:
        yield running
    running.remove()


@pytest.fixture
def user_id() -> int | None:
    """Somebody else than root, where jobs can be run as somebody else."""
    return pwd.getpwnam("nobody").pw_uid if os.geteuid() == 0 else None
