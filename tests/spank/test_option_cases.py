"""The table of option cases, against the plugin's parser without Slurm. The simulated Slurm keeps to the same table."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.compiler]
CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("option_cases.json").read_text("utf-8"))


@pytest.fixture(scope="session")
def probe(make: Callable[..., subprocess.CompletedProcess[str]], plugin_tree: Path) -> Path:
    done = make("build/probe_options")
    assert done.returncode == 0, done.stderr
    return plugin_tree / "build" / "probe_options"


@pytest.mark.parametrize("case", CASES, ids=[case["name"] for case in CASES])
def test_case(probe: Path, case: dict[str, Any]) -> None:
    command = [str(probe), *case["options"]]
    done = subprocess.run(command, env=case.get("env", {}), capture_output=True, text=True)
    if "error" in case:
        assert done.returncode == 1
        assert done.stdout == case["error"] + "\n"
    else:
        assert done.returncode == 0, done.stdout
        assert dict(line.split("=", 1) for line in done.stdout.splitlines()) == case["control"]


def test_every_error_is_one_readable_line() -> None:
    errors = [case["error"] for case in CASES if "error" in case]
    assert len(errors) > 30
    for error in errors:
        assert error.isprintable()
        assert len(error) < 300
