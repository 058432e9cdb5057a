"""A small made trace in the form of openb, and the real one where its directory is named."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

NODES = "openb_node_list_gpu_node.csv"
TASKS = "made_pods.csv"
VARIABLE = "JUICE_SIM_OPENB_DIR"


@pytest.fixture(scope="session")
def made_trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with 60 nodes of several sizes and 320 tasks: parts of GPUs, whole ones, several, none."""
    chance = random.Random(5)
    folder = tmp_path_factory.mktemp("made-openb")
    nodes = ["sn,cpu_milli,memory_mib,gpu,model"]
    for number in range(60):
        gpus, model = ((8, "G2"), (2, "T4"), (4, "V100M16"))[number % 3]
        nodes.append(f"n{number:02},{12_000 * gpus},{49_152 * gpus},{gpus},{model}")
    (folder / NODES).write_text("\n".join(nodes) + "\n", encoding="utf-8")
    rows = [
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,deletion_time,scheduled_time"
    ]
    kinds = ((1, 500), (1, 300), (1, 1000), (1, 1000), (2, 1000), (4, 1000), (0, 0))
    for number in range(320):
        gpus, milli = chance.choices(kinds, (20, 15, 20, 20, 5, 1, 15))[0]
        cpu = chance.choice((2000, 4000, 8000, 12_000)) * max(1, gpus)
        spec = chance.choices(("", "T4|V100M16"), (9, 1))[0] if gpus == 1 else ""
        rows.append(f"t{number:03},{cpu},{cpu * 2},{gpus},{milli},{spec},LS,Running,{number},{number + 50},{number}")
    (folder / TASKS).write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def openb() -> Path:
    """The directory of the real trace; skips without it."""
    named = os.environ.get(VARIABLE, "")
    if not named or not (Path(named) / NODES).is_file():
        pytest.skip(f"the openb trace is not here: set {VARIABLE} to the directory with {NODES}")
    return Path(named)
