"""An agent as a process: the real `AgentCore`, whose instructions become messages to the controller and the end of
programs. It may crash (its programs go with it), hang, be cut off, and come back.

The rhythm is that of `juice_sim/agent_process.py`: the report waits at the controller until there is something to do;
with `waits` False it is the real agent's: ask each second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from juice_sim.core import agent as core
from juice_sim.core.commands import RegisterAgent
from juice_sim.core.controller import Principal
from juice_sim.core.errors import Refused
from juice_sim.core.model import Connection, SessionState
from juice_sim.rest_base import STATUS

from .controller_host import ControllerHost
from .kernel import Kernel, Timer
from .network import Call, Lost, Network

LONGEST_WAIT_S = 8.0
REQUEST_TIMEOUT_S = 15.0


class AgentHost:
    """One agent. `kill_program(session id, connection id)` is called when a program's connection is ended from here.
    `pace_s` seconds pass before it does what there is to do, so that what happens together is told together."""

    def __init__(
        self,
        kernel: Kernel,
        network: Network,
        controller: ControllerHost,
        number: int,
        template: RegisterAgent,
        principal: Principal,
        waits: bool,
        kill_program: Callable[[AgentHost, str, str], None],
        longest_wait_s: float = LONGEST_WAIT_S,
        pace_s: float = 0.0,
    ) -> None:
        self._pace_s = pace_s
        self._kernel = kernel
        self._network = network
        self._controller = controller
        self.number = number
        self.name = f"agent:{number}"
        self.address = template.address
        self.template = template
        self._principal = principal
        self._waits = waits
        self._longest_wait_s = longest_wait_s
        self._kill_program = kill_program
        self.core = core.AgentCore(template)
        self.up = True
        self.hangs = False
        self.life = 0
        self._call: Call | None = None
        self._timer: Timer | None = None
        self._record: core.RecordRead | None = None
        self._seen = 0
        self._waiting = False
        self._nudge: Timer | None = None
        self._held: list[Callable[[], None]] = []  # what came while it hung

    # -- life ---------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._poll_in(self._kernel.random.uniform(0.0, 0.2))

    def crash(self) -> None:
        """Its process is gone, and the connections of all programs with it."""
        self.up = False
        self.life += 1
        for timer in (self._timer, self._nudge):
            if timer is not None:
                timer.cancel()
        if self._call is not None:
            self._call.cancel()
        for session in list(self.core.sessions.values()):
            for connection in session.running:
                self._kill_program(self, session.id, connection.id)
        self._held.clear()

    def restart(self) -> None:
        """A new process at the same address: it knows nothing of what ran."""
        self.core = core.AgentCore(self.template)
        self.up = True
        self.hangs = False
        self._record, self._seen, self._waiting, self._call, self._timer = None, 0, False, None, None
        self.start()

    def hang(self) -> None:
        """SIGSTOP: it does nothing, and answers nobody."""
        self.hangs = True

    def go_on(self) -> None:
        """SIGCONT."""
        self.hangs = False
        held, self._held = self._held, []
        for call in held:
            call()

    def _when_awake(self, call: Callable[[], None]) -> None:
        if self.hangs:
            self._held.append(call)
        else:
            call()

    # -- the rhythm ---------------------------------------------------------------------------------------------------

    def _poll_in(self, seconds: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._kernel.after(seconds, self._poll, self.life)

    def _poll(self, life: int) -> None:
        if life != self.life:
            return
        self._timer = None
        if self.hangs:
            self._held.append(lambda: self._poll(life))
            return
        self._carry_out(self.core.handle(core.PollDue()))

    def _carry_out(self, instructions: list[core.Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, core.SendRegister):
                self._ask(self._register, self._registered, REQUEST_TIMEOUT_S)
            elif isinstance(instruction, core.SendFetch):
                self._fetch()
            elif isinstance(instruction, core.SendReport):
                self._report(instruction)
            elif isinstance(instruction, core.KillConnection):
                self._kill_program(self, instruction.session_id, instruction.connection_id)
            elif isinstance(instruction, core.Complain):
                if self._kernel.tracing:
                    self._kernel.tell(self.name, instruction.text)
            elif isinstance(instruction, core.GiveUp):
                raise AssertionError(f"{self.name}: {instruction.reason}")

    def _ask(
        self, carry_out: Callable[[Callable[[Any], None]], None], done: Callable[[Any], None], timeout: float
    ) -> None:
        """One request; `done(answer)` unless it fails."""
        life = self.life

        def deliver(respond: Callable[[Any], None]) -> None:
            try:
                carry_out(respond)
            except Refused as error:
                respond(error)

        def ended(answer: Any) -> None:
            if life != self.life:
                return
            if self.hangs:
                self._held.append(lambda: ended(answer))
                return
            self._call = None
            if isinstance(answer, Lost):
                self._failed(core.RequestFailed(None, answer.reason))
            elif isinstance(answer, Refused):
                self._failed(core.RequestFailed(STATUS[answer.kind], str(answer)))
            else:
                done(answer)

        call = self._network.call(self.name, self._controller, deliver, ended, timeout)
        if call.open:
            self._call = call

    def _failed(self, failure: core.RequestFailed) -> None:
        self._record, self._waiting = None, False
        self._carry_out(self.core.handle(failure))
        self._poll_in(self.core.next_poll_s)

    def _register(self, respond: Callable[[Any], None]) -> None:
        agent_id = self._controller.handle(self.template, self._principal)
        self._controller.settled(lambda: respond(agent_id))

    def _registered(self, agent_id: str) -> None:
        self._seen, self._record = 0, None
        if self._kernel.tracing:
            self._kernel.tell(self.name, f"registered as {agent_id}")
        self._carry_out(self.core.handle(core.Registered(agent_id)))
        self._poll_in(0.0)

    def _read_record(self, agent_id: str) -> tuple[core.RecordRead, int]:
        agent = self._controller.controller.agent(agent_id)
        sessions = {}
        if agent.session_ids:
            found = [self._controller.controller.session(session_id) for session_id in agent.session_ids]
            for session in sorted(found, key=lambda session: (session.requested_at, session.id)):
                if session.state is not SessionState.CLOSED:
                    gpus = tuple((grant.index, grant.vram) for grant in session.grants)
                    sessions[session.id] = core.RecordedSession(session.state, gpus)
        return core.RecordRead(sessions, agent.state), self._controller.last_word(agent_id)

    def _fetch(self) -> None:
        record, self._record = self._record, None
        if record is not None and not self._pace_s:
            self._read(record)
            return
        agent_id = self.core.agent_id

        def carry_out(respond: Callable[[Any], None]) -> None:
            answer = self._read_record(agent_id)
            self._controller.settled(lambda: respond(answer))

        def done(answer: tuple[core.RecordRead, int]) -> None:
            self._seen = answer[1]
            self._read(answer[0])

        self._ask(carry_out, done, REQUEST_TIMEOUT_S)

    def _read(self, record: core.RecordRead) -> None:
        self._carry_out(self.core.handle(record))
        if self.core.phase is core.Phase.UNREGISTERED:
            self._poll_in(self.core.next_poll_s)

    def _report(self, instruction: core.SendReport) -> None:
        command, seen = instruction.command, self._seen
        wait = self._longest_wait_s * self._kernel.random.uniform(0.5, 1.0) if self._waits else 0.0
        self._waiting = wait > 0

        def carry_out(respond: Callable[[Any], None]) -> None:
            self._controller.handle(command, self._principal)

            def show() -> None:
                if self._pace_s:
                    respond(None)  # the record will be read afresh, when there may be more in it
                    return
                try:
                    answer = self._read_record(command.agent_id)
                except Refused as error:
                    respond(error)
                    return
                self._controller.settled(lambda: respond(answer))

            if wait:
                self._controller.wait_agent(command.agent_id, seen, wait, show)
            else:
                show()

        def done(answer: tuple[core.RecordRead, int] | None) -> None:
            self._waiting = False
            self._carry_out(self.core.handle(core.ReportAccepted()))
            if wait:
                if answer is not None:
                    self._record, self._seen = answer
                self._poll_in(self._pace_s)
            else:
                self._poll_in(0.0 if self.core.has_news else self.core.next_poll_s)

        self._ask(carry_out, done, REQUEST_TIMEOUT_S + wait)

    def _announce(self) -> None:
        """There is news for the controller: end the report that waits there, as any later request of the agent does."""
        if self._waiting:
            if self._nudge is None:
                self._nudge = self._kernel.after(self._pace_s, self._send_nudge, self.life)
        elif self._timer is not None and not self._pace_s:
            self._poll_in(0.0)

    def _send_nudge(self, life: int) -> None:
        self._nudge = None
        if life != self.life or not self._waiting or not self.core.has_news:
            return
        agent_id = self.core.agent_id

        def carry_out(respond: Callable[[Any], None]) -> None:
            self._controller.end_wait(agent_id)
            respond(None)

        self._network.call(self.name, self._controller, carry_out, lambda _: None, REQUEST_TIMEOUT_S)
        self._nudge = self._kernel.after(0.25, self._send_nudge, self.life)

    # -- programs -----------------------------------------------------------------------------------------------------

    def connect(self, session_id: str, connection: Connection, told: Callable[[str | None], None]) -> None:
        """A program connects; `told(None)` when it is welcome, `told(reason)` when it is refused or broken off."""
        life = self.life

        def take() -> None:
            if life != self.life:
                told("the connection broke")
                return
            refused = self.core.handle(core.Connected(session_id, connection))
            for instruction in refused:
                if isinstance(instruction, core.RefuseConnection):
                    told(instruction.reason)
                    return
            self._announce()
            told(None)

        if not self.up:
            told("connection refused")
        else:
            self._when_awake(take)

    def disconnected(self, life: int, session_id: str, connection_id: str, exit_code: int) -> None:
        """The program of a connection is gone."""

        def take() -> None:
            if life != self.life or not self.up:
                return
            self._carry_out(self.core.handle(core.ProcessEnded(session_id, connection_id, exit_code)))
            self._announce()
            if self.core.phase is core.Phase.UNREGISTERED and self._call is None and self._timer is None:
                self._poll_in(self.core.next_poll_s)

        self._when_awake(take)
