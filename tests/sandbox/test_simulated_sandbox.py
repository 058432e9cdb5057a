"""A sandbox with a simulated Slurm, used as its users do: by commands."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
import time

import pytest

from .conftest import JuiceSim


def shell(juice_sim: JuiceSim, commands: str) -> subprocess.CompletedProcess[str]:
    return juice_sim("shell", text_in=commands)


def test_srun_runs_on_a_gpu_of_the_pool(simulated):
    done = shell(simulated, "srun --juice-pool=test sh -c 'echo $JUICE_SESSION_POOL $JUICE_SESSION_VRAM'\n")
    assert (done.returncode, done.stdout, done.stderr) == (0, f"test {24 << 30}\n", "")


def test_the_documented_commands_work_as_they_stand(simulated):
    commands = """
    srun --juice-pool=test hostname -A > /dev/null && echo one
    srun --juice-pool=test --juice-gpu-count=2 sh -c 'echo $CUDA_VISIBLE_DEVICES'
    srun --juice-pool=test --juice-vram=1 sh -c 'echo $JUICE_SESSION_VRAM'
    """
    done = shell(simulated, commands)
    assert done.stdout.split() == ["one", "0,1", str(1 << 30)]


def test_the_shell_has_the_exit_code_of_its_last_command(simulated):
    assert shell(simulated, "true; srun --juice-pool=test sh -c 'exit 7'\n").returncode == 7
    assert shell(simulated, "false\ntrue\n").returncode == 0


def test_a_command_that_reads_standard_input_does_not_eat_the_next_one(simulated):
    assert shell(simulated, "cat\nsrun cat\necho still here\n").stdout == "still here\n"


def test_refusals_have_slurms_words_and_no_traceback(simulated):
    done = shell(simulated, "srun --juice-vram=1 true\nsrun --juice-pool=nope true\nsrun --nonsense true\nsalloc\n")
    assert 'juice: --juice-vram: "1" needs a pool; add --juice-pool=NAME' in done.stderr
    assert 'denied: unknown pool "nope"; known: test' in done.stderr
    assert "srun: unrecognized option '--nonsense'" in done.stderr
    assert "a simulated Slurm has no salloc" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_batch_job_waits_is_seen_and_is_cancelled(simulated):
    commands = """
    first=$(sbatch --parsable --juice-pool=test --juice-gpu-count=2 -o /dev/null --wrap 'sleep 600')
    until squeue -h -j $first -o %T | grep -q RUNNING; do :; done
    juice-sim status --json
    scancel $first
    until [ -z "$(squeue -h)" ]; do :; done
    squeue -h -t all -j $first -o %T
    """
    done = shell(simulated, commands)
    text, _, last = done.stdout.rpartition("\n}\n")
    state = json.loads(text + "\n}")
    gpus = state["pools"][0]["agents"][0]["gpus"]
    job = next(job for job in state["jobs"] if job["state"] == "RUNNING")
    assert [gpu["slices"] for gpu in gpus] == [
        [{"session": state["sessions"][0]["id"], "vram": 24 << 30, "job": job["id"]}]
    ] * 2
    assert [gpu["free"] for gpu in gpus] == [0, 0]
    assert (state["sessions"][0]["pool"], state["sessions"][0]["job"]) == ("test", job["id"])
    assert last == "CANCELLED\n"


def test_a_script_on_standard_input_and_a_step_inside_the_job(simulated):
    commands = """
    printf '#!/bin/sh\\n#SBATCH --juice-pool=test\\nsrun sh -c "echo step of \\$JUICE_SESSION_POOL"\\n' |
        sbatch --wait -o out.txt
    cat out.txt
    """
    done = shell(simulated, commands)
    assert done.stdout.splitlines()[1:] == ["step of test"]


def test_ctrl_c_at_srun_cancels_its_job(simulated):
    ready = json.loads((simulated.base / "default" / "ready.json").read_text())
    environment = {**simulated.environment, "PATH": f"{ready['environment']['PATH']}:{os.environ['PATH']}"}
    with subprocess.Popen(
        ["srun", "--juice-pool=test", "--job-name=victim", "sh", "-c", "echo begun; sleep 600"],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        executable=f"{ready['environment']['PATH']}/srun",
    ) as srun:
        assert srun.stdout is not None
        assert srun.stdout.readline() == "begun\n"  # output comes while the job runs
        srun.send_signal(signal.SIGINT)
        assert srun.wait(60) != 0
    assert shell(simulated, "squeue -h -t all -n victim -o %T\n").stdout == "CANCELLED\n"


def test_status_shows_slices_in_words(simulated):
    commands = """
    sbatch --parsable --juice-pool=test --juice-vram=6 -o /dev/null --wrap 'sleep 600' > id
    until squeue -h -o %T | grep -q RUNNING; do :; done
    juice-sim status
    scancel $(cat id)
    until [ -z "$(squeue -h)" ]; do :; done
    """
    text = shell(simulated, commands).stdout
    assert "[111111..................] 24GiB, job " in text
    assert ": 6GiB, free: 18GiB" in text
    assert "pool test: 1 agent(s), 2 GPU(s), 1 untouched, 42GiB free" in text


def test_logs_of_every_kind(simulated):
    shell(simulated, "srun --juice-pool=test true\n")
    assert 'of pool "test"' in simulated("logs", "hooks").stdout
    everything = simulated("logs").stdout
    assert {"test-1", "hooks", "slurmctld", "sandbox"} <= {line.split()[0] for line in everything.splitlines()}
    wrong = simulated("logs", "nonsense")
    assert (wrong.returncode, wrong.stderr.count("\n")) == (2, 1)
    assert "accepted: controller, agents" in wrong.stderr


def test_nothing_of_the_sandbox_is_open_to_others(simulated):
    home = simulated.base / "default"
    modes = {name: stat.S_IMODE((home / name).stat().st_mode) for name in ("control.sock", "ready.json", "sandbox.log")}
    assert modes == {"control.sock": 0o600, "ready.json": 0o600, "sandbox.log": 0o600}
    token = (home / "juice" / "data" / "admin.token").read_text().strip()
    for pid in simulated.processes("default"):
        with open(f"/proc/{pid}/cmdline", "rb") as cmdline, open(f"/proc/{pid}/environ", "rb") as environ:
            assert token.encode() not in cmdline.read() + environ.read()
    assert token not in simulated("logs", "-n", "100000").stdout


def test_a_second_up_with_the_same_name_says_so_and_another_name_is_fine(simulated):
    again = simulated("up", "--slurm", "simulated")
    assert (again.returncode, again.stderr.count("\n")) == (2, 1)
    assert "sandbox 'default' is up already" in again.stderr
    other = simulated("up", "--slurm", "simulated", "--name", "other", "--pool", "b:agents=1")
    assert other.returncode == 0, other.stderr
    done = simulated("shell", "--name", "other", text_in="srun --juice-pool=b sh -c 'echo $JUICE_SESSION_POOL'\n")
    assert done.stdout == "b\n"
    down = simulated("down", "--name", "other")
    assert (down.returncode, down.stdout) == (0, "sandbox 'other' is down\n")
    assert simulated("status").returncode == 0  # the first one is untouched


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["up", "--pool", "test:gpus=0"], "accepted: 1 to 64"),
        (["up", "--name", "a/b"], "--name 'a/b'"),
        (["up", "--nodes", "0"], "--nodes 0: accepted: 1 to 200"),
        (["up", "--slurm", "simulated", "--licenses"], "need a real Slurm"),
        (["status", "--name", "nobody"], "no sandbox 'nobody'"),
        (["shell"], "no sandbox is up; start one: juice-sim up"),
        (["down"], "no sandbox is up"),
        (["logs"], "no sandbox is up"),
        (["licenses", "sync"], "no sandbox is up"),
        (["licenses", "sync", "--interval", "0"], "accepted: 0.2 to 3600"),
        (["licenses", "lua", "--table", "x"], "an absolute path"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(juice_sim, words, said):
    done = juice_sim(*words)
    assert (done.returncode, done.stderr.count("\n"), done.stdout) == (2, 1, "")
    assert said in done.stderr


def test_a_directory_that_is_in_use_is_left_alone(juice_sim):
    used = juice_sim.tmp / "used"
    used.mkdir()
    (used / "precious").write_text("x")
    done = juice_sim("up", "--slurm", "simulated", "--directory", str(used))
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "it is not empty" in done.stderr
    assert (used / "precious").read_text() == "x"


JOBS = """
srun sh -c 'sleep 7777' > /dev/null 2>&1 &
sbatch --juice-pool=test -o /dev/null --wrap 'sleep 7777'
until [ $(squeue -h -t R | wc -l) = 2 ]; do :; done
"""


def killed(juice_sim: JuiceSim, *roles: str) -> None:
    """kill -9 to the sandbox's own processes of these roles, recorded as `up` has found them."""
    recorded = json.loads((juice_sim.base / "default" / "processes.json").read_text())
    for role in roles:
        for pid, _ in recorded[role]:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                assert role == "daemons"  # those may have ended with their owner


@pytest.mark.parametrize("roles", [("server",), ("keeper",), ("keeper", "server", "daemons")])
def test_down_leaves_nothing_also_after_kill_9(juice_sim, roles):
    up = juice_sim("up", "--slurm", "simulated", "--pool", "test:agents=1", env={"SHELL": "/bin/sh"})
    assert up.returncode == 0, up.stderr
    assert juice_sim("shell", text_in=JOBS).returncode == 0
    before = juice_sim.processes("default")
    assert len(before) > 4
    killed(juice_sim, *roles)
    if {"keeper", "server"} <= set(roles):
        status = juice_sim("status")
        assert (status.returncode, status.stderr.count("\n")) == (2, 1)
        assert "its supervisor is gone; clean up: juice-sim down" in status.stderr
    down = juice_sim("down")
    assert (down.returncode, down.stdout) == (0, "sandbox 'default' is down\n"), down.stderr
    deadline = time.monotonic() + 30
    while (left := juice_sim.processes("default")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []
    assert list(juice_sim.base.iterdir()) == []


def test_an_interrupted_up_leaves_nothing(juice_sim):
    with subprocess.Popen(
        [sys.executable, "-m", "juice_sim.cli.main", "up", "--slurm", "simulated"],
        env=juice_sim.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    ) as up:
        deadline = time.monotonic() + 60
        while not (juice_sim.base / "default" / "processes.json").exists() and time.monotonic() < deadline:
            time.sleep(0.01)
        up.send_signal(signal.SIGINT)
        assert up.wait(90) == 130
        assert up.stderr is not None
        assert up.stderr.read() == "juice-sim up: interrupted; everything that was started is stopped\n"
    assert juice_sim.processes("default") == []
    assert list(juice_sim.base.iterdir()) == []
