"""A job's processes on their compute node: what the plugin does there, then the job's program.

The plugin's rules are those of `fake_cluster/slurm/node_side.py` and `spank-plugin/remote.c`: wait (bounded) for the
session file of this very start, open it with the real `unseal_session`, fail the job by a denial or when there is none,
connect to the agent, run. When the agent ends the connection, the program is killed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from juice_sim.core.model import Connection

from .agent_host import AgentHost
from .hook_process import Host
from .kernel import Kernel, Timer
from .record import ProgramRun

PASSING = ("missing", "empty", "null", "truncated")


@dataclass
class Launch:
    """What a node is told of a step. `incarnation` tells jobs apart that have had the same id."""

    step: int
    job_id: int
    restarts: int
    incarnation: int
    user: int
    asked: bool
    run_time: float
    ignores_term: bool
    node: str


class Step:
    """One launch on its node. `ended(exit code, signal)` is called once, unless the node is lost."""

    def __init__(
        self,
        kernel: Kernel,
        host: Host,
        agents: Mapping[str, AgentHost],
        programs: dict[tuple[str, str], Step],
        launch: Launch,
        session_wait: float,
        cluster: str,
        ended: Callable[[Step, int, int], None],
        ran: Callable[[ProgramRun], None],
    ) -> None:
        self._kernel = kernel
        self._host = host
        self._agents = agents
        self._programs = programs
        self.launch = launch
        self.key = 0  # of who started it
        self._wait_until = kernel.now + session_wait
        self._cluster = cluster
        self._ended = ended
        self._ran = ran
        self.alive = True
        self.refusal = ""
        self.program: ProgramRun | None = None
        self._agent: AgentHost | None = None
        self._agent_life = 0
        self._connection = ""
        self._timer: Timer | None = None
        self._pause = 0.02
        # Until when a file that is new does not exist for this node (a cache of names on NFS).
        self._blind_for = kernel.random.choice((0.5, 3.0, 20.0)) if kernel.chance(host.chances.file_delay) else 0.0
        delay = 0.0 if host.instant else kernel.random.uniform(0.005, 0.05)
        self._timer = kernel.after(delay, self._look if launch.asked else self._run_plain)

    # -- the plugin ---------------------------------------------------------------------------------------------------

    def _look(self) -> None:
        hook, launch = self._host.hook, self.launch
        inode = self._host.disk.files.get(f"sessions/{launch.job_id}.session")
        fault, fields = "missing", None
        if inode is not None and self._kernel.now - inode.born >= self._blind_for:
            try:
                fields = hook.unseal_session(inode.data, self._host.key, self._cluster, launch.job_id, launch.user)
                fault = ""
            except hook.SessionFileError as error:
                fault = error.kind
        if fields is not None and int(fields["restart_count"]) == launch.restarts:
            if fields["verdict"] == "denied":
                self._refuse(f"denied: {fields['reason']}")
            else:
                self._connect(fields)
            return
        if (fields is None and fault not in PASSING) or self._kernel.now >= self._wait_until:
            self._refuse(f"the session file is {fault or 'of another start'}")
            return
        self._timer = self._kernel.after(self._pause, self._look)
        self._pause = min(self._pause * 1.5, 0.25)

    def _refuse(self, reason: str) -> None:
        self.refusal = reason
        if self._kernel.tracing:
            self._kernel.tell(self.launch.node, f"job {self.launch.job_id} gets no session: {reason}")
        self._end(1, 0)

    def _connect(self, fields: dict[str, str]) -> None:
        agent = self._agents.get(fields["address"])
        if agent is None:
            self._refuse(f"nobody at {fields['address']}")
            return
        self._connection = f"{self.launch.job_id}-{self.launch.step}-{self.launch.incarnation}"
        self._agent, self._agent_life = agent, agent.life
        session_id = fields["session_id"]

        def told(reason: str | None) -> None:
            if not self.alive:
                if reason is None:
                    self._disconnect(session_id, 0)
                return
            if reason is not None:
                if self.program is None:
                    self._refuse(f"cannot connect to the agent: {reason}")
                return
            self._begin(session_id, agent.address)

        connection = Connection(self._connection, 4000 + self.launch.step, "program")
        delay = 0.0 if self._host.instant else self._kernel.random.uniform(0.0005, 0.01)
        self._timer = self._kernel.after(delay, agent.connect, session_id, connection, told)

    # -- the program --------------------------------------------------------------------------------------------------

    def _run_plain(self) -> None:
        self._begin("", "")

    def _begin(self, session_id: str, address: str) -> None:
        launch = self.launch
        self.program = ProgramRun(
            launch.job_id, launch.restarts, launch.incarnation, launch.user, session_id, address, self._kernel.now
        )
        self._ran(self.program)
        if session_id:
            self._programs[session_id, self._connection] = self
        if self._kernel.tracing:
            self._kernel.tell(
                launch.node, f"job {launch.job_id} start {launch.restarts} runs on session {session_id or '-'}"
            )
        self._timer = self._kernel.after(launch.run_time, self._end, 0, 0)

    def _disconnect(self, session_id: str, code: int) -> None:
        if self._agent is not None and session_id:
            self._programs.pop((session_id, self._connection), None)
            delay = 0.0 if self._host.instant else self._kernel.random.uniform(0.0005, 0.01)
            self._kernel.after(delay, self._agent.disconnected, self._agent_life, session_id, self._connection, code)

    def _end(self, code: int, signal: int) -> None:
        if not self.alive:
            return
        self.alive = False
        if self._timer is not None:
            self._timer.cancel()
        if self.program is not None:
            self.program.ended = self._kernel.now
            self._disconnect(self.program.session_id, code if not signal else 128 + signal)
        self._ended(self, code, signal)

    def time_to_die(self) -> float:
        """Seconds that its program takes to end once its connection is gone."""
        return 0.0 if self._host.instant else self._kernel.random.uniform(0.0, 1.5)

    def session_lost(self) -> None:
        """The agent has ended the connection: the program dies."""
        if self.alive:
            self._end(0, 9)

    def kill(self, signal: int) -> None:
        """A signal from slurmstepd."""
        if not self.alive or (signal != 9 and self.launch.ignores_term and self.program is not None):
            return
        delay = 0.0 if self._host.instant or signal == 9 else self._kernel.random.uniform(0.0, 1.0)
        self._kernel.after(delay, self._end, 0, signal)

    def lose(self) -> None:
        """The node is gone, and the step with it; nobody reports."""
        self._ended = lambda step, code, signal: None
        self._end(0, 9)


def kill_program(
    programs: dict[tuple[str, str], Step], kernel: Kernel, agent: AgentHost, session_id: str, connection_id: str
) -> None:
    """An agent ends a connection. One whose program is gone already is reported by the program's own end."""
    step = programs.get((session_id, connection_id))
    if step is not None:
        if not agent.up and step.program is not None:
            step.program.agent_died = kernel.now
        kernel.after(step.time_to_die(), step.session_lost)
