"""The plugin's rules at submit time: the table that the C plugin is tested with, and who says what to the user."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fake_cluster.slurm.batch_script import read_batch_script, read_srun
from fake_cluster.slurm.interface import SubmitError
from fake_cluster.slurm.juice_options import JuiceOptions
from fake_cluster.slurm.sbatch_options import read_options

TESTS = Path(__file__).parent.parent
OPTION_CASES = json.loads((TESTS / "spank" / "option_cases.json").read_text("utf-8"))
VRAM_CASES = json.loads((TESTS / "vram_cases.json").read_text("utf-8"))
USER = {"user_id": 1}


def settle(options, environment=None):
    juice = JuiceOptions()
    juice.give(read_options(options))
    return juice.settle(environment or {})


@pytest.mark.parametrize("case", OPTION_CASES, ids=[case["name"] for case in OPTION_CASES])
def test_case_of_the_plugins_own_table(case):
    if "error" in case:
        with pytest.raises(SubmitError) as refused:
            settle(case["options"], case.get("env"))
        assert str(refused.value).splitlines()[0] == "sbatch: error: juice: " + case["error"]
    else:
        assert settle(case["options"], case.get("env")) == case["control"]


@pytest.mark.parametrize("case", VRAM_CASES, ids=lambda case: repr(case["text"]))
def test_sizes_of_the_common_table(case):
    if case.get("error"):
        with pytest.raises(SubmitError, match=r"^sbatch: error: juice: --juice-vram: "):
            settle(["--juice-pool=p", f"--juice-vram={case['text']}"])
    else:
        assert settle(["--juice-pool=p", f"--juice-vram={case['text']}"])["JUICE_VRAM"] == str(case["bytes"])


def test_wrong_value_is_told_as_sbatch_does():
    with pytest.raises(SubmitError) as refused:
        read_batch_script(
            "#!/bin/sh\n#SBATCH --juice-pool=a\n", ["--juice-pool=b"], environment={}, user=USER, cwd=TESTS
        )
    assert str(refused.value) == (
        'sbatch: error: juice: --juice-pool: given as "a" and as "b"; accepted: one value\n'
        "sbatch: error: Invalid --juice-pool argument: b"
    )


def test_wrong_combination_is_told_as_srun_does():
    with pytest.raises(SubmitError) as refused:
        read_srun(["hostname"], ["--juice-gpu-count=4"], environment={}, user=USER, cwd=TESTS)
    assert str(refused.value) == (
        'srun: error: juice: --juice-gpu-count: "4" needs a pool; add --juice-pool=NAME\n'
        "srun: error: spank: required plugin juice.so: init_post_opt() failed with rc=-1\n"
        "srun: error: Plugin stack post-option processing failed."
    )


def test_components_of_a_het_job_have_their_own():
    script = "#!/bin/sh\n#SBATCH --juice-pool=a\n#SBATCH hetjob\n#SBATCH -n 2\n#SBATCH hetjob\n#SBATCH --juice-pool=b\n"
    specs = read_batch_script(script, environment={}, user=USER, cwd=TESTS)
    assert [spec.spank_env.get("JUICE_POOL") for spec in specs] == ["a", None, "b"]


@pytest.mark.parametrize(
    "option", ["--juice-p=x", "--juice-po", "--juice-g=2", "--juice-vram-s", "--juice-m=a", "--juice-t=a=b"]
)
def test_abbreviations(option):
    words = [option, "x"] if option == "--juice-po" else [option]
    assert len(read_options(words)) == 1
