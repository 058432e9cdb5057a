"""Carries out the faults of a plan: each begins at its time and ends after `lasts`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .plan import FaultPlan

if TYPE_CHECKING:
    from .world import World

SLURMD_TIMEOUT_S = 12.0
SIGTERM, SIGKILL = 15, 9


class Injector:
    """`begin` and `end` are looked up by the fault's kind. Ends are made good even when faults overlap."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._down: dict[str, int] = {}  # what is down, and how many faults keep it so

    def schedule(self) -> None:
        """Put all faults of the plan onto the heap."""
        for fault in self._world.plan.faults:
            self._world.kernel.at(fault.at, self._begin, fault)

    def _begin(self, fault: FaultPlan) -> None:
        world = self._world
        world.kernel.tell("fault", f"begins: {fault}")
        world.record.faults.append((world.kernel.now, f"FAULT {fault}"))
        getattr(self, f"_{fault.kind}")(fault)
        if fault.lasts:
            world.kernel.after(fault.lasts, self._tell_end, fault)

    def _tell_end(self, fault: FaultPlan) -> None:
        self._world.kernel.tell("fault", f"ends: {fault}")
        self._world.record.faults.append((self._world.kernel.now, f"fault over: #{fault.number} {fault.kind}"))

    def _hold(self, what: str, seconds: float) -> bool:
        """Keep something down; True when it was up. `_free` is to be asked when the time is over."""
        self._down[what] = self._down.get(what, 0) + 1
        return self._down[what] == 1

    def _free(self, what: str) -> bool:
        """True when no other fault keeps it down."""
        self._down[what] -= 1
        return self._down[what] == 0

    # -- the controller -----------------------------------------------------------------------------------------------

    def _controller_crash(self, fault: FaultPlan) -> None:
        if self._hold("controller", fault.lasts):
            self._world.controller.crash()
            self._world.network.server_died()
        self._world.kernel.after(fault.lasts, self._controller_back)

    def _controller_back(self) -> None:
        if self._free("controller"):
            self._world.controller.restart()
            self._world.controller_is_back()

    def _token_revoked(self, fault: FaultPlan) -> None:
        self._hold("token", fault.lasts)
        self._world.when_controller_is_up(self._world.revoke_token)
        self._world.kernel.after(fault.lasts, self._token_back)

    def _token_back(self) -> None:
        if self._free("token"):
            self._world.when_controller_is_up(self._world.renew_token)

    # -- slurmctld and its host ---------------------------------------------------------------------------------------

    def _slurmctld(self, fault: FaultPlan, signal: int, hooks_die: bool, forgets: bool) -> None:
        if self._hold("slurmctld", fault.lasts):
            self._world.slurm.kill(signal, hooks_die, forgets)
        self._world.kernel.after(fault.lasts, self._slurmctld_back)

    def _slurmctld_back(self) -> None:
        if self._free("slurmctld"):
            self._world.slurm.start()

    def _slurmctld_kill(self, fault: FaultPlan) -> None:
        self._slurmctld(fault, SIGKILL, True, True)

    def _slurmctld_kill_hooks_live(self, fault: FaultPlan) -> None:
        self._slurmctld(fault, SIGKILL, False, False)

    def _slurmctld_term(self, fault: FaultPlan) -> None:
        self._slurmctld(fault, SIGTERM, True, False)

    def _power_loss(self, fault: FaultPlan) -> None:
        world = self._world
        self._slurmctld(fault, SIGKILL, True, True)
        for process in list(world.host.processes.values()):
            process.kill()
        for path in world.disk.power_loss(world.kernel.random):
            world.kernel.tell("disk", f"power loss has changed {path}")

    def _hooks_cut_off(self, fault: FaultPlan) -> None:
        self._cut("hooks", fault.lasts)

    def _disk_full(self, fault: FaultPlan) -> None:
        self._hold("disk", fault.lasts)
        self._world.disk.full = True
        self._world.kernel.after(fault.lasts, self._disk_has_room)

    def _disk_has_room(self) -> None:
        if self._free("disk"):
            self._world.disk.full = False

    def _clock_step_hooks(self, fault: FaultPlan) -> None:
        self._world.host.skew += fault.value

    def _clock_step_controller(self, fault: FaultPlan) -> None:
        self._world.controller.skew += fault.value

    # -- network ------------------------------------------------------------------------------------------------------

    def _cut(self, source: str, seconds: float) -> None:
        self._hold(f"way of {source}", seconds)
        self._world.network.cut.add(source)
        self._world.kernel.after(seconds, self._mend, source)

    def _mend(self, source: str) -> None:
        if self._free(f"way of {source}"):
            self._world.network.cut.discard(source)

    def _agent_cut_off(self, fault: FaultPlan) -> None:
        self._cut(f"agent:{fault.target}", fault.lasts)

    def _latency(self, fault: FaultPlan) -> None:
        self._hold("latency", fault.lasts)
        self._world.network.slow = 4.0
        self._world.kernel.after(fault.lasts, self._quick_again)

    def _quick_again(self) -> None:
        if self._free("latency"):
            self._world.network.slow = 0.0

    # -- agents and nodes ---------------------------------------------------------------------------------------------

    def _agent_crash(self, fault: FaultPlan) -> None:
        agent = self._world.agent_list[fault.target]
        if self._hold(agent.name, fault.lasts):
            agent.crash()
        self._world.kernel.after(fault.lasts, self._agent_back, fault.target)

    def _agent_back(self, target: int) -> None:
        agent = self._world.agent_list[target]
        if self._free(agent.name):
            agent.restart()

    def _agent_hang(self, fault: FaultPlan) -> None:
        agent = self._world.agent_list[fault.target]
        self._hold(f"{agent.name} hangs", fault.lasts)
        agent.hang()
        self._world.kernel.after(fault.lasts, self._agent_awake, fault.target)

    def _agent_awake(self, target: int) -> None:
        agent = self._world.agent_list[target]
        if self._free(f"{agent.name} hangs") and agent.up:
            agent.go_on()

    def _node_fail(self, fault: FaultPlan) -> None:
        world = self._world
        name = world.node_names[fault.target]
        if self._hold(name, fault.lasts):
            world.slurm.lose_node(name)
        world.kernel.after(SLURMD_TIMEOUT_S, self._node_noticed, name)
        world.kernel.after(SLURMD_TIMEOUT_S + fault.lasts, self._node_back, name)

    def _node_noticed(self, name: str) -> None:
        if not self._world.slurm.rules.up:
            # Noticed by the next ping after slurmctld is back.
            self._world.kernel.after(5.0, self._node_noticed, name)
            return
        if self._down[name] > 0:
            self._world.slurm.node_failed(name)

    def _node_back(self, name: str) -> None:
        if not self._world.slurm.rules.up:
            self._world.kernel.after(5.0, self._node_back, name)
            return
        if self._free(name):
            self._world.slurm.node_resumed(name)

    # -- users --------------------------------------------------------------------------------------------------------

    def _scancel(self, fault: FaultPlan) -> None:
        job_id = self._world.job_ids.get(fault.target)
        if job_id is not None:
            self._world.slurm.cancel(job_id)

    def _requeue(self, fault: FaultPlan) -> None:
        job_id = self._world.job_ids.get(fault.target)
        if job_id is not None:
            self._world.slurm.requeue(job_id)
