"""From Slurm's text to jobs and node states; the texts are shortened prints of scontrol 22.05 and 24.11."""

from __future__ import annotations

import pytest

from fake_cluster.slurm.interface import JobState
from fake_cluster.slurm.slurm_parse import (
    ParseError,
    expand_hosts,
    parse_jobs,
    parse_node_states,
    state_of,
    task_ids,
)

RUNNING = """JobId=7 ArrayJobId=5 ArrayTaskId=2 JobName={name}
   UserId=alice(1000) GroupId=users(100) MCS_label=N/A
   Priority=1 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   Requeue=1 Restarts=3 BatchFlag=1 Reboot=0 ExitCode=0:0
   SubmitTime=1796066431 EligibleTime=1796066432
   StartTime=1796066433 EndTime=1827602432 Deadline=N/A
   Partition=main AllocNode:Sid=localhost:3353
   NodeList=node[1-2]
   Command=/tmp/a b JobState=FAILED.sh
   WorkDir=/tmp
   StdErr=/tmp/x y.out
   StdOut=/tmp/x y.out

"""
WAITING = """JobId=5 ArrayJobId=5 ArrayTaskId=0-2,7%3 ArrayTaskThrottle=3 JobName=sbatch
   UserId=root(0) GroupId=root(0) MCS_label=N/A
   JobState=PENDING Reason=BeginTime Dependency=(null)
   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=0:0
   SubmitTime=1796066431 EligibleTime=Unknown
   StartTime=1827602432 EndTime=Unknown Deadline=N/A
   NodeList=
   StdOut=/tmp/out

"""


def test_a_running_job() -> None:
    (job,) = parse_jobs(RUNNING.format(name="train"))
    assert (job.job_id, job.array_job_id, job.array_task_id, job.restarts) == (7, 5, 2, 3)
    assert (job.name, job.user_id, job.state, job.reason) == ("train", 1000, JobState.RUNNING, "")
    assert job.nodes == ("node1", "node2")
    assert (job.submit_time, job.eligible_time, job.start_time) == (1796066431.0, 1796066432.0, 1796066433.0)
    assert job.end_time is None  # of a running job it is its time limit
    assert str(job.stdout) == "/tmp/x y.out"


@pytest.mark.parametrize("name", ["a b", "x JobState=COMPLETED UserId=root(0)", "JobId=1 JobName=y", "=", "Restarts=9"])
def test_a_job_name_forges_nothing(name: str) -> None:
    (job,) = parse_jobs(RUNNING.format(name=name))
    assert (job.job_id, job.name, job.user_id, job.state, job.restarts) == (7, name, 1000, JobState.RUNNING, 3)


def test_waiting_tasks_of_an_array_are_one_job_each() -> None:
    jobs = parse_jobs(WAITING + RUNNING.format(name="t"))
    assert [(job.job_id, job.array_task_id) for job in jobs] == [(5, 0), (5, 1), (5, 2), (5, 7), (7, 2)]
    assert jobs[0].start_time is None  # what is printed is a forecast
    assert jobs[0].eligible_time is None
    assert jobs[0].reason == "BeginTime"


def test_no_jobs() -> None:
    assert parse_jobs("No jobs in the system\n") == []


def test_text_that_is_not_understood_is_an_error_that_shows_it() -> None:
    with pytest.raises(ParseError, match=r"JobState.*NEWSTATE"):
        parse_jobs(WAITING.replace("PENDING", "NEWSTATE"))


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("COMPLETED", JobState.COMPLETED),
        ("CANCELLED by 0", JobState.CANCELLED),
        ("REQUEUE_HOLD", JobState.PENDING),
        ("OUT_OF_MEMORY", JobState.FAILED),
        ("NODE_FAIL", JobState.NODE_FAIL),
    ],
)
def test_states(text: str, state: JobState) -> None:
    assert state_of(text) is state


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("IDLE", "idle"),
        ("MIXED", "mixed"),
        ("MIXED*", "mixed*"),
        ("IDLE+DRAIN", "drained"),
        ("MIXED+DRAIN", "draining"),
        ("DOWN*+NOT_RESPONDING", "down*"),
        ("ALLOCATED+COMPLETING", "completing"),
    ],
)
def test_node_states(text: str, state: str) -> None:
    printed = f"NodeName=node1 Arch=x86_64 CoresPerSocket=4 \n   State={text} ThreadsPerCore=1\n   Partitions=main\n"
    assert parse_node_states(printed) == {"node1": state}


@pytest.mark.parametrize(
    ("text", "names"),
    [("", []), ("n1", ["n1"]), ("n[1-3,7],x", ["n1", "n2", "n3", "n7", "x"]), ("n[08-10]", ["n08", "n09", "n10"])],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert expand_hosts(text) == names


@pytest.mark.parametrize(
    ("text", "ids"), [("", []), ("N/A", []), ("4", [4]), ("0-3,7%2", [0, 1, 2, 3, 7]), ("0-8:4", [0, 4, 8])]
)
def test_task_ids(text: str, ids: list[int]) -> None:
    assert task_ids(text) == ids
