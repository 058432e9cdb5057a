"""Arrays per task, het jobs per component. Both back ends must agree."""

from __future__ import annotations

from fake_cluster.slurm.interface import JobState

UNTIL_GO = "while [ ! -e {directory}/go ]; do /bin/sleep 0.05; done"
FIRST = "[ $SLURM_JOB_RESTART_COUNT = 0 ]"


def tasks(bench, array_id):
    return sorted((j for j in bench.slurm.jobs() if j.array_job_id == array_id), key=lambda j: j.array_task_id or 0)


def all_ended(bench, array_id, count):
    def ended():
        found = tasks(bench, array_id)
        return found if len(found) == count and all(job.state.ended for job in found) else None

    return bench.until("all tasks have ended", ended)


def het_job(bench):
    script = f"#!/bin/sh\n#SBATCH --output={bench.directory}/out.%j\n#SBATCH hetjob\n#SBATCH --ntasks=2\n"
    return bench.slurm.sbatch(script + "echo $SLURM_JOB_ID\nexit 2\n", cwd=bench.directory)


def test_each_task_of_an_array_is_a_job_and_the_last_one_has_the_arrays_id(bench):
    bench.start()
    array_id = bench.submit("exit $SLURM_ARRAY_TASK_ID", "--array=0-2")
    found = all_ended(bench, array_id, 3)
    assert [job.exit_code for job in found] == [0, 1, 2]
    assert [job.job_id for job in found] == [array_id + 1, array_id + 2, array_id]
    for job in found:
        bench.until_journal(job.job_id, "epilog ends 0")


def test_failing_prolog_requeues_that_task_alone(bench):
    bench.start(prolog=f"[ $SLURM_ARRAY_TASK_ID = 1 ] && {FIRST} && RC=1")
    array_id = bench.submit("true", "--array=0-2")
    found = all_ended(bench, array_id, 3)
    assert [(job.state, job.restarts) for job in found] == [
        (JobState.COMPLETED, 0),
        (JobState.COMPLETED, 1),
        (JobState.COMPLETED, 0),
    ]


def test_throttle_of_an_array(bench):
    bench.start(prolog=UNTIL_GO)
    array_id = bench.submit("true", "--array=0-4%2")
    bench.until("two prologs run", lambda: len(bench.journal()) == 2)
    last = bench.until(
        "the others wait for them",
        lambda: (job := bench.slurm.job(array_id)).reason == "JobArrayTaskLimit" and job,
    )
    assert last.state is JobState.PENDING
    assert len(bench.journal()) == 2
    bench.go()
    assert all(job.state is JobState.COMPLETED for job in all_ended(bench, array_id, 5))


def test_scancel_of_an_arrays_id_cancels_all_its_tasks(bench):
    bench.start(prolog=UNTIL_GO)
    array_id = bench.submit("true", "--array=0-3%2")
    bench.until("two prologs run", lambda: len(bench.journal()) == 2)
    bench.slurm.scancel(array_id)
    bench.until("all are cancelled", lambda: all(j.state is JobState.CANCELLED for j in bench.slurm.jobs()))
    bench.go()
    assert bench.ended(bench.submit()).state is JobState.COMPLETED


def test_hooks_of_a_het_job_run_per_component(bench):
    bench.start()
    leader = het_job(bench)
    job = bench.ended(leader)
    other = bench.ended(leader + 1)
    assert [(j.state, j.exit_code, j.het_job_id, j.het_offset) for j in (job, other)] == [
        (JobState.FAILED, 2, leader, 0),
        (JobState.FAILED, 2, leader, 1),
    ]
    assert bench.output(leader) == f"{leader}\n"
    for job_id, offset in ((leader, "0"), (leader + 1, "1")):
        (prolog,) = bench.environments("prolog", job_id)
        assert prolog["SLURM_JOB_ID"] == str(job_id)
        assert (prolog["SLURM_HET_JOB_ID"], prolog["SLURM_HET_JOB_OFFSET"]) == (str(leader), offset)
        assert len(bench.environments("epilog", job_id)) == 1
    assert set(job.nodes).isdisjoint(other.nodes)


def test_het_job_starts_when_every_prolog_has_succeeded(bench):
    bench.start(prolog=f"[ $SLURM_HET_JOB_OFFSET = 1 ] && {UNTIL_GO}")
    leader = het_job(bench)
    bench.until_journal(leader, "prolog ends 0")
    bench.until_journal(leader + 1, "prolog begins 0")
    # Another job passes through all its stages: time enough for the leader to start, if it could.
    bench.ended(bench.submit("true", "--ntasks=1"))
    assert not (bench.directory / f"out.{leader}").exists()
    bench.go()
    assert bench.ended(leader).exit_code == 2


def test_failing_component_requeues_the_whole_het_job_and_all_epilogs_run(bench):
    bench.start(prolog=f"[ $SLURM_HET_JOB_OFFSET = 1 ] && {FIRST} && RC=1")
    leader = het_job(bench)
    job, other = bench.ended(leader), bench.ended(leader + 1)
    assert [(j.restarts, j.exit_code) for j in (job, other)] == [(1, 2), (1, 2)]
    for job_id in (leader, leader + 1):
        counts = [line for line in bench.journal(job_id) if line.startswith("epilog begins")]
        assert counts == ["epilog begins 1", "epilog begins 1"]


def test_failing_leader_does_not_kill_the_prolog_of_the_other_component(bench):
    bench.start(prolog=f"if {FIRST}; then if [ $SLURM_HET_JOB_OFFSET = 0 ]; then RC=1; else {UNTIL_GO}; fi; fi")
    leader = het_job(bench)
    bench.until_journal(leader, "epilog ends 1")
    bench.until_journal(leader + 1, "epilog ends 1")
    if "prolog begins 0" in bench.journal(leader + 1):
        assert "prolog ends 0" not in bench.journal(leader + 1)
    bench.go()
    assert bench.ended(leader).restarts == 1


def test_failing_component_kills_a_het_srun(bench):
    bench.start(prolog="[ $SLURM_HET_JOB_OFFSET = 1 ] && RC=1")
    found: list[int] = []
    done = bench.slurm.srun(["/bin/echo", "hello"], ["--ntasks=1", ":", "--ntasks=1"], on_job_id=found.append)
    assert done.returncode == 1
    assert "PrologSlurmctld failed, job killed" in done.stderr
    assert "hello" not in done.stdout
    leader = min(job.job_id for job in bench.slurm.jobs())
    for job_id in (leader, leader + 1):
        assert bench.ended(job_id).state is JobState.CANCELLED
        bench.until_epilog(job_id, 0)


def test_scancel_of_a_het_job_cancels_every_component(bench):
    bench.start(prolog=UNTIL_GO)
    leader = het_job(bench)
    bench.until_journal(leader, "prolog begins 0")
    bench.until_journal(leader + 1, "prolog begins 0")
    bench.slurm.scancel(leader)
    for job_id in (leader, leader + 1):
        assert bench.ended(job_id).state is JobState.CANCELLED
        assert "prolog ends 0" not in bench.journal(job_id)
    bench.go()
