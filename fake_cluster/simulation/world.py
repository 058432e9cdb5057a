"""One simulated world: controller, agents, Slurm, hooks, nodes, network, disk, on one event heap.

`World(plan).run()` plays a plan and returns its record. Nothing but the plan decides what happens: the same plan gives
the same record, byte for byte.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from juice_sim.core import events as ev
from juice_sim.core.commands import CreatePool, GrantPermission, RegisterAgent
from juice_sim.core.controller import Principal
from juice_sim.core.model import Gpu, Permission
from juice_sim.core.settings import Settings

from ..slurm.interface import SubmitError
from ..slurm.node_side import hook_module
from ..slurm.rules_jobs import ClusterConfig, JobSpec
from .agent_host import AgentHost
from .controller_host import ControllerHost
from .disk import Disk
from .hook_process import HookProcess, Host
from .injector import Injector
from .kernel import Kernel
from .network import Network
from .node_host import Launch, Step, kill_program
from .plan import Chances, JobPlan, Plan
from .record import HookEnd, Record
from .slurm_host import SlurmHost

CLUSTER = "juicesim"
HOOK_USER = Principal("slurm")
AGENT_USER = Principal("agents")
VALIDATE_EVERY_S = 5.0


class World:
    """See the module. `trace` gets one line per event."""

    def __init__(self, plan: Plan, trace: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.record = Record()
        self.kernel = kernel = Kernel(plan.seed, trace)
        controller_skew, host_skew, _ = plan.skews
        settings = Settings(
            missing_after_s=plan.missing_after,
            removed_after_s=plan.removed_after,
            default_policy=plan.policy,
            default_queue_policy=plan.queue_policy,
        )
        self.controller = ControllerHost(
            kernel, settings, self._published, skew=controller_skew, slow_commit=plan.chances.slow_commit
        )
        self.network = Network(kernel, plan.chances, plan.latency)
        self.disk = Disk()
        hook = hook_module()
        self.host = Host(kernel, self.disk, self.network, self.controller, hook, plan.chances, host_skew)
        self.hook_settings = hook.Settings(
            {"JUICE_CONTROLLER": "https://juice.example", "JUICE_WAIT": f"{plan.wait:g}"}
        )
        self.node_names = [f"node{number}" for number in range(1, plan.nodes + 1)]
        config = ClusterConfig(
            nodes=dict.fromkeys(self.node_names, plan.cpus_per_node),
            cluster_name=CLUSTER,
            cred_expire=plan.cred_expire,
            prolog_epilog_timeout=plan.prolog_epilog_timeout,
            kill_wait=plan.kill_wait,
            stillborn_epilog=plan.chances.stillborn,
        )
        self.slurm = SlurmHost(kernel, config, self.host, self.hook_settings, self.record, self._launch, plan.forgetful)
        self.agents: dict[str, AgentHost] = {}
        self.agent_list: list[AgentHost] = []
        self.programs: dict[tuple[str, str], Step] = {}
        self.job_ids: dict[int, int] = {}  # the plan's number -> Slurm's id
        self.pool_ids: dict[str, str] = {}
        self._submitted = 0
        self._reconcile: HookProcess | None = None
        self._clean_reconcile = -1.0
        self._when_up: list[Callable[[], None]] = []

    # -- building -----------------------------------------------------------------------------------------------------

    def _set_up(self) -> None:
        controller = self.controller
        for pool in self.plan.pools:
            pool_id = controller.handle(CreatePool(pool.name)).id
            self.pool_ids[pool.name] = pool_id
            controller.handle(GrantPermission(Permission.REGISTER_AGENT, AGENT_USER.user_id, pool_id))
            for _ in range(pool.agents):
                number = len(self.agent_list)
                gpus = tuple(
                    Gpu(index, str(uuid.UUID(int=number * 1000 + index)), "A10", pool.vram)
                    for index in range(pool.gpus)
                )
                template = RegisterAgent(
                    f"gpu{number}", f"10.0.{number // 250}.{number % 250 + 1}:43210", pool_id, gpus
                )
                agent = AgentHost(
                    self.kernel,
                    self.network,
                    controller,
                    number,
                    template,
                    AGENT_USER,
                    pool.waits,
                    self._kill_program,
                )
                self.agent_list.append(agent)
                self.agents[template.address] = agent
        controller.make_token(HOOK_USER.user_id, list(self.pool_ids.values()))
        self.host.token = controller.secret
        # The world begins in good order: a pool that no agent has ever joined would make requests hopeless.
        self._settle()
        for agent in self.agent_list:
            agent.start()
        calm, self.network.chances = self.network.chances, Chances()
        self.kernel.run(3600.0, lambda: all(agent.core.agent_id for agent in self.agent_list))
        self.network.chances = calm

    def _settle(self) -> None:
        done: list[bool] = []
        self.controller.settled(lambda: done.append(True))
        while not done and self.kernel.step():
            pass

    def _kill_program(self, agent: AgentHost, session_id: str, connection_id: str) -> None:
        kill_program(self.programs, self.kernel, agent, session_id, connection_id)

    def _launch(self, launch: Launch, ended: Callable[[Step, int, int], None]) -> Step:
        return Step(
            self.kernel,
            self.host,
            self.agents,
            self.programs,
            launch,
            self.plan.session_file_wait,
            CLUSTER,
            ended,
            self.record.programs.append,
        )

    def _published(self, event: ev.Event, at: float) -> None:
        self.record.events.append((at, event))
        if self.kernel.tracing:
            self.kernel.tell("log", _shown(event))

    # -- jobs ---------------------------------------------------------------------------------------------------------

    def _submit(self, job: JobPlan) -> None:
        if not self.slurm.rules.up:
            self.kernel.after(1.0, self._submit, job)  # as a user would: again
            return
        self._submitted += 1
        specs = [
            JobSpec(
                name=f"job{job.number}",
                user_id=job.user,
                batch=job.batch,
                requeue=job.requeue,
                cpus_per_task=job.cpus,
                time_limit=job.time_limit,
                array_tasks=tuple(range(job.array)) if job.array else None,
                array_limit=job.array_limit,
                spank_env=component.spank_env,
                payload={"number": job.number, "run_time": job.run_time, "ignores_term": job.ignores_term},
            )
            for component in job.components
        ]
        try:
            self.job_ids[job.number] = self.slurm.submit(specs)
        except SubmitError as error:
            self.kernel.tell("slurmctld", f"job {job.number} is refused: {error}")

    # -- reconcile ----------------------------------------------------------------------------------------------------

    def _reconcile_due(self) -> None:
        self.kernel.after(self.plan.reconcile_every, self._reconcile_due)
        if self._reconcile is not None and self._reconcile.alive:
            return  # a timer starts no second run of its service
        text = self.slurm.queue_text()
        # squeue was asked a moment before; reconcile must bear an old list.
        delay = self.kernel.random.uniform(0.01, 2.0)
        self.kernel.after(delay, self._start_reconcile, text)

    def _start_reconcile(self, text: str | None) -> None:
        hook = self.host.hook
        queue = hook.parse_queue(text) if text is not None else None
        generator = hook.reconcile(self.hook_settings, queue)
        process = self.host.spawn("reconcile", generator, self._reconcile_ended, ("reconcile", 0, 0, 0))
        self._reconcile = process

    def _reconcile_ended(self, process: HookProcess, code: int, signal: int) -> None:
        fault = repr(process.fault) if process.fault is not None else ""
        self.record.hooks.append(
            HookEnd("reconcile", 0, 0, 0, process.started, self.kernel.now, code, bool(signal), "", "", fault)
        )
        if not code and not signal:
            self._clean_reconcile = process.started

    # -- faults -------------------------------------------------------------------------------------------------------

    def when_controller_is_up(self, call: Callable[[], None]) -> None:
        """Now, or as soon as it is back."""
        if self.controller.up:
            call()
        else:
            self._when_up.append(call)

    def controller_is_back(self) -> None:
        """The controller serves again."""
        waiting, self._when_up = self._when_up, []
        for call in waiting:
            call()

    def revoke_token(self) -> None:
        if self.controller.token_id in {token.id for token in self.controller.controller.tokens()}:
            self.controller.revoke_token()

    def renew_token(self) -> None:
        """The site puts a new token into the hooks' token file, once it is durable."""
        self.controller.make_token(HOOK_USER.user_id, list(self.pool_ids.values()))
        secret = self.controller.secret

        def use() -> None:
            self.host.token = secret

        self.controller.settled(use)
        self.kernel.after(30.0, self._check_token, secret)

    def _check_token(self, secret: str) -> None:
        """A token that the controller lost in a crash is made again."""
        if self.controller.secret == secret and self.host.token != secret:
            self.when_controller_is_up(self.renew_token)

    def _validate(self) -> None:
        self.kernel.after(VALIDATE_EVERY_S, self._validate)
        if self.controller.up:
            self.controller.controller.validate()
        self.slurm.rules.validate()

    def _calm(self) -> None:
        """Faults stop: nothing goes wrong by chance any more."""
        self.kernel.tell("world", "faults stop here")
        self.record.faults.append((self.kernel.now, "faults stop here"))
        self.network.chances = Chances()
        self.host.chances = Chances()
        self.controller._slow_commit = 0.0
        self.slurm.rules.config = replace(self.slurm.rules.config, stillborn_epilog=0.0)

    # -- running ------------------------------------------------------------------------------------------------------

    def run(self) -> Record:
        """Play the plan: chaos, then calm until the world is at rest or patience is at its end."""
        plan, kernel, record = self.plan, self.kernel, self.record
        try:
            self._set_up()
            for job in plan.jobs:
                kernel.at(job.at, self._submit, job)
            Injector(self).schedule()
            kernel.after(plan.reconcile_every, self._reconcile_due)
            kernel.after(VALIDATE_EVERY_S, self._validate)
            kernel.run(plan.chaos)
            self._calm()
            end = plan.chaos + plan.patience
            while kernel.now < end:
                kernel.run(min(kernel.now + 5.0, end))
                if self.at_rest():
                    record.quiet = True
                    break
            if self.controller.up:
                self.controller.controller.validate()
        except AssertionError as error:
            record.crash = f"{type(error).__name__}: {error}"
        record.ended = kernel.now
        record.leftovers = sorted(
            path for path in self.disk.files if path.startswith(("journal/", "sessions/"))
        )  # fmt: skip
        return record

    def at_rest(self) -> bool:
        """All jobs have ended, no session is open, no hook runs, no file of a job is left."""
        if self._submitted < len(self.plan.jobs) or not self.slurm.rules.up or not self.controller.up:
            return False
        if not self.slurm.all_ended or self.host.processes or self.slurm._steps:
            return False
        if any(path.startswith(("journal/", "sessions/")) for path in self.disk.files):
            return False
        return not self.controller.controller.sessions() and self._clean_reconcile > self.plan.chaos


def _shown(event: ev.Event) -> str:
    """An event on one line, in the order of its fields."""
    values: dict[str, Any] = {
        name: getattr(event, name) for name in type(event).__dataclass_fields__ if name not in ("at", "gpus", "token")
    }
    texts = (f"{name}={value!r}" for name, value in values.items())
    return f"{type(event).__name__} " + " ".join(texts)
