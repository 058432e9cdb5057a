"""What slurmctld and its nodes do, as a state machine without clock, threads or I/O.

Inputs are methods that take the time as their first argument and return what is to be done, in order: start or kill a
hook, launch or kill a job on its node, tell the waiting user, write a log line. `simulated.py` carries that out with
real processes in real time, `simulation.py` with a virtual clock; both report back through the same methods.

Everything here was first seen on Slurm 22.05.8 (docs/decisions/040-what-slurm-does.md says how):

- PrologSlurmctld fails (exit code not 0, or PrologEpilogTimeout): a batch job is requeued for cred_expire + 1 s after
  its epilog has ended, restart count + 1, never held, without limit. With --no-requeue, and for srun and salloc, the
  job is CANCELLED. In both cases the epilog runs.
- The restart count goes up **before** that epilog starts: the epilog of attempt 0 is told 1. So it is after `scontrol
  requeue`; after the loss of a node the epilog is told the old count.
- A prolog that dies by a signal, with no time-out involved, counts as **successful**: slurmctld looks at the exit
  code only.
- EpilogSlurmctld starts the moment the job leaves RUNNING. For a cancelled job or one over its time limit that is
  before its processes on the node have ended. CPUs are free from that moment, licenses only when the epilog has ended.
- scancel in the prolog kills it; `scontrol requeue`, the loss of a node and another het component's failing prolog do
  not: that prolog runs on, next to the epilog of its own job and after it.
- slurmctld is killed (-9) in a prolog: after its restart the job is pending; after SIGTERM it is still configuring. In
  both cases the prolog runs again for the same job id and restart count, with no epilog in between. An epilog that ran
  is run again too.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from fake_cluster.slurm.interface import JobState, SubmitError
from fake_cluster.slurm.rules_jobs import Hook, Instruction, JobSpec, KillHook, KillStep, LoseStep
from fake_cluster.slurm.rules_memory import HOLDING
from fake_cluster.slurm.rules_transitions import PROLOG_FAILED, SIGKILL, SIGTERM, Transitions

__all__ = ["PROLOG_FAILED", "SlurmRules"]


class SlurmRules(Transitions):
    """One cluster. Not thread-safe; the caller serialises the inputs.

    `random` returns numbers in [0, 1); it decides only what `ClusterConfig` gives a probability for.
    `keep_stories` False saves memory in long simulations. Times must not go backwards.
    """

    def submit(self, now: float, components: Sequence[JobSpec]) -> tuple[int, list[Instruction]]:
        """One job, an array (`array_tasks`) or, with several components, a het job. SubmitError with sbatch's words."""
        self._now = now
        words = "Batch job submission failed" if components[0].batch else "Unable to allocate resources"
        command = "sbatch" if components[0].batch else "srun"
        for spec in components:
            if not self.licenses.known(spec.licenses):
                raise SubmitError(f"{command}: error: {words}: Invalid license specification")
            if spec.array_tasks is not None and (
                not spec.array_tasks or len(components) > 1 or max(spec.array_tasks) >= self.config.max_array_size
            ):
                raise SubmitError(f"{command}: error: {words}: Invalid job array specification")
        shapes = [(spec.ntasks, spec.cpus_per_task, spec.nodes) for spec in components]
        if not self.nodes.ever_fits(shapes):
            raise SubmitError(f"{command}: error: {words}: Requested node configuration is not available")
        first = self.next_job_id
        if len(components) > 1:
            self._het[first] = list(range(first, first + len(components)))
            for offset, spec in enumerate(components):
                self._new_job(spec, first + offset, het_job_id=first, het_offset=offset)
            self._log(f"_slurm_rpc_submit_batch_het_job: JobId={first} usec=0")
        elif components[0].array_tasks is not None:
            tasks = components[0].array_tasks
            # The last task that is split off keeps the array's own id, as in Slurm.
            ids = [*range(first + 1, first + len(tasks)), first]
            self._arrays[first] = ids
            self._array_running[first] = 0
            for job_id, task in zip(ids, tasks, strict=True):
                self._new_job(components[0], job_id, array_job_id=first, array_task_id=task)
            self._log(f"_slurm_rpc_submit_batch_job: JobId={first} InitPrio={4294901760 - first} usec=0")
        else:
            self._new_job(components[0], first)
            self._log(f"_slurm_rpc_submit_batch_job: JobId={first} InitPrio={4294901760 - first} usec=0")
        self._schedule()
        return first, self._take()

    def hook_ended(self, now: float, run_id: int, exit_code: int, signal: int = 0) -> list[Instruction]:
        """A hook's process has ended. Runs that a crash or a cancel has made irrelevant are passed over."""
        self._now = now
        run = self.runs.pop(run_id, None)
        if run is None:
            return self._take()
        job = self.jobs[run.job_id]
        if run.abandoned:
            if not run.killed:
                job.lingering_prologs -= 1
                if job.state is JobState.PENDING:
                    self._enqueue(job)
                self._schedule()
            return self._take()
        name = "PrologSlurmctld" if run.hook is Hook.PROLOG else "EpilogSlurmctld"
        if exit_code or signal or run.timed_out:
            status = "timed out" if run.timed_out else f"exit status {exit_code}:{signal}"
            self._log(f"slurmscriptd: error: _run_script: JobId={job.job_id} {name} {status}")
            self._story(job, f"{name} {status}")
        if run.hook is Hook.PROLOG:
            job.prolog_run = None
            if exit_code or run.timed_out:
                cause = "failed due to timing out" if run.timed_out else f"prolog exit status {exit_code}:{signal}"
                self._log(f"error: prolog_slurmctld JobId={job.job_id} {cause}")
                self._prolog_failed(job)
            else:
                job.prolog_done = True
                self._launch_when_ready(job)
        else:
            job.epilog_run = None
            if run.timed_out:
                self._log(f"epilog_slurmctld JobId={job.job_id} timed out")
            self._finish_when_clean(job)
        self._schedule()
        return self._take()

    def step_ended(self, now: float, step: int, exit_code: int, signal: int = 0) -> list[Instruction]:
        """The job's processes on its node have ended, and all that the node had to do after them."""
        self._now = now
        job_id = self.steps.pop(step, None)
        if job_id is None:
            return self._take()
        job = self.jobs[job_id]
        job.step = None
        if job.state is JobState.RUNNING:
            group = self._group(job)
            if job.spec.batch or len(group) == 1:
                for member in group:
                    self._complete(member, exit_code, signal)
            else:
                # srun reports one result for all components: the worst.
                job.exit_code, job.signal = exit_code, signal
                if all(member.step is None for member in group):
                    worst = max(group, key=lambda member: (member.exit_code, member.signal))
                    exit_code, signal = worst.exit_code, worst.signal
                    for member in group:
                        self._complete(member, exit_code, signal)
        else:
            if job.final is not JobState.PENDING:
                job.exit_code, job.signal = exit_code, signal
            self._finish_when_clean(job)
        self._schedule()
        return self._take()

    def cancel(self, now: float, job_id: int) -> list[Instruction]:
        """scancel: a job, all tasks of an array (by its id), all of a het job. Ended jobs are left alone."""
        self._now = now
        self._known(job_id)
        self._log(f"_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId={job_id} uid 0")
        targets = self._arrays.get(job_id) or [member.job_id for member in self._group(self.jobs[job_id])]
        for target in targets:
            self._cancel_one(self.jobs[target])
        self._schedule()
        return self._take()

    def requeue(self, now: float, job_id: int) -> list[Instruction]:
        """`scontrol requeue`. ValueError with Slurm's words when it is refused. A prolog that runs is not killed."""
        self._now = now
        job = self._known(job_id)
        if job.het_job_id is not None and job.het_job_id != job.job_id:
            raise ValueError(f"{job_id}: Only the leader of a heterogeneous job can be requeued")
        refusal = self._requeue(job)
        if refusal:
            raise ValueError(f"{refusal} for job {job_id}")
        self._schedule()
        return self._take()

    def set_begin_time(self, now: float, job_id: int, at: float) -> list[Instruction]:
        """`scontrol update JobId=N StartTime=...` of a pending job. ValueError when the job is not pending."""
        self._now = now
        job = self._known(job_id)
        for member in self._group(job):
            if member.state is not JobState.PENDING:
                raise ValueError(f"Job is no longer pending execution for job {job_id}")
            member.eligible_time = at
        self._enqueue(job)
        self._schedule()
        return self._take()

    def time_passed(self, now: float) -> list[Instruction]:
        """Do what was due. To be called at `next_timer()`, not necessarily on the dot."""
        self._now = now
        while self._timers and self._timers[0][0] <= now:
            _, _, what, ident, stamp = heapq.heappop(self._timers)
            if what == "begin":
                job = self.jobs[ident]
                if job.state is JobState.PENDING and job.restarts == stamp:
                    self._enqueue(job)
            elif what == "hook":
                run = self.runs.get(ident)
                if run is not None and not run.abandoned:
                    run.timed_out = True
                    self._out.append(KillHook(ident, run.job_id))
            elif what == "limit":
                job = self.jobs[ident]
                if job.state is JobState.RUNNING and job.restarts == stamp:
                    for member in self._group(job):
                        self._log(f"Time limit exhausted for JobId={member.job_id}")
                        self._leave(member, JobState.TIMEOUT, "TimeLimit")
            elif what == "kill" and ident in self.steps:
                self._out.append(KillStep(ident, self.steps[ident], SIGKILL))
        self._schedule()
        return self._take()

    def node_failed(self, now: float, name: str) -> list[Instruction]:
        """slurmctld has noticed that a node is gone. Its batch jobs are requeued, other jobs end as NODE_FAIL."""
        self._now = now
        self._node(name)
        self.nodes.set_down(name, True)
        self._log(f"error: Nodes {name} not responding, setting DOWN")
        for job_id in sorted(self._on_node[name]):
            job = self.jobs[job_id]
            if job.step is not None and job.nodes[0] == name:
                self._out.append(LoseStep(job.step, job.job_id))
                del self.steps[job.step]
                job.step = None
            if job.state in HOLDING:
                leader = self._group(job)[0]
                if leader.spec.batch and leader.spec.requeue:
                    self._log(f"requeue job JobId={job_id} due to failure of node {name}")
                    self._requeue(leader, counted_late=True)
                else:
                    self._log(f"Killing JobId={job_id} on failed node {name}")
                    for member in self._group(job):
                        self._leave(member, JobState.NODE_FAIL, "NodeDown")
            elif job.state is JobState.COMPLETING:
                self._finish_when_clean(job)
        self._schedule()
        return self._take()

    def node_resumed(self, now: float, name: str) -> list[Instruction]:
        """The node answers again."""
        self._now = now
        self._node(name)
        self.nodes.set_down(name, False)
        self._log(f"Node {name} now responding")
        self._schedule()
        return self._take()

    def slurmctld_gone(self, now: float, signal: int, hooks_die: bool) -> list[Instruction]:
        """slurmctld was killed. `hooks_die`: the running hooks with it; else they run on and nobody listens.

        SIGTERM: the hooks die. kill -9: both were seen. Jobs on the nodes run on; their end is to be reported after
        `slurmctld_started`. No input other than that one is allowed in between.
        """
        self._now = now
        self.up = False
        for run in self.runs.values():
            if hooks_die:
                self._out.append(KillHook(run.run_id, run.job_id))
        self.runs.clear()
        for job in list(self.jobs.values()):
            job.lingering_prologs = 0
            if job.state is JobState.CONFIGURING and signal != SIGTERM:
                # What a crash leaves on disk is the state before the job was started.
                self._release(job)
                self._vacate(job)
                job.prolog_run, job.prolog_done = None, False
                job.cpus, job.start_time, job.eligible_time = {}, None, now
                self._set(job, JobState.PENDING, "None")
        return self._take()

    def slurmctld_started(self, now: float) -> list[Instruction]:
        """slurmctld has read its saved state: prologs and epilogs that were under way are run again."""
        self._now = now
        self.up = True
        self._log("Running as primary controller")
        self.runs.clear()
        for job in list(self.jobs.values()):
            if job.state is JobState.PENDING and job.het_offset in (None, 0):
                self._enqueue(job)
            elif job.state is JobState.CONFIGURING and not job.prolog_done:
                job.prolog_run = self._start_hook(job, Hook.PROLOG)
            elif job.state is JobState.COMPLETING:
                self._log(f"_sync_nodes_to_comp_job: JobId={job.job_id} in completing state")
                if job.epilog_run is not None:
                    job.epilog_run = None
                    self._start_epilog(job)
                self._finish_when_clean(job)
        self._schedule()
        return self._take()
