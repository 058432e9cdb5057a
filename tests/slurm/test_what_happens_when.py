"""Row by row: what Slurm does around PrologSlurmctld and EpilogSlurmctld. Both back ends must agree."""

from __future__ import annotations

import os
import threading

import pytest

from fake_cluster.slurm.interface import JobState

UNTIL_GO = "while [ ! -e {directory}/go ]; do /bin/sleep 0.05; done"
FIRST = "[ $SLURM_JOB_RESTART_COUNT = 0 ]"


def test_a_job_runs_between_its_hooks(bench):
    bench.start()
    job_id = bench.submit("exit 3")
    job = bench.ended(job_id)
    assert (job.state, job.exit_code, job.restarts) == (JobState.FAILED, 3, 0)
    assert bench.journal(job_id) == ["prolog begins 0", "prolog ends 0", "epilog begins 0", "epilog ends 0"]


def test_failing_prolog_requeues_a_batch_job_again_and_again(bench):
    bench.start(prolog="[ $SLURM_JOB_RESTART_COUNT -lt 2 ] && RC=1")
    job_id = bench.submit()
    job = bench.ended(job_id)
    assert (job.state, job.restarts) == (JobState.COMPLETED, 2)
    assert [e["SLURM_JOB_RESTART_COUNT"] for e in bench.environments("prolog", job_id)] == ["0", "1", "2"]


def test_requeued_job_waits_for_cred_expire_and_one_second(bench):
    bench.start(prolog=f"{FIRST} && RC=1")
    job_id = bench.submit()
    waiting = bench.slurm.wait(job_id, lambda job: job.state is JobState.PENDING and job.restarts == 1)
    bench.until("the reason", lambda: bench.slurm.job(job_id).reason == "BeginTime")
    assert abs(waiting.eligible_time - waiting.submit_time - 6.0) <= 1.0
    job = bench.ended(job_id)
    assert job.start_time >= waiting.eligible_time - 1.0


def test_user_can_end_the_delay_of_a_requeued_job(bench):
    bench.start(prolog=f"{FIRST} && RC=1", cred_expire=600)
    job_id = bench.submit()
    bench.slurm.wait(job_id, lambda job: job.state is JobState.PENDING and job.restarts == 1)
    bench.slurm.release_begin_time(job_id)
    job = bench.ended(job_id)
    assert (job.state, job.restarts) == (JobState.COMPLETED, 1)


def test_epilog_follows_a_failing_prolog_and_is_told_the_next_restart_count(bench):
    bench.start(prolog=f"{FIRST} && RC=1")
    job_id = bench.submit()
    bench.ended(job_id)
    assert bench.journal(job_id) == [
        "prolog begins 0",
        "prolog ends 0",
        "epilog begins 1",
        "epilog ends 1",
        "prolog begins 1",
        "prolog ends 1",
        "epilog begins 1",
        "epilog ends 1",
    ]


def test_failing_prolog_kills_srun(bench):
    bench.start(prolog="RC=1")
    done = bench.slurm.srun(["/bin/echo", "hello"])
    assert done.returncode == 1
    assert "PrologSlurmctld failed, job killed" in done.stderr
    assert done.stdout == ""
    job = bench.until("the job has ended", lambda: [j for j in bench.slurm.jobs() if j.state.ended])[0]
    assert (job.state, job.restarts) == (JobState.CANCELLED, 0)
    bench.until_epilog(job.job_id, 0)


def test_failing_prolog_cancels_a_job_without_requeue(bench):
    bench.start(prolog="RC=1")
    job_id = bench.submit("true", "--no-requeue")
    job = bench.ended(job_id)
    assert (job.state, job.restarts, job.exit_code) == (JobState.CANCELLED, 0, 0)
    bench.until_epilog(job_id, 0)


def test_prolog_over_its_time_limit_is_killed_and_the_job_requeued(bench):
    bench.start(prolog=f"{FIRST} && /bin/sleep 600", prolog_epilog_timeout=2)
    job_id = bench.submit()
    job = bench.ended(job_id)
    assert (job.state, job.restarts) == (JobState.COMPLETED, 1)
    assert "prolog ends 0" not in bench.journal(job_id)
    assert bench.journal(job_id)[:3] == ["prolog begins 0", "epilog begins 1", "epilog ends 1"]


def test_prolog_that_dies_by_a_signal_counts_as_successful(bench):
    bench.start(prolog="kill -9 $$")
    job_id = bench.submit("echo ran")
    job = bench.ended(job_id)
    assert (job.state, job.restarts) == (JobState.COMPLETED, 0)
    assert bench.output(job_id) == "ran\n"


def test_scancel_in_the_prolog_kills_its_process_group_and_the_epilog_follows(bench):
    # The child writes a line if it survives its parent.
    bench.start(prolog="(/bin/sleep 2; echo survived > {directory}/survivor.$SLURM_JOB_ID) & " + UNTIL_GO)
    job_id = bench.submit()
    bench.until_journal(job_id, "prolog begins 0")
    bench.slurm.scancel(job_id)
    job = bench.ended(job_id)
    assert (job.state, job.restarts) == (JobState.CANCELLED, 0)
    bench.until_epilog(job_id, 0)
    bench.go()
    second = bench.submit("sleep 3")
    bench.ended(second)
    assert not (bench.records / f"survivor.{job_id}").exists()
    assert "prolog ends 0" not in bench.journal(job_id)


def test_scancel_of_a_running_job_starts_the_epilog_before_its_processes_have_ended(bench):
    bench.start()
    # It ignores SIGTERM and goes on until SIGKILL, KillWait later.
    job_id = bench.submit(f"trap '' TERM; echo up; while :; do echo alive > {bench.records}/alive; sleep 0.1; done")
    bench.until("the job runs", lambda: (bench.records / "alive").exists())
    bench.slurm.scancel(job_id)
    bench.until_journal(job_id, "epilog begins 0")
    assert bench.slurm.job(job_id).state is JobState.COMPLETING
    job = bench.ended(job_id)
    assert (job.state, job.signal) == (JobState.CANCELLED, 9)


def test_scancel_of_a_pending_job_runs_no_hook(bench):
    bench.start()
    job_id = bench.submit("true", "--begin=now+3600")
    bench.slurm.scancel(job_id)
    assert bench.ended(job_id).state is JobState.CANCELLED
    other = bench.submit()
    bench.ended(other)
    assert bench.journal(job_id) == []


def test_slurmctld_killed_in_the_prolog_runs_it_again_with_the_same_restart_count(bench):
    bench.start(prolog=UNTIL_GO)
    job_id = bench.submit()
    bench.until_journal(job_id, "prolog begins 0")
    bench.slurm.kill_slurmctld(9)
    bench.slurm.start_slurmctld()
    bench.until_journal(job_id, "prolog begins 0", 2)
    assert "epilog begins 0" not in bench.journal(job_id)
    bench.go()
    job = bench.ended(job_id)
    assert (job.state, job.restarts) == (JobState.COMPLETED, 0)
    assert bench.journal(job_id).count("epilog begins 0") == 1


def test_slurmctld_terminated_in_the_prolog_runs_it_again(bench):
    bench.start(prolog=UNTIL_GO)
    job_id = bench.submit()
    bench.until_journal(job_id, "prolog begins 0")
    bench.slurm.kill_slurmctld(15)
    bench.slurm.start_slurmctld()
    bench.until_journal(job_id, "prolog begins 0", 2)
    bench.go()
    job = bench.ended(job_id)
    assert (job.state, job.restarts) == (JobState.COMPLETED, 0)
    # The first was killed, so only one has come to its end.
    assert bench.journal(job_id).count("prolog ends 0") == 1


def test_job_that_ends_while_slurmctld_is_down_is_completed_after_the_restart(bench):
    bench.start()
    job_id = bench.submit(f"while [ ! -e {bench.records}/go ]; do sleep 0.05; done; echo done > {bench.records}/done")
    bench.until_state(job_id, JobState.RUNNING)
    # slurmctld writes its state a moment after the change.
    other = bench.submit()
    bench.ended(other)
    bench.slurm.kill_slurmctld(15)
    bench.go()
    bench.until("the script has ended", lambda: (bench.records / "done").exists())
    bench.slurm.start_slurmctld()
    job = bench.ended(job_id)
    assert (job.state, job.restarts) == (JobState.COMPLETED, 0)
    assert bench.journal(job_id).count("prolog begins 0") == 1
    bench.until_journal(job_id, "epilog ends 0")


def test_slurmctld_terminated_in_the_epilog_runs_it_again(bench):
    bench.start(epilog=UNTIL_GO)
    job_id = bench.submit("exit 4")
    bench.until_journal(job_id, "epilog begins 0")
    bench.slurm.kill_slurmctld(15)
    bench.slurm.start_slurmctld()
    bench.until_journal(job_id, "epilog begins 0", 2)
    bench.go()
    job = bench.ended(job_id)
    assert (job.state, job.exit_code) == (JobState.FAILED, 4)


def test_failing_epilog_is_only_logged(bench):
    bench.start(epilog="RC=3")
    job_id = bench.submit()
    job = bench.ended(job_id)
    assert (job.state, job.exit_code, job.restarts) == (JobState.COMPLETED, 0, 0)
    bench.until("it is logged", lambda: f"JobId={job_id} EpilogSlurmctld exit status 3:0" in bench.slurm.log())


def test_epilog_over_its_time_limit_is_killed_and_the_job_completed(bench):
    bench.start(epilog="/bin/sleep 600", prolog_epilog_timeout=2)
    job_id = bench.submit()
    assert bench.ended(job_id).state is JobState.COMPLETED
    assert "epilog ends 0" not in bench.journal(job_id)


def test_child_of_a_hook_that_keeps_stdout_open_blocks_it(bench):
    bench.start(prolog="/usr/bin/setsid /bin/sh -c '" + UNTIL_GO + "' &")
    job_id = bench.submit()
    bench.until_journal(job_id, "prolog ends 0")
    # Another job with the same prolog goes through its beginning meanwhile: time passes, the first does not start.
    other = bench.submit()
    bench.until_journal(other, "prolog ends 0")
    assert bench.slurm.job(job_id).state is JobState.CONFIGURING
    bench.go()
    assert bench.ended(job_id).state is JobState.COMPLETED


def test_child_of_a_hook_with_its_own_session_and_closed_descriptors_blocks_nothing(bench):
    bench.start(prolog="/usr/bin/setsid /bin/sh -c '" + UNTIL_GO + "' > /dev/null 2>&1 < /dev/null &")
    job_id = bench.submit()
    assert bench.ended(job_id).state is JobState.COMPLETED
    bench.go()


def test_requeue_in_the_prolog_lets_it_run_on_beside_its_own_epilog(bench):
    bench.start(prolog=f"{FIRST} && {UNTIL_GO}")
    job_id = bench.submit()
    bench.until_journal(job_id, "prolog begins 0")
    bench.slurm.requeue(job_id)
    bench.until_journal(job_id, "epilog ends 1")
    assert "prolog ends 0" not in bench.journal(job_id)
    # Its delay is over at some time, but it waits for the old prolog.
    bench.slurm.release_begin_time(job_id)
    bench.until("it is being cleaned up", lambda: bench.slurm.job(job_id).reason == "Cleaning")
    assert bench.slurm.job(job_id).state is JobState.PENDING
    bench.go()
    job = bench.ended(job_id)
    assert (job.state, job.restarts) == (JobState.COMPLETED, 1)


def test_requeue_of_a_running_job(bench):
    bench.start()
    job_id = bench.submit(f"if [ -z $SLURM_RESTART_COUNT ]; then touch {bench.records}/first; sleep 600; fi")
    bench.until("the job runs", lambda: (bench.records / "first").exists())
    bench.slurm.requeue(job_id)
    job = bench.ended(job_id)
    assert (job.state, job.restarts) == (JobState.COMPLETED, 1)
    assert bench.journal(job_id)[2:4] == ["epilog begins 1", "epilog ends 1"]


def test_lost_node_requeues_its_batch_job(bench):
    bench.start(nodes=1, extra_conf=["SlurmdTimeout=5"])
    job_id = bench.submit(f"if [ -z $SLURM_RESTART_COUNT ]; then touch {bench.records}/first; sleep 600; fi")
    bench.until("the job runs", lambda: (bench.records / "first").exists())
    bench.slurm.fail_node("node1")
    bench.slurm.wait(job_id, lambda job: job.restarts == 1, timeout_s=90)
    bench.slurm.resume_node("node1")
    job = bench.ended(job_id)
    assert (job.state, job.restarts) == (JobState.COMPLETED, 1)


def test_cpus_are_free_before_the_epilog_has_ended(bench):
    bench.start(nodes=1, epilog=UNTIL_GO)
    first = bench.submit("true", "--ntasks=4")
    second = bench.submit("true", "--ntasks=4")
    bench.until_journal(second, "prolog begins 0")
    assert "epilog ends 0" not in bench.journal(first)
    bench.go()
    assert bench.ended(second).state is JobState.COMPLETED


def test_jobs_over_the_licenses_wait_without_a_prolog_until_the_epilog_has_ended(bench):
    bench.start(licenses="juice_test:2", epilog=UNTIL_GO)
    first = bench.submit("true", "--licenses=juice_test:2")
    second = bench.submit("true", "--licenses=juice_test:1")
    unlicensed = bench.submit()
    bench.until_journal(first, "epilog begins 0")
    bench.until_journal(unlicensed, "epilog begins 0")
    bench.until("it waits for licenses", lambda: bench.slurm.job(second).reason == "Licenses")
    assert bench.journal(second) == []
    bench.go()
    assert bench.ended(second).state is JobState.COMPLETED


def test_srun_returns_the_output_and_exit_code_of_its_command(bench):
    bench.start()
    done = bench.slurm.srun(["/bin/sh", "-c", "echo out; echo err >&2; exit 7"])
    assert (done.returncode, done.stdout) == (7, "out\n")
    assert "err\n" in done.stderr


def test_srun_that_is_cancelled(bench):
    bench.start()
    found: list[int] = []
    there = threading.Event()

    def on_job_id(job_id: int) -> None:
        found.append(job_id)
        there.set()

    def cancel() -> None:
        there.wait(60)
        bench.until_state(found[0], JobState.RUNNING)
        bench.until("the command runs", lambda: (bench.records / "runs").exists())
        bench.slurm.scancel(found[0])

    thread = threading.Thread(target=cancel)
    thread.start()
    command = ["/bin/sh", "-c", f"touch {bench.records}/runs; exec sleep 600"]
    done = bench.slurm.srun(command, on_job_id=on_job_id)
    thread.join()
    assert done.returncode == 143
    assert bench.ended(found[0]).state is JobState.CANCELLED


@pytest.mark.skipif(os.getuid() != 0, reason="only root may submit for others")
def test_user_id_of_a_job(bench):
    bench.start()
    (bench.directory / "out").mkdir()
    (bench.directory / "out").chmod(0o777)
    job_id = bench.slurm.sbatch(
        f"#!/bin/sh\n#SBATCH --output={bench.directory}/out/%j\ntrue\n", user_id=65534, cwd=bench.directory / "out"
    )
    assert bench.ended(job_id).user_id == 65534
    assert bench.environments("prolog", job_id)[0]["SLURM_JOB_UID"] == "65534"
