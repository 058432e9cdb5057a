"""A private Slurm starts, stops, breaks and leaves nothing behind, whatever becomes of its owner."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_cluster.slurm.interface import JobState, SlurmSettings, SubmitError
from fake_cluster.slurm.real import RealSlurm

from .processes import alive, eventually

pytestmark = pytest.mark.slurm
MakeSlurm = Callable[..., RealSlurm]
NOBODY = 65534
CHECKOUT = Path(__file__).parents[2]
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can submit jobs for other users")


def hook(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_idle_after_start_and_runs_jobs(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(nodes=3)
    assert slurm.node_states() == {"node1": "idle", "node2": "idle", "node3": "idle"}
    done = slurm.wait(slurm.sbatch("echo from $SLURM_JOB_ID; exit 3"))
    assert (done.state, done.exit_code, done.user_id) == (JobState.FAILED, 3, os.geteuid())
    assert done.stdout is not None and done.stdout.read_text() == f"from {done.job_id}\n"
    ran = slurm.srun(["sh", "-c", "echo out; echo err >&2; exit 5"])
    assert (ran.returncode, ran.stdout) == (5, "out\n")
    assert "err" in ran.stderr.splitlines()


def test_daemons_run_under_slurms_own_names(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(nodes=1)
    names = {name: Path(f"/proc/{pid}/comm").read_text().strip() for name, pid in slurm.pids.items()}
    assert names == {"munged": "munged", "slurmctld": "slurmctld", "node1": "slurmd"}


def test_nothing_is_left_after_stop(make_slurm: MakeSlurm, tmp_path: Path) -> None:
    # The hook's child is in a session of its own before the hook ends, or Slurm would kill it with the hook's process
    # group; what the job leaves behind is in another.
    child = f"setsid sh -c 'echo > {tmp_path}/ready; exec sleep 600' </dev/null >/dev/null 2>&1 &"
    prolog = hook(tmp_path / "prolog", f"{child}\nwhile [ ! -e {tmp_path}/ready ]; do sleep 0.02; done")
    slurm = make_slurm(nodes=2, prolog=prolog)
    job = slurm.sbatch("setsid sleep 600 & sleep 600")
    slurm.wait(job, lambda job: job.state is JobState.RUNNING)
    eventually(lambda: _sleeps(slurm) >= 3, "hook and job have started their processes")
    pids = [*slurm.daemons.descendants(), slurm.daemons.supervisor_pid]
    directory = slurm.layout.directory
    slurm.stop()
    assert alive(pids) == []
    assert not directory.exists()
    assert f"JobId={job}" in slurm.log()
    slurm.stop()  # twice is fine


def _sleeps(slurm: RealSlurm) -> int:
    count = 0
    for pid in slurm.daemons.descendants():
        try:
            count += Path(f"/proc/{pid}/cmdline").read_bytes() == b"sleep\x00600\x00"
        except (FileNotFoundError, ProcessLookupError):
            continue
    return count


def test_a_given_directory_stays_and_is_used_again(prefix: Path | None, tmp_path: Path) -> None:
    settings = SlurmSettings(nodes=1)
    with RealSlurm(settings, prefix, tmp_path / "s") as slurm:
        first = slurm.wait(slurm.sbatch("true"))
        slurm.kill_slurmctld(signal.SIGTERM)  # its state is saved in order
    assert (tmp_path / "s" / "log" / "slurmctld.log").exists()
    with RealSlurm(settings, prefix, tmp_path / "s") as slurm:
        assert slurm.job(first.job_id).state is JobState.COMPLETED
        assert slurm.sbatch("true") > first.job_id


def test_several_side_by_side(make_slurm: MakeSlurm) -> None:
    one, two = make_slurm(nodes=1, cluster_name="one"), make_slurm(nodes=1, cluster_name="two")
    for slurm in (one, two):
        ran = slurm.srun(["sh", "-c", "echo $SLURM_CLUSTER_NAME"])
        assert ran.stdout == f"{slurm.settings.cluster_name}\n"
    one.stop()
    assert two.srun(["true"]).returncode == 0


def test_several_started_at_once(prefix: Path | None) -> None:
    slurms = [RealSlurm(SlurmSettings(nodes=2), prefix) for _ in range(4)]
    failures: list[BaseException] = []

    def start(slurm: RealSlurm) -> None:
        try:
            slurm.start()
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=start, args=(slurm,)) for slurm in slurms]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert failures == []
        assert [slurm.srun(["true"]).returncode for slurm in slurms] == [0] * 4
    finally:
        for slurm in slurms:
            slurm.stop()


OWNER = """
import json, pathlib, sys, time
from fake_cluster.slurm.interface import SlurmSettings
from fake_cluster.slurm.real import RealSlurm
slurm = RealSlurm(SlurmSettings(nodes=2), pathlib.Path(sys.argv[1]) if sys.argv[1] else None)
with slurm:
    job = slurm.sbatch("setsid sleep 600 & sleep 600")
    slurm.wait(job, lambda job: job.state.value == "RUNNING")
    pids = [*slurm.daemons.descendants(), slurm.daemons.supervisor_pid]
    print(json.dumps({"pids": pids, "directory": str(slurm.layout.directory)}), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("sig", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_nothing_is_left_when_the_owner_is_killed(prefix: Path | None, sig: signal.Signals) -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(prefix or "")],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        cwd=CHECKOUT,
    )
    assert owner.stdout is not None
    with owner, owner.stdout:
        said = json.loads(owner.stdout.readline())
        assert len(alive(said["pids"])) >= 5  # supervisor, munged, slurmctld, two slurmd, ...
        owner.send_signal(sig)
        owner.wait(60)
    eventually(lambda: alive(said["pids"]) == [], "all processes are gone")
    eventually(lambda: not Path(said["directory"]).exists(), "the directory is gone")


def test_daemons_die_with_the_supervisor(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(nodes=1)
    pids = list(slurm.pids.values())
    os.kill(slurm.daemons.supervisor_pid, signal.SIGKILL)
    eventually(lambda: alive(pids) == [], "the daemons are gone")
    with pytest.raises(RuntimeError, match="supervisor"):
        slurm.daemons.descendants()
    slurm.stop()
    assert not slurm.layout.directory.exists()


def test_slurmctld_crashes_and_comes_back(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(nodes=1)
    job = slurm.wait(slurm.sbatch("sleep 600"), lambda job: job.state is JobState.RUNNING)
    slurm.kill_slurmctld(signal.SIGTERM)
    assert "slurmctld" not in slurm.pids
    slurm.start_slurmctld()
    assert slurm.job(job.job_id).state is JobState.RUNNING
    slurm.kill_slurmctld()
    slurm.start_slurmctld()
    with pytest.raises(RuntimeError, match="runs already"):
        slurm.start_slurmctld()
    slurm.scancel(job.job_id)
    assert slurm.wait(job.job_id).state is JobState.CANCELLED


def test_a_node_dies_with_its_jobs_and_comes_back(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(nodes=2)
    job = slurm.wait(
        slurm.sbatch("setsid sleep 600 & sleep 600", ["--nodelist=node1"]), lambda job: job.state is JobState.RUNNING
    )
    other = slurm.wait(slurm.sbatch("sleep 600", ["--nodelist=node2"]), lambda job: job.state is JobState.RUNNING)
    eventually(lambda: _sleeps(slurm) == 3, "both jobs run their programs")
    slurm.fail_node("node1")
    assert _sleeps(slurm) == 1
    assert "node1" not in slurm.pids and "node2" in slurm.pids
    requeued = slurm.wait(job.job_id, lambda job: job.restarts == 1)
    assert requeued.state in (JobState.PENDING, JobState.COMPLETING)
    assert slurm.node_states()["node1"].startswith("down")
    slurm.resume_node("node1")
    assert slurm.node_states()["node1"] in ("idle", "mixed")
    assert slurm.job(other.job_id).state is JobState.RUNNING
    with pytest.raises(KeyError, match="node9"):
        slurm.fail_node("node9")


def test_a_drained_node_is_resumed(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(nodes=1)
    slurm._scontrol("update", "NodeName=node1", "State=DRAIN", "Reason=test")
    assert slurm.node_states() == {"node1": "drained"}
    slurm.resume_node("node1")
    assert slurm.node_states() == {"node1": "idle"}


@as_root
def test_jobs_of_another_user(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(nodes=1)
    assert slurm.srun(["id", "-u"], user_id=NOBODY).stdout == f"{NOBODY}\n"
    done = slurm.wait(slurm.sbatch("id -u; id -G", user_id=NOBODY))
    assert done.user_id == NOBODY and done.stdout is not None
    assert done.stdout.read_text().split()[0] == str(NOBODY)
    assert done.stdout.stat().st_uid == NOBODY


@as_root
def test_slurmctld_as_a_plain_user(make_slurm: MakeSlurm) -> None:
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)  # hooks and trace must be within reach of nobody
        trace = Path(directory) / "trace"
        trace.touch()
        trace.chmod(0o666)
        prolog = hook(Path(directory) / "prolog", f"id -u >> {trace}")
        slurm = make_slurm(nodes=1, prolog=prolog, extra_conf=["SlurmUser=nobody"])
        assert slurm.srun(["id", "-u"]).stdout == "0\n"
        assert trace.read_text() == f"{NOBODY}\n"


AS_NOBODY = """
import os, pathlib, sys
os.setgroups([]); os.setgid(65534); os.setuid(65534)
from fake_cluster.slurm.real import RealSlurm
with RealSlurm(prefix=pathlib.Path(sys.argv[1]) if sys.argv[1] else None) as slurm:
    print(slurm.srun(["id", "-u"]).stdout.strip(), slurm.wait(slurm.sbatch("true")).state.value)
    try:
        slurm.sbatch("true", user_id=0)
    except PermissionError as error:
        print(error)
"""


@as_root
def test_all_of_it_as_a_plain_user(prefix: Path | None) -> None:
    # An interpreter and a copy of the sources that nobody can read, wherever this checkout lies.
    python = shutil.which("python3", path="/usr/bin:/usr/local/bin")
    if python is None or subprocess.run([python, "-c", "import sys; sys.exit(sys.version_info < (3, 10))"]).returncode:
        pytest.skip("no system-wide Python 3.10 or newer that a plain user could run")
    with tempfile.TemporaryDirectory() as directory:
        os.chmod(directory, 0o755)
        for package in ("fake_cluster", "juice_sim"):
            shutil.copytree(CHECKOUT / package, Path(directory) / package, ignore=shutil.ignore_patterns("__pycache__"))
        done = subprocess.run(
            [python, "-c", AS_NOBODY, str(prefix or "")], capture_output=True, text=True, cwd=directory, timeout=120
        )
    lines = done.stdout.splitlines()
    assert lines[:1] == [f"{NOBODY} COMPLETED"], done.stderr
    assert "only root can submit jobs for other users" in lines[1]


def test_the_environment_of_this_process_does_not_travel(
    make_slurm: MakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JUICE_TOKEN", "secret")
    monkeypatch.setenv("SLURM_JOB_ID", "77")
    slurm = make_slurm(nodes=1)
    ran = slurm.srun(["env"], env={"MINE": "1"})
    assert "secret" not in ran.stdout
    assert "MINE=1" in ran.stdout.splitlines()
    assert "SLURM_JOB_ID=1" in ran.stdout.splitlines()
    for pid in slurm.daemons.descendants():
        assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()


def test_secrets_and_doors(make_slurm: MakeSlurm) -> None:
    """The munge key is ours alone, and every daemon listens on loopback only."""
    slurm = make_slurm(nodes=2)
    assert stat.S_IMODE(slurm.layout.munge_key.stat().st_mode) == 0o600
    inodes = set()
    for pid in slurm.daemons.descendants():
        for descriptor in Path(f"/proc/{pid}/fd").iterdir():
            try:
                target = os.readlink(descriptor)
            except FileNotFoundError:
                continue
            if target.startswith("socket:["):
                inodes.add(target[8:-1])
    listening = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in Path(table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A" and fields[9] in inodes:
                listening.append(fields[1].split(":")[0])
    assert len(listening) >= 3
    assert set(listening) == {f"{int.from_bytes(socket.inet_aton('127.0.0.1'), sys.byteorder):08X}"}


def test_a_refused_submission_says_what_the_user_would_read(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(nodes=1)
    with pytest.raises(SubmitError, match=r"sbatch: error: .*invalid partition"):
        slurm.sbatch("true", ["--partition=nowhere"])
    with pytest.raises(KeyError):
        slurm.job(99)


def test_srun_tells_its_job_id_while_it_runs(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(nodes=1)
    seen: list[int] = []

    def cancel(job_id: int) -> None:
        seen.append(job_id)
        slurm.wait(job_id, lambda job: job.state is JobState.RUNNING)
        slurm.scancel(job_id)

    ran = slurm.srun(["sleep", "600"], on_job_id=cancel)
    assert ran.returncode != 0
    assert slurm.wait(seen[0]).state is JobState.CANCELLED


def test_jobs_carry_what_the_plugin_passes_to_the_hooks(make_slurm: MakeSlurm) -> None:
    """Read from the submission; the plugin itself is tested elsewhere, here Slurm only has to take its options."""
    slurm = make_slurm(nodes=2, plugstack=["# juice.so would be here"])
    env = {"JUICE_POOL": "test", "JUICE_VRAM": "1"}
    asked = {"JUICE_POOL": "test", "JUICE_GPU_COUNT": "1", "JUICE_VRAM": str(1 << 30)}
    job = slurm.wait(slurm.sbatch("true", env=env))
    assert asked.items() <= job.juice.items()
    array = slurm.sbatch("true", ["--array=0-1"], env=env)
    for task in (task for task in slurm.jobs() if task.array_job_id == array):
        assert asked.items() <= task.juice.items()
    assert slurm.wait(slurm.sbatch("true")).juice == {}
    seen: list[int] = []
    slurm.srun(["true"], env=env, on_job_id=seen.append)
    assert asked.items() <= slurm.job(seen[0]).juice.items()


def test_srun_that_takes_too_long_is_ended(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(nodes=1)
    with pytest.raises(TimeoutError, match="did not end within 1 s"):
        slurm.srun(["sleep", "600"], timeout_s=1.0)


def test_a_failing_prolog_kills_salloc(make_slurm: MakeSlurm, tmp_path: Path) -> None:
    """As it kills srun, which tests/slurm/ tests on every back end; the simulated one has no salloc."""
    tmp_path.chmod(0o755)
    slurm = make_slurm(nodes=1, prolog=hook(tmp_path / "prolog", "exit 1"))
    done = subprocess.run(
        [slurm.binaries["srun"].with_name("salloc"), "touch", tmp_path / "ran"],
        env=slurm.user_environment(),
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1
    assert "PrologSlurmctld failed, job killed" in done.stderr
    assert not (tmp_path / "ran").exists()
    eventually(lambda: [job.state for job in slurm.jobs()] == [JobState.CANCELLED], "the job is cancelled")


def test_licenses_follow_reconfigure(make_slurm: MakeSlurm) -> None:
    slurm = make_slurm(nodes=1, licenses="juice_test:1")
    first = slurm.wait(
        slurm.sbatch("sleep 600", ["--licenses=juice_test:1"]), lambda job: job.state is JobState.RUNNING
    )
    second = slurm.sbatch("true", ["--licenses=juice_test:1"])
    assert slurm.wait(second, lambda job: job.reason != "").reason == "Licenses"
    slurm.reconfigure(SlurmSettings(nodes=1, licenses="juice_test:2"))
    assert slurm.wait(second).state is JobState.COMPLETED
    slurm.scancel(first.job_id)


def test_a_start_that_fails_says_why_and_leaves_nothing(prefix: Path | None) -> None:
    slurm = RealSlurm(SlurmSettings(nodes=1, extra_conf=["SlurmctldPort=nonsense"]), prefix)
    with pytest.raises(TimeoutError, match="nonsense"):
        slurm.start()
    assert not slurm.layout.directory.exists()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (SlurmSettings(nodes=0), "nodes"),
        (SlurmSettings(cred_expire=4), "cred_expire: got 4; accepted: 5"),
        (SlurmSettings(prolog=Path("prolog")), "prolog: got 'prolog'; accepted: an absolute path"),
        (SlurmSettings(extra_conf=["A=1\nB=2"]), "single lines"),
    ],
)
def test_settings_that_slurmctld_would_die_of(settings: SlurmSettings, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RealSlurm(settings)
