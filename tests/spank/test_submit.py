"""The submitting side in a real Slurm: how options arrive at the prolog, and how wrong ones are refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from .conftest import JuiceSlurm

pytestmark = [pytest.mark.compiler]
CASES: list[dict[str, Any]] = json.loads(Path(__file__).with_name("option_cases.json").read_text("utf-8"))
WRONG = [case for case in CASES if "error" in case]
# Each of these runs a job; the rules that they share with the others are checked without Slurm.
GOOD_NAMES = ("a pool of 255 bytes", "with #", "a space", "a comma", "with ;", "quotes", "substitutions", "UTF-8")
GOOD = [case for case in CASES if "control" in case and case["name"].endswith(GOOD_NAMES)]


def names(cases: list[dict[str, Any]]) -> list[str]:
    return [case["name"] for case in cases]


def hooks_get(control: dict[str, str]) -> dict[str, str]:
    return {name.removeprefix("JUICE_"): value for name, value in control.items()}


@pytest.mark.parametrize("case", WRONG, ids=names(WRONG))
def test_sbatch_refuses_with_one_line_of_ours(juice_slurm: JuiceSlurm, case: dict[str, Any]) -> None:
    before = {job.job_id for job in juice_slurm.slurm.jobs()}
    said = juice_slurm.refused(*case["options"], env=case.get("env"))
    ours = [line for line in said.splitlines() if "juice: " in line]
    assert ours == [f"sbatch: error: juice: {case['error']}"]
    assert {job.job_id for job in juice_slurm.slurm.jobs()} == before


@pytest.mark.parametrize("case", WRONG[::5], ids=names(WRONG[::5]))
def test_srun_refuses_likewise(juice_slurm: JuiceSlurm, case: dict[str, Any]) -> None:
    done = juice_slurm.srun("true", options=case["options"], env=case.get("env"))
    assert done.returncode != 0
    assert f"srun: error: juice: {case['error']}" in done.stderr


@pytest.mark.parametrize("case", GOOD, ids=names(GOOD))
def test_odd_names_arrive_unchanged(juice_slurm: JuiceSlurm, case: dict[str, Any]) -> None:
    script = 'printf %s "$JUICE_SESSION_POOL"'
    job, output, errors = juice_slurm.batch(script, *case["options"], env=case.get("env"))
    assert job.state.value == "COMPLETED", errors
    assert juice_slurm.wishes(job.job_id) == hooks_get(case["control"])
    assert output == case["control"]["JUICE_POOL"]


def test_help_of_all_three_commands_names_the_options(juice_slurm: JuiceSlurm) -> None:
    for command in ("srun", "sbatch", "salloc"):
        text = juice_slurm.shell(f"{command} --help").stdout
        for option in (
            "pool=NAME",
            "gpu-count=N",
            "vram=SIZE",
            "vram-strict",
            "match-labels=SELECTOR",
            "tolerates=K=V",
        ):
            assert f"--juice-{option}" in text, command


@pytest.mark.parametrize(
    "options",
    [
        ["--juice-pool=test", "--juice-gpu-count=2"],
        ["--juice-pool", "test", "--juice-gpu-count", "2"],
        ["--juice-p=test", "--juice-gpu=2"],
        ["--juice-pool=test", "--juice-pool=test", "--juice-gpu-count=2", "--juice-gpu-count=02"],
    ],
    ids=["with =", "with a space", "abbreviated", "twice"],
)
def test_forms_of_an_option(juice_slurm: JuiceSlurm, options: list[str]) -> None:
    done = juice_slurm.srun("sh", "-c", "echo $SLURM_JOB_ID $JUICE_SESSION_GPUS", options=options)
    assert done.returncode == 0, done.stderr
    job_id, gpus = done.stdout.split()
    assert gpus == "2"
    assert juice_slurm.wishes(int(job_id)) == {"POOL": "test", "GPU_COUNT": "2"}


def test_sbatch_lines_count(juice_slurm: JuiceSlurm) -> None:
    script = "#!/bin/sh\n#SBATCH --juice-pool=test\n#SBATCH --juice-vram=2.5\nexit 0\n"
    job, _, errors = juice_slurm.batch(script)
    assert job.state.value == "COMPLETED", errors
    assert juice_slurm.wishes(job.job_id) == {"POOL": "test", "GPU_COUNT": "1", "VRAM": "2684354560"}


def test_a_wrong_sbatch_line_is_refused(juice_slurm: JuiceSlurm) -> None:
    script = "#!/bin/sh\n#SBATCH --juice-pool=test\n#SBATCH --juice-vram=16Gi\n"
    with pytest.raises(Exception, match=r'juice: --juice-vram: "16Gi" has the unknown suffix'):
        juice_slurm.sbatch(script)


def test_environment_gives_defaults_that_options_override(juice_slurm: JuiceSlurm) -> None:
    env = {"JUICE_POOL": "mine", "JUICE_VRAM": "1"}
    job, _, _ = juice_slurm.batch("true", env=env)
    assert juice_slurm.wishes(job.job_id) == {"POOL": "mine", "GPU_COUNT": "1", "VRAM": "1073741824"}
    job, _, _ = juice_slurm.batch("true", "--juice-pool=test", "--juice-vram=2", env=env)
    assert juice_slurm.wishes(job.job_id) == {"POOL": "test", "GPU_COUNT": "1", "VRAM": "2147483648"}


def test_a_job_without_options_is_left_alone(juice_slurm: JuiceSlurm) -> None:
    job, output, errors = juice_slurm.batch("env")
    assert job.state.value == "COMPLETED", errors
    assert not [name for name in juice_slurm.seen(job.job_id) if "JUICE" in name]
    assert "JUICE" not in output
    assert "LD_PRELOAD" not in output


@pytest.mark.parametrize("export", ["NONE", "NIL", "ALL", "X=1"])
def test_slurm_19625_options_arrive_whatever_is_exported(juice_slurm: JuiceSlurm, export: str) -> None:
    srun = juice_slurm.slurm.binaries["srun"]  # with NONE, PATH is not exported either
    script = f"echo batch $JUICE_SESSION_ID; {srun} /bin/sh -c 'echo step $JUICE_SESSION_ID $CUDA_VISIBLE_DEVICES'"
    job, output, errors = juice_slurm.batch(script, "--juice-pool=test", f"--export={export}")
    assert job.state.value == "COMPLETED", errors
    session = f"session-{job.job_id}"
    assert output.splitlines() == [f"batch {session}", f"step {session} 0"]
    command = "echo $SLURM_JOB_ID $JUICE_SESSION_ID"
    done = juice_slurm.srun("/bin/sh", "-c", command, options=["--juice-pool=test", f"--export={export}"])
    assert re.fullmatch(r"(\d+) session-\1\n", done.stdout), done


def test_salloc(juice_slurm: JuiceSlurm) -> None:
    step = "srun sh -c 'echo $JUICE_SESSION_ID $JUICE_SESSION_GPUS'"
    done = juice_slurm.shell('salloc --juice-pool=test --juice-gpu-count=2 sh -c "echo \\$SLURM_JOB_ID; $1"', step)
    assert done.returncode == 0, done.stderr
    job_id, session, gpus = done.stdout.split()
    assert (session, gpus) == (f"session-{job_id}", "2")


def test_array_tasks_have_sessions_of_their_own(juice_slurm: JuiceSlurm) -> None:
    script = "echo $SLURM_JOB_ID $JUICE_SESSION_ID"
    leader = juice_slurm.sbatch(script, "--juice-pool=test", "--array=0-2")
    juice_slurm.slurm.wait(leader, lambda _: all(job.state.ended for job in tasks(juice_slurm, leader)))
    found = tasks(juice_slurm, leader)
    assert len(found) == 3
    for task in found:
        assert task.state.value == "COMPLETED"
        assert juice_slurm.output(task.job_id).split() == [str(task.job_id), f"session-{task.job_id}"]


def tasks(juice_slurm: JuiceSlurm, leader: int) -> list[Any]:
    return [job for job in juice_slurm.slurm.jobs() if job.array_job_id == leader]


HET_STEP = "sh -c 'echo $SLURM_HET_GROUP_ID $JUICE_SESSION_POOL $JUICE_SESSION_GPUS'"


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"pool": "a"}, {"pool": "b", "gpu-count": "2"}),
        ({"pool": "a", "gpu-count": "2"}, {"pool": "a"}),
        ({"pool": "a"}, {}),
        ({}, {"pool": "b"}),
    ],
    ids=["two pools", "one pool", "only the first", "only the second"],
)
def test_slurm_4379_het_components_keep_their_own_values(
    juice_slurm: JuiceSlurm, first: dict[str, str], second: dict[str, str]
) -> None:
    lines = [[f"--juice-{name}={value}" for name, value in component.items()] for component in (first, second)]
    show = 'echo "$SLURM_PROCID pool=$JUICE_SESSION_POOL gpus=$JUICE_SESSION_GPUS session=$JUICE_SESSION_ID"'

    done = juice_slurm.srun("sh", "-c", show, options=[*lines[0], "sh", "-c", show, ":", *lines[1]])
    assert done.returncode == 0, done.stderr
    check_components(juice_slurm, done.stdout, (first, second))

    script = "\n".join(
        [
            "#!/bin/sh",
            *(f"#SBATCH {line}" for line in (*lines[0], "hetjob", *lines[1])),
            f"srun sh -c '{show}' : sh -c '{show}'",
        ]
    )
    job, output, errors = juice_slurm.batch(script)
    assert job.state.value == "COMPLETED", errors
    check_components(juice_slurm, output, (first, second))


def check_components(juice_slurm: JuiceSlurm, output: str, components: tuple[dict[str, str], ...]) -> None:
    leader = max(job.het_job_id or 0 for job in juice_slurm.slurm.jobs())
    for offset, (line, wanted) in enumerate(zip(sorted(output.splitlines()), components, strict=True)):
        job_id = leader + offset
        pool, gpus = wanted.get("pool", ""), wanted.get("gpu-count", "1") if wanted else ""
        session = f"session-{job_id}" if wanted else ""
        assert line == f"{offset} pool={pool} gpus={gpus} session={session}"
        assert juice_slurm.wishes(job_id) == ({"POOL": pool, "GPU_COUNT": gpus} if wanted else {})


def test_each_het_component_is_checked(juice_slurm: JuiceSlurm) -> None:
    script = "#!/bin/sh\n#SBATCH --juice-pool=a\n#SBATCH hetjob\n#SBATCH --juice-vram=1\n"
    with pytest.raises(Exception, match=r'juice: --juice-vram: "1" needs a pool'):
        juice_slurm.sbatch(script)


def test_nested_srun_shares_the_session(juice_slurm: JuiceSlurm) -> None:
    script = "for i in 1 2; do srun sh -c 'echo $JUICE_SESSION_ID $LD_PRELOAD'; done"
    job, output, errors = juice_slurm.batch(script, "--juice-pool=test")
    assert job.state.value == "COMPLETED", errors
    assert output.splitlines() == [f"session-{job.job_id} {juice_slurm.library}"] * 2


def test_nested_srun_may_repeat_the_option(juice_slurm: JuiceSlurm) -> None:
    job, output, errors = juice_slurm.batch(
        "srun --juice-pool=test sh -c 'echo $JUICE_SESSION_ID'", "--juice-pool=test"
    )
    assert job.state.value == "COMPLETED", errors
    assert output.split() == [f"session-{job.job_id}"]


def test_nested_srun_cannot_add_a_session(juice_slurm: JuiceSlurm) -> None:
    job, _, errors = juice_slurm.batch("srun --juice-pool=test true")
    assert job.state.value == "FAILED"
    assert "juice: --juice-pool: srun inside a job only adds a step to it" in errors


def test_pyxis_31_sbatch_inside_a_job_inherits_nothing(juice_slurm: JuiceSlurm) -> None:
    inner = "sbatch --wait --output=job-%j.out --error=job-%j.err --wrap=env"
    job, output, errors = juice_slurm.batch(inner, "--juice-pool=test", "--juice-gpu-count=2", env={"LD_PRELOAD": ""})
    assert job.state.value == "COMPLETED", errors
    inner_id = int(output.split()[-1])
    assert juice_slurm.wishes(inner_id) == {}
    inherited = juice_slurm.output(inner_id)
    assert f"SLURM_JOB_ID={inner_id}" in inherited
    assert "JUICE" not in inherited
    assert "CUDA_VISIBLE_DEVICES" not in inherited
    assert juice_slurm.library not in inherited


def test_pyxis_31_salloc_inside_a_job_inherits_nothing(juice_slurm: JuiceSlurm) -> None:
    inner = "salloc sh -c 'srun env'"
    job, output, errors = juice_slurm.batch(inner, "--juice-pool=test")
    assert job.state.value == "COMPLETED", errors
    assert "JUICE" not in output
