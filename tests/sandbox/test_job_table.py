from __future__ import annotations

import pytest

from fake_cluster.sandbox.job_table import BadFormat, elapsed, job_record, numbers, sinfo_text, squeue_text
from fake_cluster.slurm.interface import Job, JobState
from fake_cluster.slurm.slurm_parse import parse_jobs


def job(job_id: int, state: JobState = JobState.PENDING, **fields: object) -> Job:
    return Job(job_id, "wrap", 0, state, **fields)  # type: ignore[arg-type]


def test_squeue_has_slurms_columns():
    lines = squeue_text([job(7, reason="Resources")]).splitlines()
    assert lines == [
        "             JOBID PARTITION     NAME     USER ST       TIME  NODES NODELIST(REASON)",
        "                 7     debug     wrap     root PD       0:00      1 (Resources)",
    ]


def test_waiting_tasks_of_an_array_are_one_line_and_the_others_one_each():
    tasks = [job(10 + n, array_job_id=20, array_task_id=n) for n in (0, 1, 2, 5)]
    running = job(14, JobState.RUNNING, array_job_id=20, array_task_id=6, nodes=("node1",), start_time=0.0)
    shown = squeue_text([*tasks, running], "%i %t %R", heading=False).splitlines()
    assert shown == ["20_[0-2,5] PD (None)", "20_6 R node1"]


def test_a_format_that_is_not_known_is_refused():
    with pytest.raises(BadFormat, match="%Q is not simulated"):
        squeue_text([], "%i %Q")


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0:00"), (65, "1:05"), (3723, "1:02:03"), (90061, "1-01:01:01"), (-3, "0:00")]
)
def test_elapsed_time_is_shown_as_slurm_does(seconds, text):
    assert elapsed(seconds) == text


def test_numbers_are_joined_to_ranges():
    assert numbers([3, 0, 1, 2, 7]) == "0-3,7"


def test_scontrols_record_can_be_read_by_the_reader_of_the_real_one():
    text = job_record(job(7, JobState.COMPLETED, restarts=2, exit_code=3, nodes=("node1", "node2")))
    assert parse_jobs(text) == [job(7, JobState.COMPLETED, restarts=2, exit_code=3, nodes=("node1", "node2"))]


def test_sinfo_groups_nodes_by_state():
    text = sinfo_text({"node1": "idle", "node2": "mixed", "node3": "idle", "node4": "down*"})
    assert [line.split()[3:] for line in text.splitlines()[1:]] == [
        ["1", "down*", "node4"],
        ["2", "idle", "node[1,3]"],
        ["1", "mix", "node2"],
    ]
