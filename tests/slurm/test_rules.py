"""The rules alone: no process, no clock."""

from __future__ import annotations

import pytest

from fake_cluster.slurm.interface import JobState, SubmitError
from fake_cluster.slurm.rules import PROLOG_FAILED, SlurmRules
from fake_cluster.slurm.rules_jobs import (
    ClusterConfig,
    Hook,
    JobSpec,
    KillHook,
    KillStep,
    LaunchStep,
    LoseStep,
    StartHook,
    TellUser,
)


class World:
    """Rules with a hand-turned clock; what they want done is kept until a test does it."""

    def __init__(self, random=None, **config):
        nodes = config.pop("nodes", {"node1": 4, "node2": 4})
        self.rules = SlurmRules(ClusterConfig(nodes=nodes, **config), random)
        self.now = 1000.0
        self.wanted = []

    def do(self, name, *args, **more):
        result = getattr(self.rules, name)(self.now, *args, **more)
        self.rules.validate()
        value = None
        if name == "submit":
            value, result = result
        self.wanted += result
        return value

    def submit(self, *specs, **spec):
        return self.do("submit", list(specs) or [JobSpec(**{"name": "job", "user_id": 1, **spec})])

    def take(self, kind):
        found = [one for one in self.wanted if isinstance(one, kind)]
        self.wanted = [one for one in self.wanted if not isinstance(one, kind)]
        return found

    def hooks(self, hook=None):
        return [start for start in self.take(StartHook) if hook is None or start.hook is hook]

    def pass_hooks(self, code=0):
        """Let all hooks that were started succeed (or fail with `code`), and those that follow from it."""
        while hooks := self.hooks():
            for start in hooks:
                self.do("hook_ended", start.run_id, code)

    def state(self, job_id):
        return self.rules.jobs[job_id].state

    def step(self, job_id):
        step = self.rules.jobs[job_id].step
        assert step is not None
        return step

    def at(self, now):
        """Turn the clock, stopping at every timer."""
        while (timer := self.rules.next_timer()) is not None and timer <= now:
            self.now = max(self.now, timer)
            self.do("time_passed")
        self.now = now
        self.do("time_passed")


def test_life_of_a_job():
    world = World()
    job_id = world.submit()
    (prolog,) = world.hooks()
    assert (prolog.hook, prolog.environment["SLURM_JOB_RESTART_COUNT"]) == (Hook.PROLOG, "0")
    assert world.state(job_id) is JobState.CONFIGURING
    assert world.take(LaunchStep) == []
    world.do("hook_ended", prolog.run_id, 0)
    (launch,) = world.take(LaunchStep)
    assert world.state(job_id) is JobState.RUNNING
    world.do("step_ended", launch.step, 3)
    (epilog,) = world.hooks()
    assert (epilog.hook, epilog.environment["SLURM_JOB_EXIT_CODE2"]) == (Hook.EPILOG, "3:0")
    assert world.state(job_id) is JobState.COMPLETING
    world.do("hook_ended", epilog.run_id, 0)
    assert (world.state(job_id), world.rules.view(job_id).exit_code) == (JobState.FAILED, 3)


def test_never_held_and_no_limit():
    world = World(cred_expire=120)
    job_id = world.submit()
    for attempt in range(1, 51):
        world.pass_hooks(code=1)
        assert world.state(job_id) is JobState.PENDING
        job = world.rules.view(job_id)
        assert (job.restarts, job.reason, job.eligible_time) == (attempt, "BeginTime", world.now + 121)
        world.at(world.now + 120.5)
        assert world.hooks() == []
        world.at(world.now + 1)
    assert world.state(job_id) is JobState.CONFIGURING


def test_delay_counts_from_the_end_of_the_epilog():
    world = World(cred_expire=5)
    job_id = world.submit()
    (prolog,) = world.hooks()
    world.do("hook_ended", prolog.run_id, 1)
    (epilog,) = world.hooks()
    world.now += 60
    world.do("hook_ended", epilog.run_id, 0)
    assert world.rules.view(job_id).eligible_time == 1066


@pytest.mark.parametrize(("batch", "requeue"), [(True, False), (False, True)])
def test_job_that_cannot_be_requeued_is_cancelled(batch, requeue):
    world = World()
    job_id = world.submit(batch=batch, requeue=requeue)
    (prolog,) = world.hooks()
    world.do("hook_ended", prolog.run_id, 1)
    assert world.take(TellUser) == [TellUser(job_id, PROLOG_FAILED)]
    assert [start.hook for start in world.hooks()] == [Hook.EPILOG]
    assert world.rules.jobs[job_id].final is JobState.CANCELLED


def test_prolog_killed_by_a_signal_counts_as_successful():
    world = World()
    job_id = world.submit()
    (prolog,) = world.hooks()
    world.do("hook_ended", prolog.run_id, 0, 9)
    assert world.state(job_id) is JobState.RUNNING


def test_hook_over_its_time_limit_is_killed_and_fails_though_a_signal_ended_it():
    world = World(prolog_epilog_timeout=10)
    job_id = world.submit()
    (prolog,) = world.hooks()
    world.at(1010.0)
    assert world.take(KillHook) == [KillHook(prolog.run_id, job_id)]
    world.do("hook_ended", prolog.run_id, 0, 9)
    assert world.rules.jobs[job_id].restarts == 1


@pytest.mark.parametrize(("drawn", "stillborn"), [(0.1, True), (0.2, False)])
def test_epilog_after_scancel_in_the_prolog_may_be_stillborn(drawn, stillborn):
    world = World(random=lambda: drawn, stillborn_epilog=3 / 23)
    job_id = world.submit()
    (prolog,) = world.hooks()
    world.do("cancel", job_id)
    assert world.take(KillHook) == [KillHook(prolog.run_id, job_id)]
    (epilog,) = world.hooks()
    assert (epilog.hook, epilog.stillborn) == (Hook.EPILOG, stillborn)
    world.do("hook_ended", prolog.run_id, 0, 9)
    world.do("hook_ended", epilog.run_id, 0, 9 if stillborn else 0)
    assert world.state(job_id) is JobState.CANCELLED


def test_scancel_while_a_requeued_jobs_epilog_runs():
    world = World()
    job_id = world.submit()
    (prolog,) = world.hooks()
    world.do("hook_ended", prolog.run_id, 1)
    world.do("cancel", job_id)
    world.pass_hooks()
    assert world.state(job_id) is JobState.CANCELLED


def test_time_limit_counts_from_the_end_of_the_prolog_and_kills_in_two_steps():
    world = World(kill_wait=30)
    job_id = world.submit(time_limit=60.0)
    (prolog,) = world.hooks()
    world.now += 500
    world.do("hook_ended", prolog.run_id, 0)
    step = world.step(job_id)
    world.at(1559.0)
    assert world.state(job_id) is JobState.RUNNING
    world.at(1560.0)
    assert world.take(KillStep) == [KillStep(step, job_id, 15)]
    assert [start.hook for start in world.hooks()] == [Hook.EPILOG]
    world.at(1590.0)
    assert world.take(KillStep) == [KillStep(step, job_id, 9)]
    world.do("step_ended", step, 0, 9)
    assert world.rules.jobs[job_id].final is JobState.TIMEOUT


def test_time_limit_of_an_earlier_attempt_does_not_count():
    world = World(cred_expire=5)
    job_id = world.submit(time_limit=60.0)
    world.do("hook_ended", world.hooks()[0].run_id, 0)
    world.do("requeue", job_id)
    world.do("step_ended", world.step(job_id), 0, 15)
    world.do("hook_ended", world.hooks()[0].run_id, 0)
    world.at(1050.0)
    world.do("hook_ended", world.hooks()[0].run_id, 0)
    world.at(1075.0)
    assert world.state(job_id) is JobState.RUNNING


def test_first_come_first_served_on_cpus():
    world = World(nodes={"node1": 4})
    first = world.submit(ntasks=3)
    big = world.submit(ntasks=4)
    small = world.submit(ntasks=1)
    assert [world.state(job_id) for job_id in (first, big, small)] == [
        JobState.CONFIGURING,
        JobState.PENDING,
        JobState.PENDING,
    ]
    assert [world.rules.view(job_id).reason for job_id in (big, small)] == ["Resources", "Priority"]
    world.do("cancel", big)
    assert world.state(small) is JobState.CONFIGURING


def test_requeued_job_keeps_its_place_in_the_queue():
    world = World(nodes={"node1": 1}, cred_expire=5)
    first = world.submit()
    second = world.submit()
    third = world.submit()
    (prolog,) = world.hooks()
    world.do("hook_ended", prolog.run_id, 1)
    assert world.state(second) is JobState.CONFIGURING
    running = [start for start in world.hooks() if start.job_id == second]
    world.do("hook_ended", 2, 0)  # the first job's epilog
    world.at(1100.0)
    world.do("hook_ended", running[0].run_id, 1)
    assert (world.state(first), world.state(third)) == (JobState.CONFIGURING, JobState.PENDING)


def test_licenses_are_held_until_the_epilog_has_ended_and_block_nobody_else():
    world = World(licenses={"a": 2})
    first = world.submit(licenses={"a": 2})
    second = world.submit(licenses={"a": 1})
    other = world.submit()
    assert world.rules.view(second).reason == "Licenses"
    assert world.state(other) is JobState.CONFIGURING
    by_job = {start.job_id: start for start in world.hooks()}
    world.do("hook_ended", by_job[first].run_id, 0)
    world.do("step_ended", world.step(first), 0)
    assert world.state(second) is JobState.PENDING
    (epilog,) = world.hooks()
    world.do("hook_ended", epilog.run_id, 0)
    assert world.state(second) is JobState.CONFIGURING


@pytest.mark.parametrize("licenses", [{"b": 1}, {"a": 3}, {"a": 0}])
def test_unknown_or_too_many_licenses_are_refused(licenses):
    world = World(licenses={"a": 2})
    with pytest.raises(SubmitError, match="Invalid license specification"):
        world.submit(licenses=licenses)
    assert world.rules.jobs == {}


@pytest.mark.parametrize("shape", [{"ntasks": 9}, {"cpus_per_task": 5}, {"nodes": 3}])
def test_job_that_can_never_fit_is_refused(shape):
    with pytest.raises(SubmitError, match="Requested node configuration is not available"):
        World().submit(**shape)


def test_dependencies():
    world = World()
    first = world.submit()
    ok = world.submit(dependencies=(("afterok", first),))
    any_end = world.submit(dependencies=(("afterany", first),))
    assert world.rules.view(ok).reason == "Dependency"
    world.do("hook_ended", world.hooks()[0].run_id, 0)
    world.do("step_ended", world.step(first), 1)
    world.do("hook_ended", world.hooks()[0].run_id, 0)
    assert (world.state(ok), world.rules.view(ok).reason) == (JobState.PENDING, "DependencyNeverSatisfied")
    assert world.state(any_end) is JobState.CONFIGURING


def test_lost_node_requeues_batch_jobs_tells_the_epilog_the_old_count_and_loses_the_step():
    world = World(cred_expire=5, nodes={"node1": 4})
    job_id = world.submit()
    world.do("hook_ended", world.hooks()[0].run_id, 0)
    step = world.step(job_id)
    world.do("node_failed", "node1")
    assert world.take(LoseStep) == [LoseStep(step, job_id)]
    (epilog,) = world.hooks()
    assert epilog.environment["SLURM_JOB_RESTART_COUNT"] == "0"
    world.do("hook_ended", epilog.run_id, 0)
    assert (world.state(job_id), world.rules.jobs[job_id].restarts) == (JobState.PENDING, 1)
    assert world.rules.node_states() == {"node1": "down"}
    world.at(1010.0)
    assert world.state(job_id) is JobState.PENDING
    world.do("node_resumed", "node1")
    assert world.state(job_id) is JobState.CONFIGURING


def test_lost_node_ends_an_interactive_job():
    world = World()
    job_id = world.submit(batch=False)
    world.do("hook_ended", world.hooks()[0].run_id, 0)
    world.do("node_failed", "node1")
    world.pass_hooks()
    assert world.state(job_id) is JobState.NODE_FAIL


@pytest.mark.parametrize("hooks_die", [True, False])
def test_crash_in_the_prolog(hooks_die):
    world = World()
    job_id = world.submit()
    (first,) = world.hooks()
    world.do("slurmctld_gone", 9, hooks_die=hooks_die)
    assert world.take(KillHook) == ([KillHook(first.run_id, job_id)] if hooks_die else [])
    assert world.state(job_id) is JobState.PENDING
    world.do("slurmctld_started")
    (second,) = world.hooks()
    assert (second.hook, second.environment["SLURM_JOB_RESTART_COUNT"]) == (Hook.PROLOG, "0")
    world.do("hook_ended", first.run_id, 1)  # of the old slurmctld: nobody listens
    assert world.state(job_id) is JobState.CONFIGURING
    world.do("hook_ended", second.run_id, 0)
    assert world.state(job_id) is JobState.RUNNING


def test_orderly_end_in_the_prolog_leaves_the_job_configuring():
    world = World()
    job_id = world.submit()
    (first,) = world.hooks()
    world.do("slurmctld_gone", 15, hooks_die=True)
    assert world.state(job_id) is JobState.CONFIGURING
    world.do("slurmctld_started")
    (second,) = world.hooks()
    assert (second.hook, second.run_id) == (Hook.PROLOG, first.run_id + 1)


def test_array_throttle_and_ids():
    world = World()
    array_id = world.submit(array_tasks=(0, 1, 2), array_limit=2)
    jobs = {job.array_task_id: job for job in world.rules.jobs.values()}
    assert [jobs[task].job_id for task in (0, 1, 2)] == [array_id + 1, array_id + 2, array_id]
    assert world.rules.view(array_id).reason == "JobArrayTaskLimit"
    assert world.rules.members(array_id) == [array_id + 1, array_id + 2, array_id]
    world.do("cancel", array_id + 1)
    assert world.state(array_id) is JobState.CONFIGURING


def test_het_components_start_together_and_never_share_a_node():
    world = World()
    spec = JobSpec(name="het", user_id=1)
    leader = world.submit(spec, spec)
    first, second = world.hooks()
    world.do("hook_ended", second.run_id, 0)
    assert world.take(LaunchStep) == []
    world.do("hook_ended", first.run_id, 0)
    assert [launch.job_id for launch in world.take(LaunchStep)] == [leader]
    assert world.rules.jobs[leader].nodes != world.rules.jobs[leader + 1].nodes
    world.do("step_ended", world.step(leader), 5)
    world.pass_hooks()
    assert [world.rules.view(job_id).exit_code for job_id in (leader, leader + 1)] == [5, 5]


def test_refused_requeues_say_why_and_change_nothing():
    world = World()
    job_id = world.submit(batch=False)
    with pytest.raises(ValueError, match="Only batch jobs"):
        world.do("requeue", job_id)
    assert (world.state(job_id), world.rules.jobs[job_id].restarts) == (JobState.CONFIGURING, 0)
    with pytest.raises(KeyError, match="Invalid job id"):
        world.do("cancel", 99)


def test_without_hooks_a_job_runs_at_once():
    world = World(prolog=False, epilog=False)
    job_id = world.submit()
    (launch,) = world.take(LaunchStep)
    world.do("step_ended", launch.step, 0)
    assert world.state(job_id) is JobState.COMPLETED
