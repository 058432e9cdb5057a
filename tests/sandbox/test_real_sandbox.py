"""A sandbox with the real Slurm, the plugin built for it, and free capacity exported as licenses."""

from __future__ import annotations

import json
import os
import signal

import pytest

from .conftest import JuiceSim

pytestmark = [pytest.mark.slurm, pytest.mark.compiler]


@pytest.fixture(scope="module")
def real(shared_juice_sim: JuiceSim) -> JuiceSim:
    done = shared_juice_sim(
        *("up", "--slurm", "real", "--name", "real", "--licenses", "--nodes", "2"),
        *("--pool", "test:agents=2,gpus=2,vram=24GiB", "--wait", "2"),
    )
    assert done.returncode == 0, done.stderr
    return shared_juice_sim


def shell(juice_sim: JuiceSim, commands: str):
    return juice_sim("shell", "--name", "real", text_in=commands)


def test_the_documented_commands_work_as_they_stand(real):
    commands = """
    srun --juice-pool=test hostname -A > /dev/null && echo one
    srun --juice-pool=test --juice-gpu-count=2 sh -c 'echo $CUDA_VISIBLE_DEVICES'
    srun --juice-pool=test --juice-vram=1 sh -c 'echo $JUICE_SESSION_VRAM'
    srun --juice-pool=test --juice-vram=1 nvidia-smi --query-gpu=name,memory.total --format=csv,noheader | tr -d ' '
    srun --juice-pool=nope true
    """
    done = shell(real, commands)
    assert done.stdout.split() == ["one", "0,1", str(1 << 30), "NVIDIAA10,1024MiB"]
    assert 'denied: unknown pool "nope"; known: test' in done.stderr
    assert "LD_PRELOAD" not in done.stderr


def test_jobs_wait_for_licenses_and_no_prolog_runs_in_vain(real):
    commands = """
    first=$(sbatch --parsable --juice-pool=test --array=0-3 -o /dev/null --wrap 'sleep 600')
    until [ $(squeue -h -t R | wc -l) = 4 ]; do :; done
    whole=$(sbatch --parsable --juice-pool=test -o /dev/null --wrap true)
    pair=$(sbatch --parsable --juice-pool=test --juice-gpu-count=2 -L other -o /dev/null --wrap true)
    slice=$(sbatch --parsable --juice-pool=test --juice-vram=2.5 -o /dev/null --wrap true)
    impossible=$(sbatch --parsable --juice-pool=test --juice-gpu-count=9 -o /dev/null --wrap true)
    for job in $whole $slice; do
        until squeue -h -j $job -o %r | grep -q Licenses; do :; done
    done
    squeue -h -j $whole,$slice -o '%A %W' | sort -n
    scancel $first
    until [ -z "$(squeue -h)" ]; do :; done
    squeue -h -t all -j $whole,$slice,$impossible -o '%A %T' | sort -n
    for job in $whole $slice; do scontrol show job $job | grep -o 'Restarts=.'; done
    """
    done = shell(real, commands)
    lines = done.stdout.splitlines()
    assert lines[0].endswith(" juice_test:1,juice_test_vram_gib:24")
    assert lines[1].endswith(" juice_test_vram_gib:3,juice_test_fit_3:1")
    # Nine GPUs are more than any agent has: no license, and the prolog tells the user.
    assert [line.split()[-1] for line in lines[2:]] == ["COMPLETED", "COMPLETED", "FAILED", "Restarts=0", "Restarts=0"]
    assert "Invalid license specification" in done.stderr  # -L other: what the user wrote stays


def test_capacity_that_goes_and_comes_is_followed(real):
    home = real.base / "real"
    pids = [json.loads(path.read_text().splitlines()[0])["pid"] for path in sorted(home.glob("juice/agent-*.out"))]
    os.kill(pids[0], signal.SIGTERM)  # an agent signs off
    commands = """
    until scontrol -o show license juice_test | grep -q 'Reserved=999998'; do :; done
    first=$(sbatch --parsable --juice-pool=test --array=0-1 -o /dev/null --wrap 'sleep 600')
    until [ $(squeue -h -t R | wc -l) = 2 ]; do :; done
    job=$(sbatch --parsable --juice-pool=test -o /dev/null --wrap true)
    until squeue -h -j $job -o %r | grep -q Licenses; do :; done
    scancel $first
    until [ -z "$(squeue -h)" ]; do :; done
    juice-sim licenses sync --once --name real
    """
    done = shell(real, commands)
    assert done.stdout.splitlines()[-2:] == ["juice_test 2", "juice_test_vram_gib 48"], done.stderr


def test_down_leaves_nothing_of_a_real_slurm_after_kill_9(real):
    assert shell(real, "sbatch --juice-pool=test -o /dev/null --wrap 'sleep 7777'\n").returncode == 0
    recorded = json.loads((real.base / "real" / "processes.json").read_text())
    for role in ("keeper", "server"):
        for pid, _ in recorded[role]:
            os.kill(pid, signal.SIGKILL)
    done = real("down", "--name", "real")
    assert (done.returncode, done.stdout) == (0, "sandbox 'real' is down\n"), done.stderr
    assert real.processes("real") == []
    assert not (real.base / "real").exists()
