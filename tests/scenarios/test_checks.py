"""Each check holds on a correct record and fails on one with its fault planted in it."""

from __future__ import annotations

import pytest
from made_history import GIB, START, Made, large

from fake_cluster.checks import run_checks
from fake_cluster.checks_base import CheckResult
from fake_cluster.history import History, JobOutput, LogCompared
from fake_cluster.history_views import Views
from fake_cluster.results import compute_results
from fake_cluster.scenario import CheckSpec, Fault, JobGroup, PoolSpec, Scenario, When
from fake_cluster.slurm.interface import JobState
from juice_sim.core.model import AgentState


def scenario(checks: CheckSpec | None = None, **more: object) -> Scenario:
    return Scenario("made", [PoolSpec("test")], [JobGroup("g")], checks=checks or CheckSpec(), **more)  # type: ignore[arg-type]


def failed(history: History, checks: CheckSpec | None = None, **more: object) -> dict[str, CheckResult]:
    return {check.name: check for check in run_checks(history, scenario(checks, **more)) if not check.ok}


def test_a_correct_run_passes_every_check() -> None:
    history = large(300, 8)
    checks = CheckSpec(all_completed=True, min_completed=300, min_requeues=1, max_release_delay=1.0, gpus_shared=True)
    assert failed(history, checks) == {}


def test_two_slices_that_exceed_a_gpu() -> None:
    made = Made()
    made.agent()
    made.session("s1", 1, 1.0, 9.0, vram=16 * GIB)
    made.session("s2", 2, 5.0, 9.0, vram=16 * GIB)
    broken = failed(made.history())
    (violation,) = broken["no_overcommit"].violations
    assert "s2" in violation.message and "8 GiB too many" in violation.message
    assert violation.at == pytest.approx(START + 5.01)
    assert any("GPU 0 16 GiB" in line for line in violation.story)
    views = Views(made.history())
    assert compute_results(views, [])["gpus"]["overcommitted_bytes"] == 8 * GIB


def test_slices_that_follow_each_other_are_fine() -> None:
    made = Made()
    made.agent()
    made.session("s1", 1, 1.0, 5.0, vram=16 * GIB)
    made.session("s2", 2, 5.0, 9.0, vram=16 * GIB)
    assert "no_overcommit" not in failed(made.history())


@pytest.mark.parametrize("first, second", [(0, 1), (1, 0), (0, 0)])
def test_a_whole_gpu_is_shared(first: int, second: int) -> None:
    made = Made()
    made.agent(vram=24 * GIB)
    made.request("s1", 1, 1.0)
    made.assign("s1", 1.0, [(0, GIB, first == 0)])
    made.request("s2", 2, 2.0)
    made.assign("s2", 2.0, [(0, GIB, second == 0)])
    assert failed(made.history())["no_overcommit"].count == 1


def test_grants_of_gpus_that_do_not_exist_or_twice() -> None:
    made = Made()
    made.agent(gpus=2)
    made.request("s1", 1, 1.0)
    made.assign("s1", 1.0, [(7, GIB, False)])
    made.request("s2", 2, 1.0)
    made.assign("s2", 1.0, [(0, GIB, False), (0, GIB, False)])
    messages = [violation.message for violation in failed(made.history())["no_overcommit"].violations]
    assert any("no such GPU" in message for message in messages)
    assert any("granted twice" in message for message in messages)


def test_a_session_outlives_its_job() -> None:
    made = Made()
    made.agent()
    made.session("s1", 1, 1.0, None)
    made.ran(1, 1.5, 4.0)
    broken = failed(made.history())
    assert broken["no_session_left"].violations[0].subject == "session s1"
    assert any("COMPLETED" in line for line in broken["no_session_left"].violations[0].story)
    assert compute_results(Views(made.history()), [])["sessions"]["leaked"] == 1


def test_a_session_that_no_job_owns_is_left() -> None:
    made = Made()
    made.agent()
    made.session("s1", 99, 1.0, None)
    assert failed(made.history())["no_session_left"].count == 1


def test_a_job_runs_without_a_session() -> None:
    made = Made()
    made.agent()
    made.ran(1, 2.0, 6.0)
    assert "no session of it is active" in failed(made.history())["no_job_without_session"].violations[0].message


def test_a_job_runs_before_its_session_is_active() -> None:
    made = Made()
    made.agent()
    made.session("s1", 1, 4.0, 6.5)
    made.ran(1, 2.0, 6.0)
    assert failed(made.history())["no_job_without_session"].count == 1


def test_a_session_is_released_under_its_running_job() -> None:
    made = Made()
    made.agent()
    made.session("s1", 1, 1.0, 3.0)
    made.ran(1, 1.5, 6.0)
    violation = failed(made.history())["no_job_without_session"].violations[0]
    assert "closed at 3.000 s (deleted by its owner)" in violation.message


def test_a_session_lost_with_its_agent_is_no_violation() -> None:
    made = Made()
    made.agent()
    made.session("s1", 1, 1.0, None)
    made.agent_state("a1", AgentState.CLOSED, 3.0, "silent")
    made.close("s1", 3.0, "agent lost")
    made.ran(1, 1.5, 6.0, JobState.FAILED)
    assert "no_job_without_session" not in failed(made.history())


def test_the_session_of_an_earlier_attempt_does_not_count() -> None:
    made = Made()
    made.agent()
    made.session("s1", 1, 1.0, 1.6)
    made.ran(1, 1.2, 1.5, JobState.PENDING)
    made.job(1, 10.0, JobState.RUNNING, restarts=1, start_time=10.0)
    made.job(1, 12.0, JobState.COMPLETED, restarts=1, start_time=10.0, end_time=12.0)
    assert failed(made.history())["no_job_without_session"].count == 1


def test_jobs_that_were_refused_on_the_node_or_have_no_juice_options() -> None:
    made = Made()
    made.agent()
    made.ran(1, 2.0, 6.0, JobState.FAILED)
    made.prolog(1, 2.0, "denied")
    made.job(2, 2.0, JobState.RUNNING, juice={})
    made.job(2, 3.0, JobState.COMPLETED, juice={})
    made.ran(3, 2.0, 6.0, JobState.FAILED)
    made.entries.append(JobOutput(START + 6, 3, "", "juice: no session file for job 3 after 10 s\n"))
    assert "no_job_without_session" not in failed(made.history())


def test_a_het_component_that_was_denied_runs_nothing_beside_the_first_one() -> None:
    made = Made()
    made.agent()
    made.session("s1", 1, 1.0, 6.0)
    made.job(1, 2.0, JobState.RUNNING, het_job_id=1, het_offset=0)
    made.prolog(2, 1.0, "denied")
    made.job(2, 2.0, JobState.RUNNING, het_job_id=1, het_offset=1)
    for job in (1, 2):
        made.job(job, 5.0, JobState.COMPLETED, het_job_id=1, het_offset=job - 1)
    assert "no_job_without_session" not in failed(made.history())
    made.job(3, 2.0, JobState.RUNNING, het_job_id=3, het_offset=0)  # the first one has no such excuse
    made.prolog(3, 1.0, "denied")
    made.job(3, 5.0, JobState.COMPLETED, het_job_id=3, het_offset=0)
    assert failed(made.history())["no_job_without_session"].violations[0].subject == "job 3"


def test_two_sessions_of_one_job_at_once() -> None:
    made = Made()
    made.agent(gpus=2)
    made.session("s1", 1, 1.0, 6.0)
    made.session("s2", 1, 2.0, 6.0, index=1)
    broken = failed(made.history())["sessions_exclusive"]
    assert broken.violations[0].subject == "job 1"


def test_one_key_two_sessions() -> None:
    made = Made()
    made.agent()
    made.session("s1", 1, 1.0, 2.0, key="k")
    made.session("s2", 1, 3.0, 4.0, key="k")
    assert "s1, s2" in failed(made.history())["sessions_exclusive"].violations[0].message


@pytest.mark.parametrize("state", [JobState.PENDING, JobState.RUNNING, JobState.COMPLETING])
def test_a_job_that_has_not_ended(state: JobState) -> None:
    made = Made()
    made.submitted(1, 0.0)
    made.job(1, 1.0, state, reason="BeginTime")
    violation = failed(made.history())["every_job_ends"].violations[0]
    assert violation.subject == "job 1" and state.value in violation.message and "BeginTime" in violation.message


def test_a_submitted_job_that_slurm_does_not_know() -> None:
    made = Made()
    made.submitted(1, 0.0, tasks=3)
    made.job(1, 1.0, JobState.COMPLETED)
    assert "1 of its 3" in failed(made.history())["every_job_ends"].violations[0].message


def test_the_controller_forgot_what_it_had_said() -> None:
    made = Made()
    made.prolog(1, 2.0, "granted", session="s-unknown")
    made.entries.append(LogCompared(START + 50, 10, ("event 7 was SessionClosed, now it is SessionQueued",)))
    messages = [violation.message for violation in failed(made.history())["nothing_acknowledged_lost"].violations]
    assert any("event 7" in message for message in messages)
    assert any("s-unknown" in message for message in messages)


def test_the_run_was_cut_short() -> None:
    assert "time limit" in failed(Made().history(reason="time limit"))["ended_in_time"].violations[0].message


def test_a_fault_that_never_came() -> None:
    made = Made()
    faults = [Fault("agent_dies", When(at=1.0), position=0), Fault("node_fails", When(at=2.0), position=1)]
    made.fault(1.0, 0)
    assert failed(made.history(), faults=faults)["faults_injected"].violations[0].subject == "fault 2"


def test_an_end_state_that_the_group_does_not_expect() -> None:
    made = Made()
    made.ran(1, 2.0, 3.0, JobState.TIMEOUT)
    made.submitted(0, 4.0, error="sbatch: error: --juice-vram: nonsense")
    history = made.history()
    broken = {
        check.name: check
        for check in run_checks(history, Scenario("x", [PoolSpec("test")], [JobGroup("g", expect=["COMPLETED"])]))
    }["expected_end_states"]
    assert [violation.message for violation in broken.violations] == [
        "g: TIMEOUT, expected COMPLETED",
        "g #0 was refused at submit: sbatch: error: --juice-vram: nonsense",
    ]


@pytest.mark.parametrize(
    "checks, name",
    [
        (CheckSpec(all_completed=True), "all_completed"),
        (CheckSpec(min_completed=2), "min_completed"),
        (CheckSpec(max_requeues=1), "max_requeues"),
        (CheckSpec(min_requeues=3), "min_requeues"),
        (CheckSpec(max_restarts_per_job=1), "max_restarts_per_job"),
        (CheckSpec(max_queue_wait=5.0), "max_queue_wait"),
        (CheckSpec(max_prolog=1.0), "max_prolog"),
        (CheckSpec(max_release_delay=5.0), "max_release_delay"),
        (CheckSpec(gpus_shared=True), "gpus_shared"),
    ],
)
def test_what_a_scenario_asks_for_can_fail(checks: CheckSpec, name: str) -> None:
    made = Made()
    made.agent()
    made.submitted(1, 0.0)
    made.job(1, 0.1, JobState.PENDING, submit_time=0.0)
    made.job(1, 3.0, JobState.PENDING, submit_time=3.0, restarts=2)
    made.session("s1", 1, 9.0, 30.0, restarts=2)
    made.prolog(1, 10.0, "granted", 1.5, "s1")
    made.job(1, 10.0, JobState.RUNNING, submit_time=3.0, start_time=10.0, restarts=2)
    made.job(1, 12.0, JobState.COMPLETED, submit_time=3.0, start_time=10.0, end_time=12.0, restarts=2)
    made.ran(2, 20.0, 21.0, JobState.FAILED)
    made.prolog(2, 20.0, "denied")
    broken = failed(made.history(), checks)
    assert list(broken) == [name]
    assert broken[name].violations[0].message
