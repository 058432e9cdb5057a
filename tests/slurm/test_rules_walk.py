"""Random walks through the rules: whatever happens in whatever order, the invariants hold and everything drains."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import pytest

from fake_cluster.slurm import rules_state
from fake_cluster.slurm.interface import JobState, SubmitError
from fake_cluster.slurm.rules import SlurmRules
from fake_cluster.slurm.rules_jobs import (
    ClusterConfig,
    Hook,
    JobSpec,
    KillHook,
    KillStep,
    LaunchStep,
    LoseStep,
    StartHook,
)


class Walk:
    """Carries out what the rules want, late, in random order, while users and faults do what they like."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.config = ClusterConfig(
            nodes={f"node{i}": self.random.randint(1, 4) for i in range(1, 4)},
            cred_expire=5,
            licenses={"gpu": 2},
            prolog_epilog_timeout=self.random.choice([0, 20]),
            kill_wait=3,
            stillborn_epilog=0.2,
        )
        self.rules = SlurmRules(self.config, self.random.random)
        self.now = 0.0
        self.hooks: dict[int, StartHook] = {}
        self.killed: set[int] = set()
        self.steps: dict[int, int] = {}
        self.epilogs: dict[int, int] = {}
        self.starts: dict[int, int] = {}
        self.faults = True

    def carry_out(self, instructions) -> None:
        for one in instructions:
            if isinstance(one, StartHook):
                self.hooks[one.run_id] = one
                counts = self.starts if one.hook is Hook.PROLOG else self.epilogs
                counts[one.job_id] = counts.get(one.job_id, 0) + 1
                if one.stillborn:
                    self.killed.add(one.run_id)
            elif isinstance(one, KillHook):
                self.killed.add(one.run_id)
            elif isinstance(one, LaunchStep):
                assert one.job_id not in self.steps.values(), "a job runs twice at once"
                self.steps[one.step] = one.job_id
            elif isinstance(one, LoseStep):
                del self.steps[one.step]
            elif isinstance(one, KillStep):
                assert one.step in self.steps

    def do(self, name, *args, **more):
        result = getattr(self.rules, name)(self.now, *args, **more)
        if name == "submit":
            result = result[1]
        self.rules.validate()
        self.carry_out(result)

    def submit(self) -> None:
        draw = self.random
        spec = JobSpec(
            name="x",
            user_id=1,
            batch=draw.random() < 0.8,
            requeue=draw.random() < 0.8,
            ntasks=draw.randint(1, 2),
            licenses={"gpu": draw.randint(1, 2)} if draw.random() < 0.3 else {},
            time_limit=draw.choice([None, 60.0]),
            begin=self.now + draw.choice([0, 0, 10]),
        )
        kind = draw.random()
        if kind < 0.2:
            tasks = {"array_tasks": tuple(range(draw.randint(1, 4))), "array_limit": draw.choice([0, 1, 2])}
            self.do("submit", [JobSpec(**{**vars(spec), **tasks, "batch": True})])
        elif kind < 0.4:
            # Slurm checks the licenses of each component alone: together they may be too many for ever.
            spec = replace(spec, licenses={})
            try:
                self.do("submit", [spec, spec])
            except SubmitError as error:
                assert "not available" in str(error)
        else:
            try:
                self.do("submit", [spec])
            except SubmitError as error:
                assert "not available" in str(error)

    def end_something(self) -> None:
        choices = [("hook", run) for run in self.hooks] + [("step", step) for step in self.steps]
        if not choices:
            return
        what, ident = self.random.choice(choices)
        if what == "hook":
            del self.hooks[ident]
            killed = ident in self.killed
            code = 1 if not killed and self.faults and self.random.random() < 0.3 else 0
            self.do("hook_ended", ident, code, 9 if killed else 0)
        elif self.rules.up:
            del self.steps[ident]
            self.do("step_ended", ident, self.random.choice([0, 0, 1]), 0)

    def fault(self) -> None:
        draw = self.random
        job_id = draw.choice(list(self.rules.jobs)) if self.rules.jobs else None
        what = draw.choice(["cancel", "requeue", "node", "resume", "crash", "begin"])
        if what == "node":
            self.do("node_failed", draw.choice(list(self.config.nodes)))
        elif what == "resume":
            for name in sorted(self.rules.nodes.down):
                self.do("node_resumed", name)
        elif what == "crash":
            sig = draw.choice([9, 15])
            dies = sig == 15 or draw.random() < 0.5
            self.do("slurmctld_gone", sig, hooks_die=dies)
            state = json.loads(json.dumps(rules_state.dump(self.rules)))
            self.rules = rules_state.load(self.config, state, self.random.random)
            self.rules.validate()
            self.do("slurmctld_started")
        elif job_id is not None:
            try:
                if what == "cancel":
                    self.do("cancel", job_id)
                elif what == "requeue":
                    self.do("requeue", job_id)
                else:
                    self.do("set_begin_time", job_id, self.now)
            except ValueError:
                self.rules.validate()

    def advance(self) -> None:
        self.now += self.random.choice([0.1, 1.0, 7.0])
        self.do("time_passed")


@pytest.mark.parametrize("seed", range(30))
def test_invariants_hold_and_everything_ends(seed):
    walk = Walk(seed)
    for _ in range(200):
        action = walk.random.choices([walk.submit, walk.end_something, walk.fault, walk.advance], weights=[2, 6, 1, 2])[
            0
        ]
        action()
    walk.faults = False
    for name in sorted(walk.rules.nodes.down):
        walk.do("node_resumed", name)
    for _ in range(3_000):
        if all(job.state.ended for job in walk.rules.jobs.values()):
            break
        walk.end_something()
        if not walk.hooks and not walk.steps:
            walk.now = max(walk.now, walk.rules.next_timer() or walk.now)
            walk.do("time_passed")
    assert [(job, walk.rules.stories[job.job_id]) for job in walk.rules.jobs.values() if not job.state.ended] == []
    # Whatever prolog has run, an epilog has run after it, unless slurmctld crashed meanwhile.
    assert all(job_id in walk.starts for job_id in walk.epilogs)
    assert set(walk.rules.licenses.free.values()) == {2}
    assert all(walk.rules.nodes.used(name) == 0 for name in walk.config.nodes)
    ran = [job for job in walk.rules.jobs.values() if job.state is JobState.COMPLETED]
    assert all(job.job_id in walk.starts for job in ran)


def test_same_seed_same_walk():
    def trace(seed):
        walk = Walk(seed)
        for _ in range(100):
            walk.random.choice([walk.submit, walk.end_something, walk.fault, walk.advance])()
        return json.dumps(rules_state.dump(walk.rules))

    assert trace(5) == trace(5)
