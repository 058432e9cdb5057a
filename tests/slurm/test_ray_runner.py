"""Jobs as Ray tasks on the nodes of a cluster."""

from __future__ import annotations

import os

import pytest

from fake_cluster.slurm.interface import JobState, SlurmSettings
from fake_cluster.slurm.runners import RayRunner
from fake_cluster.slurm.simulated import SimulatedSlurm

pytestmark = pytest.mark.ray


@pytest.fixture(scope="module")
def ray_cluster():
    import ray

    ray.init(
        address="local",
        num_cpus=2,
        num_gpus=0,
        resources={"slurm_node1": 1, "slurm_node2": 1},
        include_dashboard=False,
        log_to_driver=False,
        _node_ip_address="127.0.0.1",
        runtime_env={"env_vars": {"PYTHONPATH": os.getcwd()}},
    )
    yield ray
    ray.shutdown()


@pytest.fixture
def ray_slurm(ray_cluster):
    runner = RayRunner(lambda node: {f"slurm_{node}": 0.001}, cpus_per_task=0.5)
    with SimulatedSlurm(SlurmSettings(nodes=2), runner=runner, kill_wait=1.0) as made:
        yield made


def script(directory, body):
    return f"#!/bin/sh\n#SBATCH --output={directory}/out.%j\n{body}\n"


def test_job_runs_in_a_ray_worker_with_its_environment_and_exit_code(ray_slurm, tmp_path):
    body = 'echo "$SLURM_JOB_ID $MINE"; tr "\\0" "\\n" < /proc/$PPID/cmdline | head -1; exit 3'
    job_id = ray_slurm.sbatch(script(tmp_path, body), env={"PATH": os.environ["PATH"], "MINE": "yes"}, cwd=tmp_path)
    job = ray_slurm.wait(job_id, timeout_s=90)
    assert (job.state, job.exit_code) == (JobState.FAILED, 3)
    first, parent = (tmp_path / f"out.{job_id}").read_text().splitlines()
    assert first == f"{job_id} yes"
    assert parent.startswith("ray::")


def test_scancel_kills_the_process_in_the_worker(ray_slurm, tmp_path):
    job_id = ray_slurm.sbatch(script(tmp_path, f"echo $$ > {tmp_path}/pid; exec sleep 600"), cwd=tmp_path)
    ray_slurm.wait(job_id, lambda job: job.state is JobState.RUNNING, timeout_s=90)
    ray_slurm.scancel(job_id)
    job = ray_slurm.wait(job_id, timeout_s=90)
    assert job.state is JobState.CANCELLED
    assert job.signal in (9, 15)


def test_program_that_does_not_exist_fails_the_job_with_a_reason(ray_slurm, tmp_path):
    job_id = ray_slurm.sbatch(f"#!/no/such/shell\n#SBATCH --output={tmp_path}/out.%j\n", cwd=tmp_path)
    job = ray_slurm.wait(job_id, timeout_s=90)
    assert (job.state, job.exit_code) == (JobState.FAILED, 1)
    assert "No such file or directory" in (tmp_path / f"out.{job_id}").read_text()


def test_srun_returns_what_the_worker_wrote(ray_slurm):
    done = ray_slurm.srun(["/bin/sh", "-c", "echo out; exit 5"], timeout_s=90)
    assert (done.returncode, done.stdout) == (5, "out\n")
