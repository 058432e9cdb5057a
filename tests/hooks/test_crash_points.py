"""A hook may be killed between any two effects, and two may run side by side. Whatever the point, nothing is lost.

Real controller, real disk, real generators; only the scheduling is the test's.
"""

from __future__ import annotations

import pytest


def steps_of(site, process, verb, **job):
    """How many effects the hook has when nothing disturbs it."""
    hook = process(site, verb, **job)
    assert hook.run() == 0
    return hook.steps


@pytest.fixture
def prolog_steps(site, process, juice):
    count = steps_of(site, process, "prolog", job_id=1)
    assert site.epilog(job_id=1) == 0
    assert juice.settled() == []
    return count


def test_a_prolog_killed_anywhere_and_the_epilog_leave_nothing(site, process, juice, prolog_steps):
    for point in range(prolog_steps + 1):
        job = 100 + point
        hook = process(site, "prolog", job_id=job)
        hook.run(point)
        hook.kill()
        assert site.epilog(job_id=job) == 0, point
        assert juice.settled() == [], point
        assert site.leftovers() == [], point


def test_slurm_bug_11882_a_prolog_killed_anywhere_without_epilog_is_reaped(site, process, juice, prolog_steps):
    for point in range(prolog_steps + 1):
        job = 100 + point
        hook = process(site, "prolog", job_id=job)
        hook.run(point)
        hook.kill()
        assert site.reconcile({}) == 0, point
        assert juice.settled() == [], point
        assert [n for n in site.leftovers() if not n.endswith(".tmp")] == [], point


def test_slurm_bug_2789_the_prolog_runs_again_after_a_crash_of_slurmctld(site, process, juice, prolog_steps):
    for point in range(prolog_steps + 1):
        job = 100 + point
        first = process(site, "prolog", job_id=job)
        first.run(point)
        first.kill()
        assert site.prolog(job_id=job) == 0, point
        open_sessions = juice.settled()
        assert len(open_sessions) == 1, point
        assert site.fields(job)["session_id"] == open_sessions[0]["id"], point
        assert site.epilog(job_id=job) == 0
        assert juice.settled() == [], point
        assert site.leftovers() == [], point


def test_slurm_ticket_23482_two_prologs_for_one_job_at_once(site, process, juice, prolog_steps):
    for point in range(prolog_steps + 1):
        job = 100 + point
        first = process(site, "prolog", job_id=job)
        first.run(point)
        while first.holds_a_lock:
            first.step()
        assert site.prolog(job_id=job) == 0, point
        first.run()
        assert first.code == 0, point
        open_sessions = juice.settled()
        assert len(open_sessions) == 1, point
        assert site.fields(job)["session_id"] == open_sessions[0]["id"], point
        assert site.epilog(job_id=job) == 0
        assert juice.settled() == [], point
        assert site.leftovers() == [], point


def test_a_late_prolog_of_a_job_that_has_ended_leaves_nothing(site, process, juice, prolog_steps):
    for point in range(1, prolog_steps):
        job = 100 + point
        late = process(site, "prolog", job_id=job)
        late.run(point)
        while late.holds_a_lock:
            late.step()
        assert site.prolog(job_id=job) == 0, point
        assert site.epilog(job_id=job) == 0, point
        code = late.run()
        if late.steps > point and code == 0:
            # It came so late that it began anew: Slurm takes no notice of it, but reconcile finds what it holds.
            assert site.reconcile({}) == 0
        assert juice.settled() == [], point
        assert site.leftovers() == [], point


def test_a_late_prolog_never_takes_a_later_start_its_session(site, process, juice, prolog_steps):
    for point in range(1, prolog_steps):
        job = 100 + point
        late = process(site, "prolog", job_id=job)
        late.run(point)
        while late.holds_a_lock:
            late.step()
        assert site.epilog(job_id=job) == 0
        assert site.prolog(job_id=job, restart=1) == 0, point
        late.run()
        fields = site.fields(job)
        assert fields["restart_count"] == "1", point
        assert [s["id"] for s in juice.settled()] == [fields["session_id"]], point
        assert site.epilog(job_id=job, restart=1) == 0
        assert juice.settled() == [], point
        assert site.leftovers() == [], point


def test_an_epilog_killed_anywhere_is_finished_by_reconcile(site, process, juice, prolog_steps):
    assert site.prolog(job_id=50) == 0
    count = steps_of(site, process, "epilog", job_id=50)
    for point in range(count + 1):
        job = 100 + point
        assert site.prolog(job_id=job) == 0
        hook = process(site, "epilog", job_id=job)
        hook.run(point)
        hook.kill()
        assert site.reconcile({}) == 0, point
        assert juice.settled() == [], point
        assert site.leftovers() == [], point


def test_slurm_bug_12792_the_epilog_of_one_start_beside_the_prolog_of_the_next(site, process, juice, prolog_steps):
    assert site.prolog(job_id=50) == 0
    count = steps_of(site, process, "epilog", job_id=50)
    for point in range(count + 1):
        job = 100 + point
        assert site.prolog(job_id=job) == 0
        slow = process(site, "epilog", job_id=job)
        slow.run(point)
        while slow.holds_a_lock:
            slow.step()
        assert site.prolog(job_id=job, restart=1) == 0, point
        slow.run()
        assert slow.code == 0, point
        fields = site.fields(job)
        assert fields["restart_count"] == "1", point
        assert [s["id"] for s in juice.settled()] == [fields["session_id"]], point
        assert site.epilog(job_id=job, restart=1) == 0
        assert juice.settled() == [], point
        assert site.leftovers() == [], point


def test_the_epilog_of_one_start_beside_the_denied_prolog_of_the_next(site, process, juice):
    assert site.prolog(job_id=50) == 0
    count = steps_of(site, process, "epilog", job_id=50)
    for point in range(count + 1):
        job = 100 + point
        assert site.prolog(job_id=job) == 0
        slow = process(site, "epilog", job_id=job)
        slow.run(point)
        while slow.holds_a_lock:
            slow.step()
        assert site.prolog(job_id=job, restart=1, GPU_COUNT="x") == 0, point
        assert slow.run() == 0
        assert site.fields(job)["verdict"] == "denied", point
        assert juice.settled() == [], point
        assert site.epilog(job_id=job, restart=1) == 0
        assert site.leftovers() == [], point


def test_reconcile_at_any_instant_of_a_prolog_does_not_harm_it(site, process, juice, prolog_steps):
    for point in range(prolog_steps):
        job = 100 + point
        hook = process(site, "prolog", job_id=job)
        hook.run(point)
        while hook.holds_a_lock:
            hook.step()
        assert site.reconcile({}, later_s=0) == 0
        hook.run()
        assert hook.code == 0, point
        assert site.fields(job)["verdict"] == "granted"
        assert site.epilog(job_id=job) == 0
    assert juice.settled() == []


def test_soperator_829_the_next_prolog_cleans_up_what_an_earlier_start_left(site, juice):
    assert site.prolog() == 0
    assert site.prolog(restart=1) == 0
    assert len(juice.settled()) == 1
    assert site.fields()["restart_count"] == "1"
    assert [a["restart"] for a in site.attempts()] == [1]


def test_an_orphaned_prolog_that_gives_up_spares_the_session_of_its_successor(site, juice, process):
    juice.held.set()
    orphan = process(site, "prolog")
    while not site.attempts() or not site.attempts()[0]["session"]:
        assert orphan.step()
    while orphan.holds_a_lock:
        orphan.step()
    juice.held.clear()
    assert site.prolog() == 0
    wall_and_steady = orphan.machine.clock()
    orphan.machine.clock = lambda: (wall_and_steady[0], wall_and_steady[1] + 1000)
    orphan.machine.request = lambda *args: orphan.hook.Reply(0, error="a partition")
    assert orphan.run() == 1
    assert [s["id"] for s in juice.settled()] == [site.fields()["session_id"]]
    assert [a["state"] for a in site.attempts()] == ["asked"]


def test_a_fault_of_the_hook_itself_is_one_line_in_the_log(site, juice):
    (site.hooks / "juice_hook.py").write_text(
        (site.hooks / "juice_hook.py").read_text().replace("def reserve(job, body, until):", "def reserve(job, body):")
    )
    result = site.shell("juice-prolog.sh", env=site.environment())
    assert result.returncode == 1
    assert "a fault in juice_hook.py, line" in site.log()
    assert "Traceback" not in result.stderr
