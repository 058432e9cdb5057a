"""docs/scenarios.md: its examples load, its reference is the schema's."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fake_cluster.checks import run_checks
from fake_cluster.history import History, RunEnded, RunStarted
from fake_cluster.scenario_load import parse_scenario
from fake_cluster.scenario_schema import markdown

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "scenarios.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"^```yaml\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


def test_there_are_examples() -> None:
    assert len(EXAMPLES) >= 3


@pytest.mark.parametrize("text", EXAMPLES, ids=lambda text: text.split("\n")[0])
def test_each_example_loads(text: str) -> None:
    assert parse_scenario(text).jobs


def test_the_reference_is_up_to_date() -> None:
    assert PAGE.endswith(markdown()), "run: python -m fake_cluster.scenario_schema markdown, and replace the reference"


def test_each_check_that_is_always_made_is_explained() -> None:
    history = History(entries=[RunStarted(0.0, "x", 0, "none", "simulated", "0"), RunEnded(1.0, "all jobs ended")])
    scenario = parse_scenario(EXAMPLES[2])
    always = {check.name for check in run_checks(history, scenario)} - {"min_completed"}
    assert (
        set(
            re.findall(
                r"^\| `([a-z_]+)` \| [a-z]", PAGE.split("## What is always")[1].split("## results")[0], re.MULTILINE
            )
        )
        == always
    )
