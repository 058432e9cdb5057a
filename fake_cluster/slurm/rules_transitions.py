"""How a job goes from one state to the next: the inside of the Slurm rules.

`rules.py` says what sets these transitions off, and where they were seen.
"""

from __future__ import annotations

from collections.abc import Iterable

from fake_cluster.slurm.hook_environment import hook_environment, host_list
from fake_cluster.slurm.interface import JobState
from fake_cluster.slurm.rules_jobs import (
    Hook,
    HookRun,
    JobRecord,
    JobSpec,
    KillHook,
    KillStep,
    LaunchStep,
    StartHook,
    TellUser,
)
from fake_cluster.slurm.rules_memory import HOLDING, Memory

PROLOG_FAILED = "PrologSlurmctld failed, job killed"
SIGTERM, SIGKILL = 15, 9


class Transitions(Memory):
    """Scheduling, starting, requeueing and ending of jobs, at the time `_now`; what is to be done goes to `_out`."""

    def _new_job(self, spec: JobSpec, job_id: int, **place: int) -> None:
        job = JobRecord(job_id, spec, self._next_sequence, self._now, **place)  # type: ignore[arg-type]
        self._next_sequence += 1
        self.next_job_id = max(self.next_job_id, job_id + 1)
        self.jobs[job_id] = job
        job.unmet = spec.dependencies
        for _, other in spec.dependencies:
            self._dependents.setdefault(other, set()).add(job_id)
        job.eligible_time = spec.begin if spec.begin is not None else self._now
        self._set(job, JobState.PENDING, "None")
        size = len(self._het.get(job.het_job_id or 0, ()))
        if job.het_offset is None or job.het_offset == size - 1:
            self._enqueue(self._group(job)[0])

    def _enqueue(self, job: JobRecord) -> None:
        """Put a pending job (or het job, by any component) where it belongs, and say why it waits."""
        group = self._group(job)
        leader = group[0]
        if any(member.state is not JobState.PENDING for member in group):
            return
        begin = max(member.eligible_time or 0.0 for member in group)
        self.queue.remove(leader.job_id)
        if any(not self._dependencies_met(member) for member in group):
            return
        if begin > self._now:
            self._at(begin, "begin", leader.job_id, leader.restarts)
            reason = "BeginTime"
        elif any(member.lingering_prologs for member in group):
            reason = "Cleaning"
        else:
            self.queue.add(leader)
            reason = "Priority"
        for member in group:
            member.reason = reason

    def _dependencies_met(self, job: JobRecord) -> bool:
        unmet, never = [], False
        for kind, other_id in job.unmet:
            other = self.jobs.get(other_id)
            if other is None:
                continue  # slurmctld no longer knows it: taken as met
            if kind == "after":
                met, possible = other.state is not JobState.PENDING, True
            elif not other.state.ended:
                met, possible = False, True
            else:
                met = kind == "afterany" or (other.state is JobState.COMPLETED) == (kind == "afterok")
                possible = met
            if not met:
                unmet.append((kind, other_id))
                never = never or not possible
        job.unmet = tuple(unmet)
        if unmet:
            job.reason = "DependencyNeverSatisfied" if never else "Dependency"
        return not unmet

    def _schedule(self) -> None:
        if not self.up:
            return
        while (head := self.queue.head()) is not None:
            group = self._group(self.jobs[head])
            wanted: dict[str, int] = {}
            for member in group:
                for name, count in member.spec.licenses.items():
                    wanted[name] = wanted.get(name, 0) + count
            leader = group[0]
            if not self.licenses.fit(wanted):
                self.queue.wait_for_licenses(leader)
                self._because(group, "Licenses")
                continue
            array, limit = leader.array_job_id, leader.spec.array_limit
            if array is not None and limit and self._array_running[array] >= limit:
                self.queue.wait_for_array(leader)
                self._because(group, "JobArrayTaskLimit")
                continue
            shapes = [(member.spec.ntasks, member.spec.cpus_per_task, member.spec.nodes) for member in group]
            places = self.nodes.fit_all(shapes)
            if places is None:
                self._because(group, "Resources")
                return
            self.queue.remove(head)
            self._start(group, places)

    def _because(self, group: Iterable[JobRecord], reason: str) -> None:
        for member in group:
            member.reason = reason

    def _start(self, group: list[JobRecord], places: list[dict[str, int]]) -> None:
        for job, cpus in zip(group, places, strict=True):
            job.cpus = cpus
            job.holding = True
            self.nodes.take(cpus)
            self.licenses.take(job.spec.licenses)
            job.licensed = bool(job.spec.licenses)
            if job.array_job_id is not None:
                self._array_running[job.array_job_id] += 1
            for name in cpus:
                self._on_node[name].add(job.job_id)
            job.start_time, job.end_time = self._now, None
            job.exit_code = job.signal = job.derived_code = 0
            job.prolog_done = not self.config.prolog
            count = sum(cpus.values())
            place = f"NodeList={host_list(cpus)} #CPUs={count} Partition={self.config.partition}"
            self._log(f"sched: Allocate JobId={self._full_id(job)} {place}")
            self._set(job, JobState.CONFIGURING, "Prolog" if self.config.prolog else "None")
        for job in group:
            self._wake_dependents(job)
            if self.config.prolog:
                job.prolog_run = self._start_hook(job, Hook.PROLOG)
        if not self.config.prolog:
            self._launch_when_ready(group[0])

    def _full_id(self, job: JobRecord) -> str:
        if job.het_job_id is not None:
            return f"{job.het_job_id}+{job.het_offset}({job.job_id})"
        if job.array_job_id is not None:
            return f"{job.array_job_id}_{job.array_task_id}({job.job_id})"
        return str(job.job_id)

    def _start_hook(self, job: JobRecord, hook: Hook, stillborn: bool = False) -> int:
        run = HookRun(self._next_run, job.job_id, hook)
        self._next_run += 1
        self.runs[run.run_id] = run
        if self.config.prolog_epilog_timeout:
            run.deadline = self._now + self.config.prolog_epilog_timeout
            self._at(run.deadline, "hook", run.run_id)
        self._story(job, f"{hook.value} starts, restart count {job.restarts}")
        het_nodes = [name for member in self._group(job) for name in member.nodes] if job.het_offset == 0 else []
        environment = hook_environment(job, hook, self.config, het_nodes)
        self._out.append(StartHook(run.run_id, job.job_id, hook, environment, stillborn))
        return run.run_id

    def _prolog_failed(self, job: JobRecord) -> None:
        group = self._group(job)
        refusal = self._requeue(group[0])
        if not refusal:
            return
        self._log(f"unable to requeue JobId={group[0].job_id}: {refusal}")
        self._out.append(TellUser(group[0].job_id, PROLOG_FAILED))
        for member in group:
            if not member.state.ended:
                self._leave(member, JobState.CANCELLED, "Prolog")

    def _requeue(self, leader: JobRecord, counted_late: bool = False) -> str:
        """Requeue a job and all its components; the reason in Slurm's words when that is refused.

        The restart count goes up before the epilog starts, which is therefore told the next attempt's number; only
        after the loss of a node (`counted_late`) it goes up when the epilog has been started.
        """
        if not leader.spec.requeue:
            return "Requested operation is presently disabled"
        if not leader.spec.batch:
            return "Only batch jobs are accepted or processed"
        if leader.state is JobState.PENDING:
            return "Job is pending execution"
        for job in self._group(leader):
            job.restarts += not counted_late
            if job.state in HOLDING:
                self._leave(job, JobState.PENDING, "None", restarts_after=counted_late)
            elif job.state is JobState.COMPLETING:
                job.final = JobState.PENDING
            else:
                job.state, job.final = JobState.COMPLETING, JobState.PENDING
                self._finish_when_clean(job)
        return ""

    def _launch_when_ready(self, job: JobRecord) -> None:
        """All components start together, when the last prolog has succeeded."""
        group = self._group(job)
        if not all(member.prolog_done and member.state is JobState.CONFIGURING for member in group):
            return
        for member in group:
            self._log(f"prolog_running_decr: Configuration for JobId={self._full_id(member)} is complete")
            # The time limit counts from here, not from the allocation.
            member.start_time = self._now
            self._set(member, JobState.RUNNING, "None")
            if member.spec.time_limit is not None:
                self._at(self._now + member.spec.time_limit, "limit", member.job_id, member.restarts)
            # A het batch job's script runs in component 0; the others are allocations for its own srun commands.
            if member is group[0] or not member.spec.batch:
                member.step = self._next_step
                self._next_step += 1
                self.steps[member.step] = member.job_id
                self._out.append(LaunchStep(member.step, member.job_id))

    def _complete(self, job: JobRecord, exit_code: int, signal: int) -> None:
        if job.state is not JobState.RUNNING:
            return
        job.exit_code, job.signal = exit_code, signal
        job.derived_code = 0 if job.spec.batch else exit_code
        self._log(
            f"_job_complete: JobId={self._full_id(job)} "
            + (f"WTERMSIG {signal}" if signal else f"WEXITSTATUS {exit_code}")
        )
        if exit_code or signal:
            self._leave(job, JobState.FAILED, "NonZeroExitCode" if exit_code else "RaisedSignal")
        else:
            self._leave(job, JobState.COMPLETED, "None")
        self._log(f"_job_complete: JobId={self._full_id(job)} done")

    def _leave(self, job: JobRecord, final: JobState, reason: str, restarts_after: bool = False) -> None:
        """The job holds nothing any more; what is left on the node is killed; the epilog starts at once."""
        if job.state not in HOLDING:
            return
        if job.prolog_run is not None:
            # Its process runs on; the job is not started again before it has ended (reason Cleaning).
            self.runs[job.prolog_run].abandoned = True
            job.prolog_run = None
            job.lingering_prologs += 1
        self._release(job)
        job.final = final
        job.end_time = self._now
        self._set(job, JobState.COMPLETING, reason)
        self._kill_step(job)
        self._start_epilog(job)
        job.restarts += restarts_after
        self._finish_when_clean(job)

    def _kill_step(self, job: JobRecord) -> None:
        if job.step is not None:
            self._out.append(KillStep(job.step, job.job_id, SIGTERM))
            self._at(self._now + self.config.kill_wait, "kill", job.step)

    def _start_epilog(self, job: JobRecord, stillborn: bool = False) -> None:
        if self.config.epilog:
            job.epilog_run = self._start_hook(job, Hook.EPILOG, stillborn)

    def _release(self, job: JobRecord) -> None:
        if not job.holding:
            return
        job.holding = False
        self.nodes.give(job.cpus)
        if job.array_job_id is not None:
            self._array_running[job.array_job_id] -= 1
            task = self.queue.task_ended(job.array_job_id)
            if task is not None:
                self._enqueue(self.jobs[task])

    def _release_licenses(self, job: JobRecord) -> None:
        if job.licensed:
            job.licensed = False
            self.licenses.give(job.spec.licenses)
            for waiting in self.queue.licenses_freed():
                self._enqueue(self.jobs[waiting])

    def _cancel_one(self, job: JobRecord) -> None:
        if job.state is JobState.PENDING:
            self.queue.remove(job.job_id)
            job.end_time = self._now
            self._log(f"job_signal: 9 of pending JobId={self._full_id(job)} successful")
            self._set(job, JobState.CANCELLED, "None")
            self._ended(job)
        elif job.state is JobState.CONFIGURING:
            self._log(f"job_signal: 9 of running JobId={self._full_id(job)} successful 0x8004")
            if job.prolog_run is not None:
                self._out.append(KillHook(job.prolog_run, job.job_id))
                self.runs[job.prolog_run].abandoned = self.runs[job.prolog_run].killed = True
                job.prolog_run = None
                stillborn = self._random() < self.config.stillborn_epilog
            else:
                stillborn = False
            self._release(job)
            job.final, job.end_time = JobState.CANCELLED, self._now
            self._set(job, JobState.COMPLETING, "None")
            self._start_epilog(job, stillborn)
            self._finish_when_clean(job)
        elif job.state is JobState.RUNNING:
            self._log(f"job_signal: 9 of running JobId={self._full_id(job)} successful 0x8004")
            self._leave(job, JobState.CANCELLED, "None")
        elif job.state is JobState.COMPLETING and job.final is JobState.PENDING:
            self._log(f"job_signal: 9 of pending JobId={self._full_id(job)} successful")
            job.final = JobState.CANCELLED

    def _finish_when_clean(self, job: JobRecord) -> None:
        """COMPLETING ends when the epilog has run and nothing of the job is left on its node."""
        if job.state is not JobState.COMPLETING or job.epilog_run is not None or job.step is not None:
            return
        final, job.final = job.final, None
        assert final is not None
        self._vacate(job)
        if final is JobState.PENDING:
            self._log(f"Requeuing JobId={self._full_id(job)}")
            job.submit_time = self._now
            job.start_time = job.end_time = None
            job.exit_code = job.signal = 0
            job.cpus = {}
            job.prolog_done = False
            # Longer than the credential of the first run lives, so that it cannot be used for the second.
            job.eligible_time = self._now + self.config.cred_expire + 1
            self._set(job, JobState.PENDING, "BeginTime")
            self._enqueue(job)
        else:
            self._set(job, final, job.reason)
            self._ended(job)

    def _vacate(self, job: JobRecord) -> None:
        for name in job.nodes:
            self._on_node[name].discard(job.job_id)
        self._release_licenses(job)

    def _ended(self, job: JobRecord) -> None:
        self._wake_dependents(job)

    def _wake_dependents(self, job: JobRecord) -> None:
        for waiting in sorted(self._dependents.get(job.job_id, ())):
            if self.jobs[waiting].state is JobState.PENDING and self.jobs[waiting].unmet:
                self._enqueue(self.jobs[waiting])
