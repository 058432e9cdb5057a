"""What the simulated back end offers beyond the interface."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from pathlib import Path

import pytest

from fake_cluster.slurm.interface import CommandFailed, JobState, SlurmSettings, SubmitError
from fake_cluster.slurm.simulated import SimulatedSlurm

UNTIL_GO = "while [ ! -e {directory}/go ]; do /bin/sleep 0.05; done"


def children() -> set[str]:
    with open(f"/proc/{os.getpid()}/task/{os.getpid()}/children") as file:
        return set(file.read().split())


def test_crash_variants_differ_in_what_becomes_of_the_first_prolog(simulated):
    simulated.start(prolog=UNTIL_GO, simulated={"crash": "runs_on"})
    job_id = simulated.submit()
    simulated.until_journal(job_id, "prolog begins 0")
    simulated.slurm.kill_slurmctld(9)
    simulated.slurm.start_slurmctld()
    simulated.until_journal(job_id, "prolog begins 0", 2)
    simulated.go()
    assert simulated.ended(job_id).state is JobState.COMPLETED
    # Both have come to their end, side by side; only one of them counted.
    simulated.until_journal(job_id, "prolog ends 0", 2)
    assert simulated.journal(job_id).count("epilog begins 0") == 1


def test_crash_in_which_the_first_prolog_dies(simulated):
    simulated.start(prolog=UNTIL_GO, simulated={"crash": "dies"})
    job_id = simulated.submit()
    simulated.until_journal(job_id, "prolog begins 0")
    simulated.slurm.kill_slurmctld(9)
    simulated.slurm.start_slurmctld()
    simulated.until_journal(job_id, "prolog begins 0", 2)
    simulated.go()
    assert simulated.ended(job_id).state is JobState.COMPLETED
    assert simulated.journal(job_id).count("prolog ends 0") == 1


def test_stale_state_after_a_crash_runs_a_job_again_with_the_same_restart_count(simulated):
    # Seen on 22.05.8: the state is saved at most every 5 s.
    simulated.start(epilog=UNTIL_GO, simulated={"stale_state": True})
    job_id = simulated.submit(f"echo ran >> {simulated.records}/ran")
    simulated.until_journal(job_id, "epilog begins 0")
    simulated.slurm.kill_slurmctld(9)
    simulated.slurm.start_slurmctld()
    simulated.go()
    job = simulated.ended(job_id)
    assert (job.state, job.restarts) == (JobState.COMPLETED, 0)
    assert (simulated.records / "ran").read_text() == "ran\nran\n"
    assert simulated.journal(job_id).count("prolog begins 0") == 2


def test_unknown_crash_variant_is_an_error():
    with pytest.raises(ValueError, match="crash='never': accepted are dies, runs_on, either"):
        SimulatedSlurm(crash="never")


def test_stillborn_epilog_leaves_no_trace_but_the_job_ends(simulated):
    simulated.start(prolog=UNTIL_GO, simulated={"stillborn_epilog": 1.0})
    job_id = simulated.submit()
    simulated.until_journal(job_id, "prolog begins 0")
    simulated.slurm.scancel(job_id)
    assert simulated.ended(job_id).state is JobState.CANCELLED
    assert simulated.journal(job_id) == ["prolog begins 0"]
    assert "EpilogSlurmctld exit status 0:9" in simulated.slurm.log()


def test_commands_while_slurmctld_is_down_say_so(simulated):
    slurm = simulated.start()
    job_id = simulated.submit("true", "--begin=now+600")
    slurm.kill_slurmctld(9)
    with pytest.raises(SubmitError, match="Batch job submission failed: Unable to contact slurm controller"):
        simulated.submit()
    for call in (lambda: slurm.scancel(job_id), slurm.jobs, lambda: slurm.job(job_id), slurm.node_states):
        with pytest.raises(CommandFailed, match="Unable to contact slurm controller"):
            call()
    slurm.start_slurmctld()
    assert slurm.job(job_id).state is JobState.PENDING


def test_saved_state_is_on_disk_and_is_what_the_next_slurmctld_knows(simulated, tmp_path):
    slurm = simulated.start(simulated={"directory": tmp_path / "slurm"})
    job_id = simulated.submit("true", "--begin=now+600", "--job-name=kept", "--array=0-1")
    slurm.kill_slurmctld(9)
    state = json.loads((tmp_path / "slurm" / "state" / "job_state").read_text())
    assert [job["spec"]["name"] for job in state["jobs"]] == ["kept", "kept"]
    slurm.start_slurmctld()
    assert [(job.array_task_id, job.name) for job in slurm.jobs()] == [(1, "kept"), (0, "kept")]
    next_id = simulated.submit()
    assert next_id == job_id + 2


def test_story_of_a_job(simulated):
    slurm = simulated.start(prolog="[ $SLURM_JOB_RESTART_COUNT = 0 ] && RC=1", cred_expire=600)
    job_id = simulated.submit()
    slurm.wait(job_id, lambda job: job.reason == "BeginTime")
    slurm.release_begin_time(job_id)
    simulated.ended(job_id)
    told = [text for _, text in slurm.story(job_id)]
    assert told[:4] == [
        "PENDING",
        "CONFIGURING (Prolog)",
        "prolog_slurmctld starts, restart count 0",
        "PrologSlurmctld exit status 1:0",
    ]
    assert told[-1] == "COMPLETED"
    times = [at for at, _ in slurm.story(job_id)]
    assert times == sorted(times)


@pytest.mark.parametrize("name", ["prolog", "epilog"])
def test_hook_that_cannot_be_run_is_refused_at_the_start(tmp_path, name):
    path = tmp_path / "hook"
    path.write_text("#!/bin/sh\n")
    path.chmod(stat.S_IRUSR)
    with pytest.raises(ValueError, match=f"{name}=.*absolute path of an executable file"):
        SimulatedSlurm(SlurmSettings(**{name: path})).start()


def test_what_a_users_own_plugin_sets_reaches_the_hooks_with_the_prefix_only(simulated):
    slurm = simulated.start()
    forged = {"JUICE_POOL": "$(touch /tmp/x);`id`\nPATH=/evil", "PATH": "/evil", "LD_PRELOAD": "/evil.so"}
    script = f"#!/bin/sh\n#SBATCH --output={simulated.directory}/out.%j\ntrue\n"
    job_id = slurm.sbatch(script, job_control=forged, cwd=simulated.directory)
    simulated.ended(job_id)
    (env,) = simulated.environments("prolog", job_id)
    assert {name: value for name, value in env.items() if name.startswith("SPANK")} == {
        f"SPANK_{name}": value for name, value in forged.items()
    }
    assert "PATH" not in env and "LD_PRELOAD" not in env


def test_many_jobs_at_once_flow(simulated):
    simulated.start(nodes=4)
    ids = [simulated.submit(f"exit {i % 3}") for i in range(100)]
    jobs = [simulated.ended(job_id) for job_id in ids]
    assert [job.exit_code for job in jobs] == [i % 3 for i in range(100)]
    assert len(simulated.journal()) == 400
    assert set(simulated.slurm.node_states().values()) == {"idle"}


def test_stop_leaves_no_process_and_no_directory(simulated):
    before = children()
    slurm = simulated.start(prolog=f"[ $SLURM_JOB_NAME = blocked ] && {UNTIL_GO}")
    directory = slurm.directory
    simulated.submit("true", "--job-name=blocked")
    running = simulated.submit("trap '' TERM; sleep 600")
    simulated.until_state(running, JobState.RUNNING)
    slurm.stop()
    slurm.stop()
    assert children() == before
    assert not directory.exists()
    assert f"Allocate JobId={running} " in slurm.log()


def test_wait_that_is_in_vain_tells_the_story(simulated):
    slurm = simulated.start()
    job_id = simulated.submit("true", "--begin=now+600")
    with pytest.raises(TimeoutError, match="BeginTime") as failed:
        slurm.wait(job_id, timeout_s=0.1)
    assert "_slurm_rpc_submit_batch_job" in str(failed.value)
    with pytest.raises(KeyError):
        slurm.wait(job_id + 1, timeout_s=0.1)


def test_lost_node_is_noticed_only_after_slurmd_timeout(simulated):
    slurm = simulated.start(nodes=1, simulated={"slurmd_timeout": 1.0})
    job_id = simulated.submit("sleep 600", "--no-requeue")
    simulated.until_state(job_id, JobState.RUNNING)
    slurm.fail_node("node1")
    assert slurm.node_states() == {"node1": "mixed"}
    assert simulated.ended(job_id).state is JobState.NODE_FAIL
    assert slurm.node_states() == {"node1": "down"}
    with pytest.raises(KeyError, match="node7"):
        slurm.fail_node("node7")


@pytest.mark.skipif(os.getuid() != 0, reason="only root may run jobs of other users")
def test_jobs_with_their_users_rights(simulated):
    slurm = simulated.start(simulated={"as_user": True})
    # pytest's own directories let only their owner in.
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        directory.chmod(0o777)
        script = f"#!/bin/sh\n#SBATCH --output={directory}/out\nid -u\n"
        job_id = slurm.sbatch(script, user_id=65534, cwd=directory)
        assert simulated.ended(job_id).state is JobState.COMPLETED
        assert (directory / "out").read_text() == "65534\n"
        assert (directory / "out").stat().st_uid == 65534


def test_what_a_job_leaves_in_a_session_of_its_own_ends_with_the_job(simulated):
    simulated.start()
    job = simulated.submit(f"setsid sleep 300 </dev/null >/dev/null 2>&1 & echo $! > {simulated.directory}/stray")
    assert simulated.ended(job).state is JobState.COMPLETED
    stray = int((simulated.directory / "stray").read_text())
    simulated.until("the stray process is gone", lambda: not _lives(stray))


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
