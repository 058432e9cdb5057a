"""What the Slurm rules remember: jobs, nodes, licenses, queue, hooks under way; views of it and its invariants."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from fake_cluster.slurm.hook_environment import host_list
from fake_cluster.slurm.interface import Job, JobState
from fake_cluster.slurm.rules_jobs import Changed, ClusterConfig, HookRun, Instruction, JobRecord, LogLine
from fake_cluster.slurm.rules_nodes import NodeTable
from fake_cluster.slurm.rules_schedule import Licenses, Queue

HOLDING = (JobState.CONFIGURING, JobState.RUNNING)


class Memory:
    """The state of one cluster, without the rules that change it (`rules_transitions.py`, `rules.py`)."""

    def __init__(
        self, config: ClusterConfig, random: Callable[[], float] | None = None, keep_stories: bool = True
    ) -> None:
        self.config = config
        self._random = random or (lambda: 1.0)
        self.jobs: dict[int, JobRecord] = {}
        self.nodes = NodeTable(config.nodes)
        self.licenses = Licenses(config.licenses)
        self.queue = Queue()
        self.runs: dict[int, HookRun] = {}
        self.steps: dict[int, int] = {}  # launch -> job id
        self._keep_stories = keep_stories
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

    def forget(self, job_id: int) -> None:
        """Drop a job that has ended, as slurmctld does after MinJobAge. Members of arrays and het jobs are kept, others
        may still ask for them. ValueError when it has not ended."""
        job = self._known(job_id)
        if not job.state.ended:
            raise ValueError(f"job {job_id} is {job.state.value}: only ended jobs can be forgotten")
        if job.array_job_id is None and job.het_job_id is None:
            del self.jobs[job_id]
            self.stories.pop(job_id, None)
            self._dependents.pop(job_id, None)
            for dependents in [self._dependents.get(other) for _, other in job.spec.dependencies]:
                if dependents is not None:
                    dependents.discard(job_id)

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
            assert job.holding == (job.state in HOLDING), (
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
        if self._keep_stories:
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
