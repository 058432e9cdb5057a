"""The installations of Slurm that this machine has: the one on PATH, and the tree in $JUICE_SIM_SLURM_TREE."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fake_cluster.slurm.interface import SlurmSettings
from fake_cluster.slurm.real import RealSlurm
from fake_cluster.slurm.trixie_tree import TREE_VARIABLE, tree_missing
from juice_sim.machine import REQUIRE_VARIABLE

INSTALLATIONS = ("installed", "tree")


@pytest.fixture(params=INSTALLATIONS)
def prefix(request: pytest.FixtureRequest) -> Path | None:
    """None for the Slurm on PATH, the tree's directory for the other; skipped (or failed, where it is required) with
    the reason."""
    if request.param == "installed":
        return None
    reason = tree_missing()
    if reason is not None and "slurm-tree" in os.environ.get(REQUIRE_VARIABLE, ""):
        pytest.fail(f"{REQUIRE_VARIABLE} demands slurm-tree: {reason}", pytrace=False)
    if reason is not None:
        pytest.skip(reason)
    return Path(os.environ[TREE_VARIABLE])


@pytest.fixture
def make_slurm(prefix: Path | None) -> Iterator[Callable[..., RealSlurm]]:
    """Start a Slurm with the given settings; it is stopped at the end."""
    started: list[RealSlurm] = []

    def make(**settings: object) -> RealSlurm:
        slurm = RealSlurm(SlurmSettings(**settings), prefix=prefix)  # type: ignore[arg-type]
        started.append(slurm)
        slurm.start()
        return slurm

    yield make
    for slurm in started:
        slurm.stop()
