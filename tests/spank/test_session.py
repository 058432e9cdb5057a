"""The compute node's side in a real Slurm: what a job gets from its session file, and what stops it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_cluster.slurm.interface import Job

from .conftest import Build, JuiceSlurm, make_slurm

pytestmark = [pytest.mark.compiler]

FAULTS = {
    "deny": "gets no GPU session: denied: unknown pool “x”; known: test?second line?[2J",
    "nofile": "/sessions/{job}.session did not appear on node",
    "empty": "/sessions/{job}.session is empty",
    "nul": "/sessions/{job}.session holds NUL bytes only",
    "cut": "/sessions/{job}.session is cut off",
    "wrongkey": "/sessions/{job}.session does not open: it was sealed with another key",
    "foreign": "/sessions/{job}.session does not open: it was sealed with another key, or for another job",
    "symlink": "/sessions/{job}.session is a symbolic link, which is never followed",
    "owner": "/sessions/{job}.session belongs to a user who may not write session files",
}


def environment(output: str) -> dict[str, str]:
    return dict(line.split("=", 1) for line in output.splitlines() if "=" in line)


@pytest.mark.parametrize("how", FAULTS)
def test_what_stops_a_batch_job(juice_slurm: JuiceSlurm, how: str) -> None:
    job, output, errors = juice_slurm.batch("echo ran", f"--juice-pool={how}-pool")
    assert (job.state.value, job.exit_code) == ("FAILED", 1)
    assert output == ""
    ours = [line for line in errors.splitlines() if "juice: " in line]
    assert len(ours) == 1
    assert f"juice: job {job.job_id} gets no GPU session: " in ours[0]
    assert FAULTS[how].format(job=job.job_id) in ours[0]
    juice_slurm.check_nodes()


@pytest.mark.parametrize("how", FAULTS)
def test_what_stops_an_interactive_job(juice_slurm: JuiceSlurm, how: str) -> None:
    done = juice_slurm.srun("echo", "ran", options=[f"--juice-pool={how}-pool", "--ntasks=3", "--nodes=1"])
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(re.findall("juice: job", done.stderr)) == 1, "once per node, not once per task"
    assert FAULTS[how].format(job=re.search(r"juice: job (\d+)", done.stderr)[1]) in done.stderr
    juice_slurm.check_nodes()


def requeued(juice_slurm: JuiceSlurm, pool: str) -> tuple[Job, str, str]:
    """A job that is requeued while it runs, once, and has ended; its output and its errors."""
    script = 'echo start $SLURM_RESTART_COUNT $JUICE_SESSION_ID; [ -n "$SLURM_RESTART_COUNT" ] || sleep 600'
    job_id = juice_slurm.sbatch(script, f"--juice-pool={pool}", "--open-mode=append")
    juice_slurm.slurm.wait(job_id, lambda job: "session" in juice_slurm.output(job_id))
    juice_slurm.slurm.requeue(job_id)
    # Its delay is not cut short: within a second or so slurmd still refuses it as "already killed", and it ends FAILED.
    job = juice_slurm.slurm.wait(job_id, lambda job: job.restarts == 1 and job.state.ended)
    return job, juice_slurm.output(job_id), juice_slurm.output(job_id, "err")


def test_a_requeued_job_takes_the_file_of_its_new_start(juice_slurm: JuiceSlurm) -> None:
    job, output, errors = requeued(juice_slurm, "test")
    assert (job.state.value, job.restarts) == ("COMPLETED", 1), errors
    assert output.splitlines() == [f"start session-{job.job_id}", f"start 1 session-{job.job_id}"]


def test_submitit_1660_a_file_of_an_earlier_start_is_not_taken(juice_slurm: JuiceSlurm) -> None:
    job, output, errors = requeued(juice_slurm, "stale")
    assert (job.state.value, job.exit_code) == ("FAILED", 1)
    assert output.splitlines() == [f"start session-{job.job_id}"]
    assert "its session file is of start 0 of the job, and this is start 1" in errors
    juice_slurm.check_nodes()


def test_a_job_submitted_by_a_restarted_job_is_at_its_first_start(juice_slurm: JuiceSlurm) -> None:
    script = "sbatch --wait --juice-pool=test --output=job-%j.out --error=job-%j.err --wrap='echo $JUICE_SESSION_ID'"
    job, output, errors = juice_slurm.batch(script, env={"SLURM_RESTART_COUNT": "3"})
    assert job.state.value == "COMPLETED", errors
    inner = int(output.split()[-1])
    assert juice_slurm.output(inner).split() == [f"session-{inner}"]


def test_nextflow_5650_a_file_that_appears_late_is_waited_for(juice_slurm: JuiceSlurm) -> None:
    job, output, errors = juice_slurm.batch("echo $JUICE_SESSION_ID", "--juice-pool=late")
    assert job.state.value == "COMPLETED", errors
    assert output.split() == [f"session-{job.job_id}"]
    done = juice_slurm.srun("sh", "-c", "echo $JUICE_SESSION_POOL", options=["--juice-pool=late"])
    assert (done.returncode, done.stdout) == (0, "late\n"), done.stderr


def test_what_a_job_and_its_steps_get(juice_slurm: JuiceSlurm) -> None:
    script = "env; echo ---; srun --ntasks=1 env"
    options = ("--juice-pool=test", "--juice-gpu-count=2")
    job, output, errors = juice_slurm.batch(script, *options, env={"LD_PRELOAD": "", "CUDA_VISIBLE_DEVICES": "7"})
    assert job.state.value == "COMPLETED", errors
    expected = {
        "JUICE_CFG_OVERRIDE": f'{{"id": "session-{job.job_id}", "servers": ["10.1.2.3:43210"], "accessToken": ""}}',
        "JUICE_SESSION_ID": f"session-{job.job_id}",
        "JUICE_SESSION_POOL": "test",
        "JUICE_SESSION_ADDRESS": "10.1.2.3:43210",
        "JUICE_SESSION_GPUS": "2",
        "JUICE_SESSION_VRAM": "24146608128,24146608128",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "LD_PRELOAD": juice_slurm.library,
    }
    for part in output.split("---\n"):
        found = environment(part)
        assert {name: found.get(name) for name in expected} == expected


def test_a_preloaded_library_of_the_user_stays(juice_slurm: JuiceSlurm) -> None:
    # libc itself: preloading it again does nothing, and every loader finds its own by that name.
    libc = "libc.so.6"
    script = "echo $LD_PRELOAD; srun sh -c 'echo $LD_PRELOAD'"
    job, output, errors = juice_slurm.batch(script, "--juice-pool=test", env={"LD_PRELOAD": libc})
    assert job.state.value == "COMPLETED", errors
    assert output.split() == [f"{juice_slurm.library}:{libc}"] * 2


def test_a_forged_option_variable_changes_nothing(juice_slurm: JuiceSlurm) -> None:
    forged = {f"{prefix}_SLURM_SPANK_OPTION_juice_juice_pool": "forged" for prefix in ("", "SPANK_")}
    forged |= {"SPANK_JUICE_POOL": "forged", "SLURM_SPANK_JUICE_POOL": "forged", "SLURM_JUICE_COMPONENTS": "0"}
    job, output, errors = juice_slurm.batch("env", env=forged)
    assert job.state.value == "COMPLETED", errors
    assert "JUICE_SESSION" not in output
    assert "LD_PRELOAD" not in output
    assert juice_slurm.wishes(job.job_id) == {}
    done = juice_slurm.srun("env", env=forged)
    assert done.returncode == 0, done.stderr
    assert "JUICE_SESSION" not in done.stdout
    # Nor does it in a job that has a session.
    job, output, errors = juice_slurm.batch("env", "--juice-pool=test", env=forged)
    assert job.state.value == "COMPLETED", errors
    assert environment(output)["JUICE_SESSION_POOL"] == "test"
    assert juice_slurm.wishes(job.job_id) == {"POOL": "test", "GPU_COUNT": "1"}


def test_forged_session_variables_give_no_session(juice_slurm: JuiceSlurm) -> None:
    forged = {"JUICE_SESSION_ID": "mine", "JUICE_CFG_OVERRIDE": "{}", "JUICE_SESSION_POOL": "x"}
    job, output, errors = juice_slurm.batch("env", env=forged)
    assert job.state.value == "COMPLETED", errors
    assert "JUICE" not in output
    job, output, _ = juice_slurm.batch("env", "--juice-pool=test", env=forged)
    assert environment(output)["JUICE_SESSION_ID"] == f"session-{job.job_id}"


def test_a_session_file_is_taken_whether_or_not_the_plugin_was_asked(juice_slurm: JuiceSlurm) -> None:
    job, output, errors = juice_slurm.batch("echo $JUICE_SESSION_POOL", "--job-name=bypass")
    assert job.state.value == "COMPLETED", errors
    assert "SPANK_JUICE_POOL" not in juice_slurm.seen(job.job_id)
    assert output == "bypass\n"


def test_the_key_is_out_of_the_users_reach(juice_slurm: JuiceSlurm) -> None:
    key = juice_slurm.directory / "session.key"
    script = f"cat {key}; cat /proc/self/environ | tr '\\0' '\\n' | grep -c session.key"
    job, output, errors = juice_slurm.batch(script, "--juice-pool=test")
    if juice_slurm.user_id is not None:
        assert "Permission denied" in errors
    assert output.split()[-1] == "0"
    secret = key.read_bytes().hex()
    assert secret not in "".join(juice_slurm.slurm.logs().values())
    shown = juice_slurm.shell(f"scontrol show job {job.job_id}").stdout
    assert f"JobId={job.job_id}" in shown
    assert f"session-{job.job_id}" not in shown
    assert f"session-{job.job_id}" not in "".join(juice_slurm.slurm.logs().values())


def other_slurm(open_directory: Callable[[str], Path], build: Build, *arguments: str) -> JuiceSlurm:
    return make_slurm(open_directory("state"), build, arguments)


def test_key_faults_stop_the_job_and_not_the_node(open_directory: Callable[[str], Path], build: Build) -> None:
    running = other_slurm(open_directory, build, "wait=1")
    key = running.directory / "session.key"
    with running.slurm:
        key.chmod(0o644)
        assert f"chmod 0400 {key}" in refusal(running)
        key.chmod(0o400)
        assert running.srun("true", options=["--juice-pool=test"]).returncode == 0
        if os.geteuid() == 0:
            os.chown(key, 12345, 12345)
            assert f"key file {key} belongs to user 12345" in refusal(running)
            os.chown(key, 0, 0)
        # The prolog needs the key, so it is only the node that is without it.
        hidden = key.rename(key.with_name("hidden.key"))
        prolog = running.directory / "prolog"
        prolog.write_text(prolog.read_text().replace("session.key", "hidden.key"))
        assert f"key file {key} cannot be opened: No such file or directory" in refusal(running)
        hidden.rename(key).chmod(0o600)
        key.write_bytes(b"short")
        prolog.write_text(
            prolog.read_text().replace('"hidden.key").read_bytes()', '"session.key").read_bytes() * 7)[:32]')
        )
        prolog.write_text(prolog.read_text().replace("key = (DIRECTORY", "key = ((DIRECTORY"))
        assert f"key file {key} has not exactly 32 bytes" in refusal(running)
        job, output, errors = running.batch("echo ran")
        assert (job.state.value, output) == ("COMPLETED", "ran\n"), errors


def refusal(running: JuiceSlurm) -> str:
    job, output, errors = running.batch("echo ran", "--juice-pool=test")
    assert (job.state.value, job.exit_code, output) == ("FAILED", 1, "")
    running.check_nodes()
    return errors


def test_unknown_arguments_are_logged_and_harm_nobody(open_directory: Callable[[str], Path], build: Build) -> None:
    running = other_slurm(open_directory, build, "kee=/x", "wait=soon", "/third", "wait=1")
    with running.slurm:
        done = running.srun("sh", "-c", "echo $JUICE_SESSION_POOL", options=["--juice-pool=test"])
        assert (done.returncode, done.stdout) == (0, "test\n"), done.stderr
        assert "plugstack.conf" not in done.stderr
        log = running.slurm.logs()["slurmd-node1.log"]
    for argument in ("kee=/x", "wait=soon", "/third"):
        assert f'error: juice: plugstack.conf: argument "{argument}" is' in log


def test_missing_arguments_stop_juice_jobs_only(open_directory: Callable[[str], Path], build: Build) -> None:
    running = other_slurm(open_directory, build)
    running.slurm.settings = type(running.slurm.settings)(
        prolog=running.slurm.settings.prolog, plugstack=[f"required {build.plugin}"]
    )
    with running.slurm:
        assert running.srun("true").returncode == 0
        done = running.srun("true", options=["--juice-pool=test"])
        assert done.returncode == 1
        assert "plugstack.conf does not name the juice command and the state directory" in done.stderr
        running.check_nodes()


def test_a_trusted_owner_can_be_named(open_directory: Callable[[str], Path], build: Build) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root: a file is given to another user")
    running = other_slurm(open_directory, build, "wait=1", "owner=12345")
    with running.slurm:
        done = running.srun("sh", "-c", "echo $JUICE_SESSION_POOL", options=["--juice-pool=owner"])
        assert (done.returncode, done.stdout) == (0, "owner\n"), done.stderr


def test_scancel_ends_a_job_that_waits_for_its_file(open_directory: Callable[[str], Path], build: Build) -> None:
    running = other_slurm(open_directory, build, "wait=600")
    with running.slurm:
        job_id = running.sbatch("true", "--juice-pool=nofile")
        running.slurm.wait(job_id, lambda job: job.state.value == "RUNNING")
        running.slurm.scancel(job_id)
        job = running.slurm.wait(job_id)
        assert job.state.value == "CANCELLED"
        done = running.srun("true", options=["--nodes=2", "--exclusive"])
        assert done.returncode == 0, done.stderr
        running.check_nodes()
