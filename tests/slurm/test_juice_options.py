"""The plugin's rules at submit time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fake_cluster.slurm.batch_script import read_batch_script
from fake_cluster.slurm.interface import SubmitError
from fake_cluster.slurm.juice_options import JuiceOptions

CASES = json.loads((Path(__file__).parent.parent / "vram_cases.json").read_text())


def options(*given, environment=None):
    juice = JuiceOptions()
    juice.defaults(environment or {})
    juice.source([one.split("=", 1) for one in given])
    return juice


def test_a_pool_alone_is_one_whole_gpu():
    assert options("juice-pool=test").environment() == {"JUICE_POOL": "test", "JUICE_GPU_COUNT": "1"}


def test_no_option_is_no_juice_job():
    assert options().environment() == {}


def test_size_arrives_in_bytes_and_raw_as_given():
    juice = options("juice-pool=test", "juice-vram=2.5", "juice-gpu-count=01")
    assert juice.environment()["JUICE_VRAM"] == "2684354560"
    assert juice.raw() == {"juice_juice_pool": "test", "juice_juice_gpu_count": "01", "juice_juice_vram": "2.5"}


@pytest.mark.parametrize("case", CASES, ids=lambda case: repr(case["text"]))
def test_sizes_of_the_common_table(case):
    if case.get("error"):
        with pytest.raises(SubmitError, match="^juice: --juice-vram: "):
            options("juice-pool=p", f"juice-vram={case['text']}")
    else:
        assert options("juice-pool=p", f"juice-vram={case['text']}").environment()["JUICE_VRAM"] == str(case["bytes"])


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (["juice-gpu-count=2"], "juice: --juice-gpu-count needs --juice-pool"),
        (["juice-vram=2"], "juice: --juice-vram needs --juice-pool"),
        (["juice-pool=a", "juice-gpu-count=2", "juice-vram=2"], "juice: --juice-vram is for single-GPU sessions"),
        (["juice-pool="], "juice: --juice-pool: empty value; give the name of a pool"),
        (["juice-pool=a", "juice-pool=b"], "juice: --juice-pool given twice with different values: a and b"),
        (["juice-pool=" + "x" * 256], "juice: --juice-pool: " + "x" * 40 + "...: a pool name has at most 255 bytes"),
        (["juice-pool=a\nb"], "juice: --juice-pool: a pool name has printable characters only"),
        (["juice-gpu-count=0"], "juice: --juice-gpu-count: 0: give a whole number from 1 to 1024"),
        (["juice-gpu-count=-1"], "juice: --juice-gpu-count: -1: give a whole number from 1 to 1024"),
        (["juice-gpu-count=2.0"], "juice: --juice-gpu-count: 2.0: give a whole number from 1 to 1024"),
        (["juice-gpu-count=٣"], "juice: --juice-gpu-count: ٣: give a whole number from 1 to 1024"),
        (["juice-gpu-count=1025"], "juice: --juice-gpu-count: 1025: give a whole number from 1 to 1024"),
    ],
)
def test_what_is_refused(given, words):
    with pytest.raises(SubmitError) as refused:
        options(*given).environment()
    assert str(refused.value).startswith(words)
    assert "\n" not in str(refused.value)


def test_same_value_twice_is_fine():
    juice = options("juice-pool=a", "juice-pool=a", "juice-vram=1", "juice-vram=1GiB")
    assert juice.environment() == {"JUICE_POOL": "a", "JUICE_GPU_COUNT": "1", "JUICE_VRAM": str(2**30)}


def test_names_of_255_bytes_and_of_other_scripts_are_fine():
    assert options("juice-pool=" + "é" * 127).environment()["JUICE_POOL"] == "é" * 127


def test_environment_gives_defaults_which_options_override():
    environment = {"JUICE_POOL": "env", "JUICE_GPU_COUNT": "2", "JUICE_VRAM": ""}
    assert options(environment=environment).environment() == {"JUICE_POOL": "env", "JUICE_GPU_COUNT": "2"}
    assert options("juice-pool=line", environment=environment).environment()["JUICE_POOL"] == "line"
    assert options(environment={"JUICE_VRAM": "nonsense"}).environment() == {}


def test_refusal_reaches_the_user_with_the_commands_name():
    with pytest.raises(SubmitError, match="^sbatch: error: juice: --juice-vram needs --juice-pool"):
        read_batch_script("#!/bin/sh\n#SBATCH --juice-vram=4\n", environment={}, user={"user_id": 1}, cwd=Path("/"))
