"""One agent: happenings in, instructions out. No clock, no I/O, no threads.

The same object runs in the agent's process, in Ray actors that carry many, and in virtual time. A driver tells it what
happened (`handle`), carries out the instructions in their order and reports back what came of them.

The rhythm is the real agent's: register once; then, at each `PollDue`, read the own record, start sessions that are
assigned, end those that are canceling, report. What the real one gets wrong is right here: a controller that cannot
answer is asked again, the end of one session leaves the others alone, and an agent that the controller has forgotten
ends what it still runs and registers again.

    driver                      core
    PollDue               ->    SendRegister
    Registered(id)        ->
    PollDue               ->    SendFetch(id)
    RecordRead(sessions)  ->    StartSession*, KillConnection*, SendReport(UpdateAgent)
    ReportAccepted        ->
    RequestFailed(status) ->    (nothing: asked again at the next PollDue), or Complain, or GiveUp

At most one request is under way. Each KillConnection must be answered with ProcessEnded once the process is gone: a
session is reported closed only when nothing of it runs, because its VRAM is given to others at that moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum

from .commands import RegisterAgent, SessionReport, UpdateAgent
from .model import AgentState, Connection, SessionState

POLL_S = 1.0
LONGEST_POLL_S = 8.0  # well below the 30 s of silence after which an agent is missing
FORGOTTEN = 2**62  # revision up to which nothing of a session needs to be told any more
LONGEST_NAME = 255
KEPT_ENDED = 64  # ended processes per session that are kept once the controller knows of them: a job may have thousands
KILLED = -1  # exit code of a process that was killed because its session ended


# Happenings


@dataclass(frozen=True)
class Happening:
    """Base of what a driver tells the core."""


@dataclass(frozen=True)
class PollDue(Happening):
    """`AgentCore.next_poll_s` seconds have passed since the last answer or failure; or, earlier, there is news."""


@dataclass(frozen=True)
class Registered(Happening):
    """The controller has answered SendRegister."""

    agent_id: str


@dataclass(frozen=True)
class RecordedSession:
    """A session in the agent's record: its state and (GPU index, bytes) of each of its GPUs."""

    state: SessionState
    gpus: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class RecordRead(Happening):
    """The controller has answered SendFetch. Closed sessions are not in the record."""

    sessions: Mapping[str, RecordedSession]
    state: AgentState = AgentState.ACTIVE


@dataclass(frozen=True)
class ReportAccepted(Happening):
    """The controller has answered SendReport."""


@dataclass(frozen=True)
class RequestFailed(Happening):
    """The request under way failed: with an HTTP status, or None when no answer came (time-out, refused, reset)."""

    status: int | None = None
    reason: str = ""
    retry_after_s: float | None = None


@dataclass(frozen=True)
class Connected(Happening):
    """A process connects to a session. `connection.id` is chosen by the driver, unique within the agent."""

    session_id: str
    connection: Connection


@dataclass(frozen=True)
class ProcessRenamed(Happening):
    """The process has become another program (exec)."""

    session_id: str
    connection_id: str
    process_name: str


@dataclass(frozen=True)
class ProcessEnded(Happening):
    """A connection has ended, by itself with an exit code or after KillConnection."""

    session_id: str
    connection_id: str
    exit_code: int = 0


@dataclass(frozen=True)
class Drain(Happening):
    """Take no further sessions; those that run go on. Undone by `Resume`."""


@dataclass(frozen=True)
class Resume(Happening):
    """Take sessions again."""


@dataclass(frozen=True)
class Shutdown(Happening):
    """End everything and tell the controller; a driver that cannot wait may just stop polling."""


# Instructions


@dataclass(frozen=True)
class Instruction:
    """Base of what the core asks of its driver."""


@dataclass(frozen=True)
class SendRegister(Instruction):
    """POST /v1/register/agent."""

    command: RegisterAgent


@dataclass(frozen=True)
class SendFetch(Instruction):
    """GET /v1/agent/{id}."""

    agent_id: str


@dataclass(frozen=True)
class SendReport(Instruction):
    """PUT /v1/agent/{id}."""

    command: UpdateAgent


@dataclass(frozen=True)
class StartSession(Instruction):
    """Connections to this session are welcome from now on."""

    session_id: str
    gpus: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class KillConnection(Instruction):
    """End a process of a session; answer with ProcessEnded."""

    session_id: str
    connection_id: str


@dataclass(frozen=True)
class EndSession(Instruction):
    """The session is over and nothing of it runs any more."""

    session_id: str


@dataclass(frozen=True)
class RefuseConnection(Instruction):
    """Close a connection that has just been made; `reason` is for the process's user."""

    session_id: str
    connection_id: str
    reason: str


@dataclass(frozen=True)
class Complain(Instruction):
    """Write one line to the log; the core goes on."""

    text: str


@dataclass(frozen=True)
class GiveUp(Instruction):
    """The controller will never take this agent: exit with this one line."""

    reason: str


# State


class Phase(str, Enum):
    """Where an agent is in its life."""

    UNREGISTERED = "unregistered"
    SERVING = "serving"
    STOPPING = "stopping"
    STOPPED = "stopped"


@dataclass
class LocalSession:
    """A session as the agent has it. `revision` counts changes; `told` is the last that the controller took."""

    id: str
    gpus: tuple[tuple[int, int], ...]
    state: SessionState = SessionState.ACTIVE
    connections: dict[str, Connection] = field(default_factory=dict)
    vram_used: dict[tuple[str, int], int] = field(default_factory=dict)  # (connection id, position or -1) -> bytes
    revision: int = 1
    told: int = 0

    @property
    def running(self) -> list[Connection]:
        """The connections whose process still runs."""
        return [connection for connection in self.connections.values() if connection.exit_code is None]

    @property
    def vram(self) -> int:
        """Bytes of VRAM that the session may use in all."""
        return sum(size for _, size in self.gpus)

    def used_on(self, position: int) -> int:
        """Bytes in use on the session's GPU at `position` (from 0); what was not said to be on one counts as on 0."""
        return sum(used for (_, where), used in self.vram_used.items() if max(where, 0) == position)


def _printable(name: str) -> str:
    """A name that comes from the user's process. One that the controller refuses would cost every later heartbeat."""
    return "".join(c if c.isprintable() else "?" for c in name[:LONGEST_NAME])


class AgentCore:
    """See the module. `template` is what the agent registers with, again when the controller has forgotten it."""

    def __init__(self, template: RegisterAgent) -> None:
        self.template = template
        self.agent_id = ""
        self.phase = Phase.UNREGISTERED
        self.sessions: dict[str, LocalSession] = {}
        self.next_poll_s = POLL_S
        self._state = AgentState.ACTIVE
        self._told_state: AgentState | None = None
        self._reported_state = AgentState.ACTIVE
        self._under_way: str = ""  # "", "register", "fetch" or "report"
        self._in_report: dict[str, tuple[int, dict[str, Connection]]] = {}  # session id -> (revision, connections)
        self._failures = 0

    def handle(self, happening: Happening) -> list[Instruction]:
        """Take in what happened; what the driver shall do, in order. Raises TypeError for an unknown happening."""
        match happening:
            case PollDue():
                return self._poll()
            case Registered(agent_id):
                self._answered()
                self.agent_id = agent_id
                if self.phase is Phase.STOPPED:  # shut down while the registration was under way: take it back
                    self.phase = Phase.STOPPING
                    return self._report()
                self.phase = Phase.SERVING
                return []
            case RecordRead(sessions, state):
                self._answered()
                return self._forgotten() if state is AgentState.CLOSED else self._read(sessions)
            case ReportAccepted():
                self._answered()
                self._told()
                return []
            case RequestFailed():
                return self._failed(happening)
            case Connected(session_id, connection):
                return self._connect(session_id, connection)
            case ProcessRenamed(session_id, connection_id, process_name):
                return self._rename(session_id, connection_id, process_name)
            case ProcessEnded(session_id, connection_id, exit_code):
                return self._process_ended(session_id, connection_id, exit_code)
            case Drain():
                self._state = AgentState.DISABLED
                return []
            case Resume():
                self._state = AgentState.ACTIVE
                return []
            case Shutdown():
                return self._shut_down()
        raise TypeError(f"{type(happening).__name__} is no happening of an agent")

    @property
    def has_news(self) -> bool:
        """Whether a report would tell the controller anything; a driver may then poll early."""
        return self._state is not self._told_state or any(s.revision > s.told for s in self.sessions.values())

    @property
    def idle(self) -> bool:
        """True when no session is left: a draining agent may go."""
        return not self.sessions

    def use_vram(self, session_id: str, connection_id: str, size: int, position: int = -1) -> bool:
        """A process now uses `size` bytes on the session's GPU at `position` (from 0; -1: on any of them).

        False, and nothing changes, when there is not as much left. All processes of a session share its VRAM: the
        second one does not get the slice again.
        """
        session = self.sessions.get(session_id)
        connection = session.connections.get(connection_id) if session is not None else None
        if session is None or connection is None or connection.exit_code is not None or size < 0:
            return False
        if not -1 <= position < len(session.gpus):
            return False
        before = session.vram_used.get((connection_id, position), 0)
        if position >= 0 and session.used_on(position) - before + size > session.gpus[position][1]:
            return False
        if sum(session.vram_used.values()) - before + size > session.vram:
            return False
        session.vram_used[connection_id, position] = size
        return True

    def vram_used(self) -> dict[str, int]:
        """Bytes in use per session, for metrics."""
        return {session.id: sum(session.vram_used.values()) for session in self.sessions.values()}

    def vram_granted(self) -> dict[int, int]:
        """Bytes granted per GPU index, for metrics; GPUs without a session are absent."""
        granted: dict[int, int] = {}
        for session in self.sessions.values():
            if session.state is not SessionState.CLOSED:
                for index, size in session.gpus:
                    granted[index] = granted.get(index, 0) + size
        return granted

    # Requests

    def _poll(self) -> list[Instruction]:
        if self._under_way or self.phase is Phase.STOPPED:
            return []
        if self.phase is Phase.UNREGISTERED:
            if self.sessions:
                return []  # what an earlier registration left has still to end
            self._under_way = "register"
            return [SendRegister(self.template)]
        if self.phase is Phase.STOPPING:
            return self._report()
        self._under_way = "fetch"
        return [SendFetch(self.agent_id)]

    def _report(self) -> list[Instruction]:
        self._under_way = "report"
        news = {s.id: s for s in self.sessions.values() if s.revision > s.told}
        reports = {sid: SessionReport(session.state, dict(session.connections)) for sid, session in news.items()}
        self._in_report = {sid: (news[sid].revision, report.connections) for sid, report in reports.items()}
        stopped = self.phase is Phase.STOPPING and not any(session.running for session in self.sessions.values())
        state = AgentState.CLOSED if stopped else self._state
        self._reported_state = state
        return [SendReport(UpdateAgent(self.agent_id, state, reports))]

    def _answered(self) -> None:
        self._under_way = ""
        self._failures = 0
        self.next_poll_s = POLL_S

    def _told(self) -> None:
        self._told_state = self._reported_state
        for session_id, (revision, connections) in self._in_report.items():
            session = self.sessions.get(session_id)
            if session is None:
                continue
            session.told = max(session.told, revision)
            ended = [cid for cid, connection in connections.items() if connection.exit_code is not None]
            for connection_id in ended[:-KEPT_ENDED]:
                session.connections.pop(connection_id, None)
            if session.state is SessionState.CLOSED and session.told == session.revision:
                del self.sessions[session_id]
        self._in_report = {}
        if self._reported_state is AgentState.CLOSED:
            self.phase = Phase.STOPPED
            self.sessions.clear()

    def _failed(self, failure: RequestFailed) -> list[Instruction]:
        what, self._under_way = self._under_way, ""
        status = failure.status
        self._failures += 1
        self.next_poll_s = min(POLL_S * 2 ** min(self._failures - 1, 10), LONGEST_POLL_S)
        if failure.retry_after_s is not None and failure.retry_after_s > 0:
            self.next_poll_s = min(failure.retry_after_s, LONGEST_POLL_S)
        answer = f"HTTP {status}" if status is not None else "no answer"
        text = f"{what or 'request'}: {answer}{': ' + failure.reason if failure.reason else ''}"
        if what == "register":
            if status in (400, 403, 404, 413, 415, 422):
                self.phase = Phase.STOPPED
                return [GiveUp(f"the controller does not take this agent: {text}")]
            return [Complain(f"{text}; trying again in {self.next_poll_s:g} s")]
        if status == 404:
            if self.phase is Phase.STOPPING:
                self.phase = Phase.STOPPED
                return []
            return [Complain("the controller does not know this agent any more; registering again"), *self._forgotten()]
        return [Complain(f"{text}; trying again in {self.next_poll_s:g} s")]

    def _forgotten(self) -> list[Instruction]:
        """The controller has removed this agent and closed its sessions: end what runs, then register again."""
        self.phase = Phase.UNREGISTERED
        self.agent_id = ""
        self._told_state = None
        self.next_poll_s = POLL_S
        instructions: list[Instruction] = []
        for session in list(self.sessions.values()):
            instructions += self._end(session, report=False)
        return instructions

    # Sessions

    def _read(self, recorded: Mapping[str, RecordedSession]) -> list[Instruction]:
        instructions: list[Instruction] = []
        if self.phase is not Phase.SERVING:
            return self._report() if self.phase is Phase.STOPPING else []
        for session_id, record in recorded.items():
            session = self.sessions.get(session_id)
            if record.state in (SessionState.ASSIGNED, SessionState.ACTIVE) and session is None:
                # "active" and unknown: the agent's process has been restarted under the same id; the session lives on
                self.sessions[session_id] = LocalSession(session_id, record.gpus)
                instructions.append(StartSession(session_id, record.gpus))
            elif record.state is SessionState.CANCELING:
                if session is None:
                    session = self.sessions[session_id] = LocalSession(session_id, record.gpus)
                instructions += self._end(session, report=True)
        for session in list(self.sessions.values()):
            if session.id not in recorded:
                instructions += self._end(session, report=False)  # closed without us
        return instructions + self._report()

    def _connect(self, session_id: str, connection: Connection) -> list[Instruction]:
        session = self.sessions.get(session_id)
        if session is None:
            return [RefuseConnection(session_id, connection.id, f"session {session_id} is not on this agent")]
        if session.state is not SessionState.ACTIVE:
            return [RefuseConnection(session_id, connection.id, f"session {session_id} is {session.state.value}")]
        if connection.id in session.connections:
            return [RefuseConnection(session_id, connection.id, f"connection {connection.id!r} exists already")]
        if not 0 <= connection.pid < 2**63:
            return [RefuseConnection(session_id, connection.id, f"{connection.pid} is no process id")]
        name = _printable(connection.process_name)
        session.connections[connection.id] = Connection(connection.id, connection.pid, name)
        session.revision += 1
        return []

    def _rename(self, session_id: str, connection_id: str, process_name: str) -> list[Instruction]:
        session = self.sessions.get(session_id)
        connection = session.connections.get(connection_id) if session is not None else None
        name = _printable(process_name)
        if session is not None and connection is not None and name not in ("", connection.process_name):
            session.connections[connection_id] = replace(connection, process_name=name)
            session.revision += 1
        return []

    def _process_ended(self, session_id: str, connection_id: str, exit_code: int) -> list[Instruction]:
        session = self.sessions.get(session_id)
        connection = session.connections.get(connection_id) if session is not None else None
        if session is None or connection is None or connection.exit_code is not None:
            return []
        code = KILLED if session.state is not SessionState.ACTIVE else exit_code
        ended = Connection(connection.id, connection.pid, connection.process_name, code)
        session.connections[connection_id] = ended
        session.vram_used = {key: used for key, used in session.vram_used.items() if key[0] != connection_id}
        session.revision += 1
        if session.state is SessionState.CANCELING and not session.running:
            return self._over(session)
        return []

    def _end(self, session: LocalSession, *, report: bool) -> list[Instruction]:
        """End a session; its state becomes closed when the last process is gone. Ending twice is fine."""
        if not report:
            session.told = FORGOTTEN
        if session.state is not SessionState.ACTIVE:
            if session.state is SessionState.CLOSED and not report:
                self.sessions.pop(session.id, None)
            return []
        session.state = SessionState.CANCELING
        session.revision += 1
        if not session.running:
            return self._over(session)
        return [KillConnection(session.id, connection.id) for connection in session.running]

    def _over(self, session: LocalSession) -> list[Instruction]:
        session.state = SessionState.CLOSED
        session.vram_used.clear()
        session.revision += 1
        if session.told == FORGOTTEN:
            del self.sessions[session.id]
        return [EndSession(session.id)]

    def _shut_down(self) -> list[Instruction]:
        if self.phase in (Phase.STOPPING, Phase.STOPPED):
            return []
        if self.phase is Phase.UNREGISTERED:
            self.phase = Phase.STOPPED
            return []
        self.phase = Phase.STOPPING
        instructions: list[Instruction] = []
        for session in list(self.sessions.values()):
            instructions += self._end(session, report=True)
        return instructions
