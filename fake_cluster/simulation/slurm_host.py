"""slurmctld in virtual time: the real rules, whose instructions become hooks, steps on nodes and timers.

slurmctld may be killed and come back: with SIGTERM, with SIGKILL (its hooks die with it, or run on and nobody listens),
or so that it also forgets the last five seconds (`forgetful`), because a real one writes its state that seldom. After
such a restart a job may be gone whose prolog has run, and the next one gets its id; see docs/slurm-observed.md.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from ..slurm import rules_state
from ..slurm.rules import SlurmRules
from ..slurm.rules_jobs import (
    Changed,
    ClusterConfig,
    Hook,
    Instruction,
    JobSpec,
    KillHook,
    KillStep,
    LaunchStep,
    LogLine,
    LoseStep,
    StartHook,
)
from .hook_process import HookProcess, Host
from .kernel import Kernel, Timer
from .node_host import Launch, Step
from .record import HookEnd, JobAsked, JobChange, Record

SAVE_EVERY_S = 5.0
SIGTERM, SIGKILL = 15, 9


class SlurmHost:
    """One cluster. `launch(launch, ended)` starts a step on its node."""

    def __init__(
        self,
        kernel: Kernel,
        config: ClusterConfig,
        host: Host,
        hook_settings: Any,
        record: Record,
        launch: Callable[[Launch, Callable[[Step, int, int], None]], Step],
        forgetful: bool = False,
        forget_ended: bool = False,
    ) -> None:
        self._kernel = kernel
        self._config = config
        self._host = host
        self._hook_settings = hook_settings
        self._record = record
        self._launch = launch
        self._forget_ended = forget_ended
        self.rules = SlurmRules(config, kernel.random.random, keep_stories=not forget_ended)
        self.forgetful = forgetful
        self._saved = ""
        self._timer: Timer | None = None
        self._runs: dict[int, HookProcess] = {}
        self._steps: dict[int, Step] = {}  # by a number of our own: slurmctld may use one of its own again
        self._by_number: dict[int, Step] = {}
        self._next_key = 1
        self._life = 1
        self._late: list[Callable[[], None]] = []  # ends of steps while slurmctld is down
        self._ended_jobs: list[int] = []
        self.open_jobs = 0
        if forgetful:
            self._save()

    # -- state on disk ------------------------------------------------------------------------------------------------

    def _save(self) -> None:
        if self.rules.up:
            self._saved = json.dumps(rules_state.dump(self.rules))
        self._kernel.after(SAVE_EVERY_S, self._save)

    # -- inputs -------------------------------------------------------------------------------------------------------

    def submit(self, specs: list[JobSpec]) -> int:
        """sbatch or srun. SubmitError when it is refused; `up` is to be asked before."""
        job_id, instructions = self.rules.submit(self._kernel.now, specs)
        for member in self.rules.members(job_id):
            job = self.rules.jobs[member]
            self._asked(member, job.sequence, job.spec)
        self._carry_out(instructions)
        return job_id

    def _asked(self, job_id: int, sequence: int, spec: JobSpec) -> None:
        incarnation = self._incarnation(job_id)
        env = spec.spank_env
        vram = env.get("JUICE_VRAM")
        self._record.asked[incarnation] = JobAsked(
            incarnation,
            job_id,
            spec.user_id,
            int(spec.payload["number"]),
            env.get("JUICE_POOL", ""),
            int(env.get("JUICE_GPU_COUNT", "1")),
            int(vram) if vram is not None else None,
            "JUICE_VRAM_STRICT" in env,
        )

    def _incarnation(self, job_id: int) -> int:
        """One number per job that ever was: the plan's job number and the place within it."""
        job = self.rules.jobs[job_id]
        offset = job.het_offset if job.het_offset is not None else (job.array_task_id or 0)
        return int(job.spec.payload["number"]) * 1000 + offset

    def cancel(self, job_id: int) -> None:
        """scancel by a user; nothing when there is no such job."""
        if self.rules.up and job_id in self.rules.jobs:
            self._carry_out(self.rules.cancel(self._kernel.now, job_id))

    def requeue(self, job_id: int) -> None:
        """scontrol requeue by a user; a refusal is only told."""
        if not self.rules.up or job_id not in self.rules.jobs:
            return
        try:
            self._carry_out(self.rules.requeue(self._kernel.now, job_id))
        except ValueError as error:
            self._kernel.tell("slurmctld", f"requeue refused: {error}")

    def queue_text(self) -> str | None:
        """What `squeue -a -O JobID,RestartCnt,State` prints; None when slurmctld does not answer."""
        if not self.rules.up:
            return None
        lines = ["JOBID RESTART_COUNT STATE"]
        for job in self.rules.jobs.values():
            if not job.state.ended:
                lines.append(f"{job.job_id} {job.restarts} {job.state.value}")
        return "\n".join(lines) + "\n"

    # -- crash --------------------------------------------------------------------------------------------------------

    def kill(self, signal: int, hooks_die: bool, forgets: bool = False) -> None:
        """slurmctld is killed; `start` is to follow. `forgets`: back to what was saved last."""
        if not self.rules.up:
            return
        rules = self.rules
        rules.slurmctld_gone(self._kernel.now, signal, hooks_die)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._life += 1
        for process in list(self._runs.values()):
            # In a list of its own order: insertion, so that a run is the same each time.
            process.ended = self._orphan_ended(process.ended)
            if hooks_die:
                process.kill()
        self._runs.clear()
        if not (forgets and self.forgetful):
            self._saved = json.dumps(rules_state.dump(rules))
        self._back_to_saved()

    def _orphan_ended(self, ended: Callable[[HookProcess, int, int], None]) -> Callable[[HookProcess, int, int], None]:
        def only_record(process: HookProcess, code: int, signal: int) -> None:
            self._note_end(process, code, signal)

        del ended
        return only_record

    def _back_to_saved(self) -> None:
        before = {self._incarnation(job_id): job_id for job_id in self.rules.jobs}
        self.rules = rules_state.load(self._config, json.loads(self._saved), self._kernel.random.random)
        known = {self._incarnation(job_id) for job_id in self.rules.jobs}
        for incarnation, job_id in before.items():
            if incarnation not in known:
                self._record.lost[incarnation] = self._kernel.now
                self._kernel.tell("slurmctld", f"has forgotten job {job_id}")
        for job_id in self.rules.jobs:
            self._changed(job_id)

    def start(self) -> None:
        """slurmctld is back."""
        if self.rules.up:
            return
        self._carry_out(self.rules.slurmctld_started(self._kernel.now))
        late, self._late = self._late, []
        for report in late:
            report()
        self._kernel.after(self._kernel.random.uniform(0.2, 3.0), self._nodes_register, self._life)

    def _nodes_register(self, life: int) -> None:
        """The nodes tell what runs there: what slurmctld does not know is killed; what it misses has ended."""
        if life != self._life or not self.rules.up:
            return
        known = dict(self.rules.steps)
        for step in list(self._steps.values()):
            launch = step.launch
            job = self.rules.jobs.get(launch.job_id)
            same = job is not None and self._incarnation(launch.job_id) == launch.incarnation
            if known.get(launch.step) == launch.job_id and same and job is not None and job.step == launch.step:
                del known[launch.step]
            else:
                self._kernel.tell(launch.node, f"orphan step of job {launch.job_id} is killed")
                del self._steps[step.key]
                step.lose()
        for number, job_id in known.items():
            self._kernel.tell("slurmctld", f"job {job_id} is missing on its node")
            self._carry_out(self.rules.step_ended(self._kernel.now, number, 0, 0))

    # -- nodes --------------------------------------------------------------------------------------------------------

    def lose_node(self, name: str) -> None:
        """All that runs on it is gone at once; slurmctld notices when `node_failed` is called."""
        for key, step in list(self._steps.items()):
            if step.launch.node == name:
                del self._steps[key]
                step.lose()

    def node_failed(self, name: str) -> None:
        """slurmctld has noticed."""
        if self.rules.up:
            self._carry_out(self.rules.node_failed(self._kernel.now, name))

    def node_resumed(self, name: str) -> None:
        """The node answers again."""
        if self.rules.up:
            self._carry_out(self.rules.node_resumed(self._kernel.now, name))

    # -- carrying out -------------------------------------------------------------------------------------------------

    def _carry_out(self, instructions: list[Instruction]) -> None:
        for instruction in instructions:
            kind = type(instruction)
            if kind is Changed:
                self._changed(instruction.job_id)  # type: ignore[union-attr]
            elif kind is LogLine:
                if self._kernel.tracing:
                    self._kernel.tell("slurmctld", instruction.text)  # type: ignore[union-attr]
            elif isinstance(instruction, StartHook):
                self._start_hook(instruction)
            elif isinstance(instruction, LaunchStep):
                self._start_step(instruction)
            elif isinstance(instruction, KillHook):
                process = self._runs.get(instruction.run_id)
                if process is not None:
                    process.kill()
            elif isinstance(instruction, KillStep):
                for step in self._of(instruction.step, instruction.job_id):
                    step.kill(instruction.signal)
            elif isinstance(instruction, LoseStep):
                for step in self._of(instruction.step, instruction.job_id):
                    del self._steps[step.key]
                    step.lose()
        if self._ended_jobs:
            ended, self._ended_jobs = self._ended_jobs, []
            for job_id in ended:
                self.rules.forget(job_id)
        self._set_timer()

    def _of(self, number: int, job_id: int) -> list[Step]:
        step = self._by_number.get(number)
        return [step] if step is not None and step.alive and step.launch.job_id == job_id else []

    def _set_timer(self) -> None:
        at = self.rules.next_timer()
        if at is None or not self.rules.up:
            return
        if self._timer is not None:
            if self._timer[2] is not None and self._timer[0] <= at:
                return
            self._timer.cancel()
        self._timer = self._kernel.at(at, self._time_passed, self._life)

    def _time_passed(self, life: int) -> None:
        if life != self._life or not self.rules.up:
            return
        self._timer = None
        self._carry_out(self.rules.time_passed(self._kernel.now))

    def _changed(self, job_id: int) -> None:
        job = self.rules.jobs[job_id]
        change = JobChange(
            self._kernel.now, job_id, self._incarnation(job_id), job.restarts, job.state, job.reason, job.exit_code,
            job.signal, job.final,
        )  # fmt: skip
        self._record.jobs.append(change)
        if self._forget_ended and job.state.ended:
            self._ended_jobs.append(job_id)

    # -- hooks --------------------------------------------------------------------------------------------------------

    def _start_hook(self, start: StartHook) -> None:
        hook = self._host.hook
        kind = "prolog" if start.hook is Hook.PROLOG else "epilog"
        life = self._life
        restarts = self.rules.jobs[start.job_id].restarts
        label = f"{kind}:{start.job_id}/{restarts}"
        incarnation = self._incarnation(start.job_id)
        environment = start.environment
        if not any(name in environment for name in ("SPANK_JUICE_POOL", "SPANK_JUICE_GPU_COUNT", "SPANK_JUICE_VRAM")):
            # The wrapper lets such a job through before any interpreter starts.
            self._kernel.after(0.0, self._hook_over, life, start.run_id, 0, 0)
            return

        def ended(process: HookProcess, code: int, signal: int) -> None:
            self._note_end(process, code, signal)
            self._runs.pop(start.run_id, None)
            self._kernel.after(0.0, self._hook_over, life, start.run_id, code, signal)

        if start.stillborn:
            self._record.hooks.append(
                HookEnd(kind, start.job_id, restarts, incarnation, self._kernel.now, self._kernel.now, 0, True)
            )
            self._kernel.after(0.0, self._hook_over, life, start.run_id, 0, SIGKILL)
            return
        job = hook.Job(environment, self._hook_settings)
        generator = (hook.prolog if kind == "prolog" else hook.epilog)(job, self._hook_settings)
        process = self._host.spawn(label, generator, ended, (kind, start.job_id, restarts, incarnation))
        if process.alive:
            self._runs[start.run_id] = process

    def _hook_over(self, life: int, run_id: int, code: int, signal: int) -> None:
        if life == self._life and self.rules.up:
            self._carry_out(self.rules.hook_ended(self._kernel.now, run_id, code, signal))

    def _note_end(self, process: HookProcess, code: int, signal: int) -> None:
        kind, job_id, restarts, incarnation = process.about
        verdict, session_id = "", ""
        for text in process.said:
            if text.startswith("granted "):
                verdict, session_id = "granted", text.rpartition("session ")[2]
            elif text.startswith("denied:"):
                verdict = "denied"
        self._record.hooks.append(
            HookEnd(
                kind,
                job_id,
                restarts,
                incarnation,
                process.started,
                self._kernel.now,
                code,
                bool(signal),
                verdict or ("killed" if signal else "ok" if not code else "failed"),
                session_id,
                repr(process.fault) if process.fault is not None else "",
            )
        )
        for text in process.said:
            self._record.log.append((self._kernel.now, job_id, f"{kind} {restarts}: {text}"))

    # -- steps --------------------------------------------------------------------------------------------------------

    def _start_step(self, start: LaunchStep) -> None:
        job = self.rules.jobs[start.job_id]
        payload = job.spec.payload
        launch = Launch(
            start.step,
            start.job_id,
            job.restarts,
            self._incarnation(start.job_id),
            job.spec.user_id,
            "JUICE_POOL" in job.spec.spank_env,
            float(payload["run_time"]),
            bool(payload.get("ignores_term")),
            job.nodes[0],
        )
        step = self._launch(launch, self._step_over)
        step.key, self._next_key = self._next_key, self._next_key + 1
        self._steps[step.key] = self._by_number[start.step] = step

    def _step_over(self, step: Step, code: int, signal: int) -> None:
        self._steps.pop(step.key, None)
        if self._by_number.get(step.launch.step) is step:
            del self._by_number[step.launch.step]
        life = self._life

        def report() -> None:
            job = self.rules.jobs.get(step.launch.job_id)
            if job is not None and job.step == step.launch.step:
                self._carry_out(self.rules.step_ended(self._kernel.now, step.launch.step, code, signal))

        if self.rules.up and life == self._life:
            self._kernel.after(0.0, report)
        else:
            self._late.append(report)

    # -- the end ------------------------------------------------------------------------------------------------------

    @property
    def all_ended(self) -> bool:
        """Whether every job that slurmctld knows has ended."""
        return all(job.state.ended for job in self.rules.jobs.values())

    @property
    def busy(self) -> bool:
        """Whether a step runs, or something is due at slurmctld."""
        return bool(self._steps) or self.rules.next_timer() is not None
