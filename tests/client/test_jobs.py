"""Jobs that go through Slurm, the real hooks and the plugin, and then really connect. On both back ends."""

from __future__ import annotations

import sys

import pytest

from fake_cluster.slurm.interface import JobState, SlurmSettings
from fake_cluster.slurm.real import RealSlurm, available
from fake_cluster.slurm.simulated import SimulatedSlurm
from juice_sim.client_build import install_client
from juice_sim.pytest_plugin import _build_plugin

pytestmark = pytest.mark.compiler


@pytest.fixture(params=["simulated", pytest.param("real", marks=pytest.mark.slurm)])
def slurm(request, juice_hooks, juice_directory, juice_controller):
    juice_controller.add_pool("test", gpus=2)
    command = install_client(juice_directory / "juice")
    settings = {
        "prolog": juice_hooks.prolog,
        "epilog": juice_hooks.epilog,
        "key_file": juice_hooks.key_file,
        "state_dir": juice_hooks.state_dir,
    }
    if request.param == "simulated":
        made = SimulatedSlurm(SlurmSettings(**settings), juice_dir=command.parent)
    else:
        if available():
            pytest.skip(available())
        line = f"required {_build_plugin(request)} {command} {juice_hooks.state_dir} key={juice_hooks.key_file}"
        made = RealSlurm(SlurmSettings(plugstack=[line], **settings))
    with made:
        yield made


def sessions(juice):
    return juice.client.sessions(everything=True)


LOOK = (
    'import ctypes; c = ctypes.CDLL("libcuda.so.1"); n = ctypes.c_size_t(); '
    "print(c.cuInit(0), c.cuDeviceTotalMem_v2(ctypes.byref(n), 0), n.value)"
)


def test_a_job_in_a_slice_sees_its_gpu_and_every_process_connects_once(
    slurm, juice_controller, juice_directory, wait_until
):
    output = juice_directory / "out"
    output.touch(0o666)
    output.chmod(0o666)
    script = (
        f"#!/bin/sh\nnvidia-smi --query-gpu=name,memory.total --format=csv,noheader\n{sys.executable} -c '{LOOK}'\n"
    )
    job_id = slurm.sbatch(script, options=["--juice-pool=test", "--juice-vram=1", f"--output={output}", "--chdir=/tmp"])
    job = slurm.wait(job_id, timeout_s=120)
    assert (job.state, output.read_text()) == (JobState.COMPLETED, f"NVIDIA A10, 1024 MiB\n0 0 {1 << 30}\n")
    (session,) = wait_until(
        lambda: [one for one in sessions(juice_controller) if one.state == "closed"], "the epilog has released"
    )
    connections = juice_controller.client.session(session.id).connections
    by_pid = {c.pid: c for c in connections}
    assert len(by_pid) == len(connections) == 3
    names = sorted(c.process_name for c in connections)
    assert "nvidia-smi" in names and any(name.startswith("python") for name in names)
    assert {c.exit_code for c in connections} == {0}


def test_a_job_whose_session_is_cancelled_is_ended(slurm, juice_controller, juice_directory, wait_until):
    error = juice_directory / "err"
    error.touch()
    error.chmod(0o666)
    job_id = slurm.sbatch(
        "#!/bin/sh\nsleep 300\necho survived\n",
        options=["--juice-pool=test", f"--output={error}", "--chdir=/tmp", "--no-requeue"],
    )
    (session,) = wait_until(lambda: sessions(juice_controller), "a session", 60)
    wait_until(
        lambda: {c.process_name for c in juice_controller.client.session(session.id).connections or []} >= {"sleep"},
        "the job's program is connected",
        60,
    )
    juice_controller.client.release_session(session.id)
    job = slurm.wait(job_id, timeout_s=120)
    assert job.state is JobState.FAILED
    assert "has been cancelled; its programs are ended" in error.read_text()
    assert "survived" not in error.read_text()
    codes = {c.exit_code for c in juice_controller.client.session(session.id).connections}
    assert codes == {-1}


def test_a_job_without_juice_is_left_alone(slurm, juice_controller):
    done = slurm.srun(["/bin/sh", "-c", 'echo "[$LD_PRELOAD]"'])
    assert (done.returncode, done.stdout) == (0, "[]\n")
    assert sessions(juice_controller) == []
