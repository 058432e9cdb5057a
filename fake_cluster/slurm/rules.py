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
from collections.abc import Callable, Iterable, Sequence

from fake_cluster.slurm.hook_environment import hook_environment, host_list
from fake_cluster.slurm.interface import Job, JobState, SubmitError
from fake_cluster.slurm.rules_jobs import (
    Changed,
    ClusterConfig,
    Hook,
    HookRun,
    Instruction,
    JobRecord,
    JobSpec,
    KillHook,
    KillStep,
    LaunchStep,
    LogLine,
    LoseStep,
    StartHook,
    TellUser,
)
from fake_cluster.slurm.rules_nodes import NodeTable
from fake_cluster.slurm.rules_schedule import Licenses, Queue

PROLOG_FAILED = "PrologSlurmctld failed, job killed"
_HOLDING = (JobState.CONFIGURING, JobState.RUNNING)
_SIGTERM, _SIGKILL = 15, 9


class SlurmRules:
    """One cluster. Not thread-safe; the caller serialises the inputs.

    `random` returns numbers in [0, 1); it decides only what `ClusterConfig` gives a probability for.
    Times must not go backwards.
    """

    def __init__(self, config: ClusterConfig, random: Callable[[], float] | None = None) -> None:
        self.config = config
        self._random = random or (lambda: 1.0)
        self.jobs: dict[int, JobRecord] = {}
        self.nodes = NodeTable(config.nodes)
        self.licenses = Licenses(config.licenses)
        self.queue = Queue()
        self.runs: dict[int, HookRun] = {}
        self.steps: dict[int, int] = {}  # launch -> job id
        self.stories: dict[int, list[tuple[float, str]]] = {}
        self.up = True
        self.next_job_id = 1
        self._next_sequence = 1
        self._next_run = 1
        self._next_step = 1
        self._het: dict[int, list[int]] = {}  # leader -> all components
        self._arrays: dict[int, list[int]] = {}  # array job id -> job ids of its tasks
        self._array_running: dict[int, int] = {}
        self._dependents: dict[int, set[int]] = {}
        self._on_node: dict[str, set[int]] = {name: set() for name in config.nodes}
        self._timers: list[tuple[float, int, str, int, int]] = []  # (at, order, what, id, restarts or launch)
        self._timer_order = 0
        self._now = 0.0
        self._out: list[Instruction] = []

    # ---- inputs

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
                self._out.append(KillStep(ident, self.steps[ident], _SIGKILL))
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
            if job.state in _HOLDING:
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
            if job.state is JobState.CONFIGURING and signal != _SIGTERM:
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

    # ---- saved state (rules_state.py)

    def counters(self) -> dict[str, int]:
        """The next id of each kind."""
        return {
            "job": self.next_job_id,
            "sequence": self._next_sequence,
            "run": self._next_run,
            "step": self._next_step,
        }

    def set_counters(self, counters: dict[str, int]) -> None:
        """Go on counting from there."""
        self.next_job_id = counters["job"]
        self._next_sequence = counters["sequence"]
        self._next_run = counters["run"]
        self._next_step = counters["step"]

    def restore(self, job: JobRecord) -> None:
        """Take back a job from the saved state, in the order of `jobs`, with what it holds."""
        self.jobs[job.job_id] = job
        if job.het_job_id is not None:
            self._het.setdefault(job.het_job_id, []).append(job.job_id)
        if job.array_job_id is not None:
            self._arrays.setdefault(job.array_job_id, []).append(job.job_id)
            self._array_running.setdefault(job.array_job_id, 0)
            self._array_running[job.array_job_id] += job.holding
        for _, other in job.unmet:
            self._dependents.setdefault(other, set()).add(job.job_id)
        if job.holding:
            self.nodes.take(job.cpus)
            if job.state is JobState.RUNNING and job.spec.time_limit is not None and job.start_time is not None:
                self._at(job.start_time + job.spec.time_limit, "limit", job.job_id, job.restarts)
        if job.licensed:
            self.licenses.take(job.spec.licenses)
        if job.holding or job.state is JobState.COMPLETING:
            for name in job.nodes:
                self._on_node[name].add(job.job_id)
        if job.step is not None:
            self.steps[job.step] = job.job_id
            if job.state is JobState.COMPLETING:
                self._at((job.end_time or 0.0) + self.config.kill_wait, "kill", job.step)

    # ---- views

    def next_timer(self) -> float | None:
        """When `time_passed` is to be called next; None: not before another input."""
        return self._timers[0][0] if self._timers else None

    def view(self, job_id: int) -> Job:
        """The job as `scontrol show job` tells it; the driver adds the paths of its output. KeyError: unknown."""
        job = self.jobs[job_id]
        return Job(
            job_id=job.job_id,
            name=job.spec.name,
            user_id=job.spec.user_id,
            state=job.state,
            reason=job.reason,
            restarts=job.restarts,
            exit_code=job.exit_code,
            signal=job.signal,
            nodes=job.nodes,
            submit_time=job.submit_time,
            eligible_time=job.eligible_time,
            start_time=job.start_time,
            end_time=job.end_time,
            array_job_id=job.array_job_id,
            array_task_id=job.array_task_id,
            het_job_id=job.het_job_id,
            het_offset=job.het_offset,
            juice=dict(job.spec.spank_env),
        )

    def members(self, job_id: int) -> list[int]:
        """Job ids of all tasks of an array, or components of a het job, that `job_id` stands for; else itself."""
        self._known(job_id)
        return list(self._arrays.get(job_id) or [member.job_id for member in self._group(self.jobs[job_id])])

    def node_states(self) -> dict[str, str]:
        """Node -> idle, mixed, allocated, completing or down."""
        states = {}
        for name in self.nodes.names:
            if name in self.nodes.down:
                states[name] = "down"
            elif any(self.jobs[job_id].state is JobState.COMPLETING for job_id in self._on_node[name]):
                states[name] = "completing"
            else:
                used = self.nodes.used(name)
                states[name] = "idle" if not used else "allocated" if used == self.nodes.total[name] else "mixed"
        return states

    def validate(self) -> None:
        """Assert every invariant; the message carries the story of the job at fault."""
        held = dict.fromkeys(self.nodes.names, 0)
        licensed = dict.fromkeys(self.licenses.total, 0)
        for job in self.jobs.values():
            story = "\n".join(f"{at:.3f} {text}" for at, text in self.stories.get(job.job_id, ()))
            assert job.holding == (job.state in _HOLDING), (
                f"job {job.job_id} {job.state}: holding {job.holding}\n{story}"
            )
            assert (job.prolog_run is None) or job.state is JobState.CONFIGURING, f"prolog without job\n{story}"
            assert (job.epilog_run is None) or job.state is JobState.COMPLETING, f"epilog of a job that holds\n{story}"
            assert (job.step is None) or self.steps[job.step] == job.job_id, f"launch of another job\n{story}"
            assert job.licensed <= (job.holding or job.state is JobState.COMPLETING), f"licenses kept\n{story}"
            assert (job.final is not None) == (job.state is JobState.COMPLETING), f"final {job.final}\n{story}"
            for name, count in job.cpus.items():
                held[name] += count if job.holding else 0
            for name, count in job.spec.licenses.items():
                licensed[name] += count if job.licensed else 0
        assert held == {name: self.nodes.used(name) for name in self.nodes.names}, f"CPUs held {held}"
        free = {name: total - licensed[name] for name, total in self.licenses.total.items()}
        assert free == self.licenses.free, f"licenses free {self.licenses.free}, should be {free}"

    # ---- inside

    def _take(self) -> list[Instruction]:
        out, self._out = self._out, []
        return out

    def _log(self, text: str) -> None:
        self._out.append(LogLine(text))

    def _story(self, job: JobRecord, text: str) -> None:
        self.stories.setdefault(job.job_id, []).append((self._now, text))

    def _set(self, job: JobRecord, state: JobState, reason: str = "") -> None:
        job.state = state
        job.reason = reason or "None"
        self._story(job, state.value + (f" ({reason})" if reason and reason != "None" else ""))
        self._out.append(Changed(job.job_id, state))

    def _at(self, at: float, what: str, ident: int, stamp: int = 0) -> None:
        self._timer_order += 1
        heapq.heappush(self._timers, (at, self._timer_order, what, ident, stamp))

    def _known(self, job_id: int) -> JobRecord:
        if job_id not in self.jobs:
            raise KeyError(f"Invalid job id specified: {job_id}")
        return self.jobs[job_id]

    def _node(self, name: str) -> None:
        if name not in self.nodes.total:
            raise KeyError(f"Invalid node name specified: {name}; there are {host_list(self.nodes.names)}")

    def _group(self, job: JobRecord) -> list[JobRecord]:
        """All components of a het job, leader first; a job alone otherwise."""
        if job.het_job_id is None:
            return [job]
        return [self.jobs[member] for member in self._het[job.het_job_id]]

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
            if job.state in _HOLDING:
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
        if job.state not in _HOLDING:
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
            self._out.append(KillStep(job.step, job.job_id, _SIGTERM))
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
