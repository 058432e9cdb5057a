"""The pure agent, alone and against a real controller over a network that loses requests and replies."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import pytest

from juice_sim.core import agent as ag
from juice_sim.core.commands import CloseSession, RegisterAgent
from juice_sim.core.errors import Kind, Refused
from juice_sim.core.model import AgentState, Connection, Gpu, SessionState

if TYPE_CHECKING:
    from .conftest import World

GPUS = (Gpu(0, "u0", "A10", 100), Gpu(1, "u1", "A10", 100))
TEMPLATE = RegisterAgent("h", "h:1", "pool", GPUS)
ASSIGNED = SessionState.ASSIGNED
CANCELING = SessionState.CANCELING


def serving() -> ag.AgentCore:
    core = ag.AgentCore(TEMPLATE)
    assert core.handle(ag.PollDue()) == [ag.SendRegister(TEMPLATE)]
    assert core.handle(ag.Registered("a1")) == []
    return core


def poll(core: ag.AgentCore, **sessions: SessionState) -> list[ag.Instruction]:
    """One round in which everything succeeds; the instructions without the requests."""
    assert core.handle(ag.PollDue()) == [ag.SendFetch("a1")]
    record = {name: ag.RecordedSession(state, ((0, 40),)) for name, state in sessions.items()}
    *instructions, report = core.handle(ag.RecordRead(record))
    assert isinstance(report, ag.SendReport)
    core.handle(ag.ReportAccepted())
    return instructions


def test_assigned_session_is_started_and_reported_active() -> None:
    core = serving()
    core.handle(ag.PollDue())
    start, report = core.handle(ag.RecordRead({"s": ag.RecordedSession(ASSIGNED, ((0, 40),))}))
    assert start == ag.StartSession("s", ((0, 40),))
    assert isinstance(report, ag.SendReport) and report.command.agent_id == "a1"
    assert report.command.state is AgentState.ACTIVE
    assert report.command.sessions["s"].state is SessionState.ACTIVE
    core.handle(ag.ReportAccepted())
    assert not core.has_news and core.vram_granted() == {0: 40}


def test_only_one_request_is_under_way() -> None:
    core = ag.AgentCore(TEMPLATE)
    assert len(core.handle(ag.PollDue())) == 1
    assert core.handle(ag.PollDue()) == []


def test_lost_report_is_told_again() -> None:
    core = serving()
    core.handle(ag.PollDue())
    core.handle(ag.RecordRead({"s": ag.RecordedSession(ASSIGNED)}))
    (complaint,) = core.handle(ag.RequestFailed(None, "timed out"))
    assert isinstance(complaint, ag.Complain) and "timed out" in complaint.text
    assert core.has_news
    core.handle(ag.PollDue())
    (report,) = core.handle(ag.RecordRead({"s": ag.RecordedSession(ASSIGNED)}))
    assert isinstance(report, ag.SendReport) and report.command.sessions["s"].state is SessionState.ACTIVE


@pytest.mark.parametrize("status", [None, 500, 502, 503, 429, 401, 403, 400])
def test_a_controller_that_cannot_answer_is_asked_again(status: int | None) -> None:
    """The real agent exits when one answer is missing."""
    core = serving()
    poll(core, s=ASSIGNED)
    waits = []
    for _ in range(6):
        assert core.handle(ag.PollDue()) == [ag.SendFetch("a1")]
        assert [type(i) for i in core.handle(ag.RequestFailed(status))] == [ag.Complain]
        waits.append(core.next_poll_s)
    assert waits == [1, 2, 4, 8, 8, 8]
    assert poll(core, s=ASSIGNED) == [] and core.next_poll_s == 1 and "s" in core.sessions


def test_retry_after_is_kept_but_never_longer_than_heartbeats_allow() -> None:
    core = serving()
    for asked, kept in ((3.0, 3.0), (3600.0, ag.LONGEST_POLL_S)):
        core.handle(ag.PollDue())
        core.handle(ag.RequestFailed(429, "", asked))
        assert core.next_poll_s == kept


def test_cancel_kills_this_session_and_leaves_the_others() -> None:
    """The real agent dies with all its sessions when one of them is cancelled."""
    core = serving()
    poll(core, s=ASSIGNED, t=ASSIGNED)
    for session in "st":
        assert core.handle(ag.Connected(session, Connection(f"c-{session}", 7, "python"))) == []
    assert poll(core, s=CANCELING, t=SessionState.ACTIVE) == [ag.KillConnection("s", "c-s")]
    assert core.sessions["s"].state is CANCELING  # not closed while its process runs
    assert core.handle(ag.ProcessEnded("s", "c-s", 0)) == [ag.EndSession("s")]
    assert core.sessions["s"].connections["c-s"].exit_code == ag.KILLED
    poll(core, s=CANCELING, t=SessionState.ACTIVE)
    assert list(core.sessions) == ["t"] and core.sessions["t"].running


def test_session_without_processes_ends_at_once() -> None:
    core = serving()
    poll(core, s=ASSIGNED)
    assert poll(core, s=CANCELING) == [ag.EndSession("s")]
    assert core.idle


def test_session_that_was_canceled_before_it_started_is_closed() -> None:
    core = serving()
    core.handle(ag.PollDue())
    end, report = core.handle(ag.RecordRead({"s": ag.RecordedSession(CANCELING)}))
    assert end == ag.EndSession("s")
    assert isinstance(report, ag.SendReport) and report.command.sessions["s"].state is SessionState.CLOSED


def test_exit_code_of_a_process_is_reported_and_the_session_stays() -> None:
    core = serving()
    poll(core, s=ASSIGNED)
    core.handle(ag.Connected("s", Connection("c", 7, "python")))
    core.handle(ag.ProcessEnded("s", "c", 3))
    assert core.has_news
    core.handle(ag.PollDue())
    (report,) = core.handle(ag.RecordRead({"s": ag.RecordedSession(SessionState.ACTIVE)}))
    assert isinstance(report, ag.SendReport)
    assert report.command.sessions["s"].connections == {"c": Connection("c", 7, "python", 3)}
    assert report.command.sessions["s"].state is SessionState.ACTIVE


def test_connections_that_are_refused() -> None:
    core = serving()
    poll(core, s=ASSIGNED)
    (refusal,) = core.handle(ag.Connected("unknown", Connection("c", 7, "python")))
    assert isinstance(refusal, ag.RefuseConnection) and "not on this agent" in refusal.reason
    assert core.handle(ag.Connected("s", Connection("c", 7, "python"))) == []
    assert isinstance(core.handle(ag.Connected("s", Connection("c", 8, "python")))[0], ag.RefuseConnection)
    assert isinstance(core.handle(ag.Connected("s", Connection("d", -8, "python")))[0], ag.RefuseConnection)
    poll(core, s=CANCELING)
    (refusal,) = core.handle(ag.Connected("s", Connection("e", 9, "python")))
    assert isinstance(refusal, ag.RefuseConnection) and "canceling" in refusal.reason


def test_a_hostile_process_name_costs_no_heartbeat(world: World) -> None:
    pool = world.pool()
    core = ag.AgentCore(RegisterAgent("h", "h:1", pool, GPUS))
    driver = Driver(world, core)
    driver.poll()
    session = world.request(pool)
    driver.poll()
    core.handle(ag.Connected(session, Connection("c", 7, "a\0b\nc\ud800" + "x" * 9999)))
    driver.poll()
    assert world.session(session).connections["c"].process_name.startswith("a?b?c?x")


def test_two_processes_share_the_slice() -> None:
    """nos#52: the second process of a session must not get the slice again."""
    core = serving()
    poll(core, s=ASSIGNED)
    for name in "cd":
        core.handle(ag.Connected("s", Connection(name, 7, "python")))
    assert core.use_vram("s", "c", 30)
    assert not core.use_vram("s", "d", 11) and core.use_vram("s", "d", 10)
    assert core.vram_used() == {"s": 40}
    core.handle(ag.ProcessEnded("s", "c"))
    assert core.vram_used() == {"s": 10} and core.use_vram("s", "d", 40)
    assert not core.use_vram("s", "c", 0) and not core.use_vram("nobody", "c", 1) and not core.use_vram("s", "d", -1)


def test_forgotten_agent_ends_what_runs_and_registers_again() -> None:
    core = serving()
    poll(core, s=ASSIGNED)
    core.handle(ag.Connected("s", Connection("c", 7, "python")))
    core.handle(ag.PollDue())
    complaint, kill = core.handle(ag.RequestFailed(404))
    assert isinstance(complaint, ag.Complain) and kill == ag.KillConnection("s", "c")
    assert core.handle(ag.PollDue()) == []  # the process may still use the VRAM
    assert core.handle(ag.ProcessEnded("s", "c", 0)) == [ag.EndSession("s")]
    assert core.handle(ag.PollDue()) == [ag.SendRegister(TEMPLATE)] and core.idle
    core.handle(ag.Registered("a2"))
    assert core.handle(ag.PollDue()) == [ag.SendFetch("a2")]


def test_record_that_says_closed_means_forgotten() -> None:
    core = serving()
    core.handle(ag.PollDue())
    core.handle(ag.RecordRead({}, AgentState.CLOSED))
    assert core.handle(ag.PollDue()) == [ag.SendRegister(TEMPLATE)]


def test_session_that_vanished_from_the_record_is_ended() -> None:
    core = serving()
    poll(core, s=ASSIGNED, t=ASSIGNED)
    core.handle(ag.Connected("s", Connection("c", 7, "python")))
    assert poll(core, t=ASSIGNED) == [ag.KillConnection("s", "c")]
    assert core.handle(ag.ProcessEnded("s", "c", 0)) == [ag.EndSession("s")]
    assert list(core.sessions) == ["t"]


@pytest.mark.parametrize("status", [400, 403, 404, 422])
def test_registration_that_can_never_succeed(status: int) -> None:
    core = ag.AgentCore(TEMPLATE)
    core.handle(ag.PollDue())
    (instruction,) = core.handle(ag.RequestFailed(status, "no such pool"))
    assert isinstance(instruction, ag.GiveUp) and "no such pool" in instruction.reason
    assert core.handle(ag.PollDue()) == []


@pytest.mark.parametrize("status", [None, 401, 409, 429, 503])
def test_registration_is_tried_again(status: int | None) -> None:
    core = ag.AgentCore(TEMPLATE)
    core.handle(ag.PollDue())
    assert [type(i) for i in core.handle(ag.RequestFailed(status))] == [ag.Complain]
    assert core.handle(ag.PollDue()) == [ag.SendRegister(TEMPLATE)]


def test_drain_and_resume() -> None:
    core = serving()
    poll(core, s=ASSIGNED)
    for happening, state in ((ag.Drain(), AgentState.DISABLED), (ag.Resume(), AgentState.ACTIVE)):
        core.handle(happening)
        assert core.has_news
        core.handle(ag.PollDue())
        (report,) = core.handle(ag.RecordRead({"s": ag.RecordedSession(ASSIGNED)}))
        assert isinstance(report, ag.SendReport) and report.command.state is state
        core.handle(ag.ReportAccepted())
    assert "s" in core.sessions


def test_shutdown_waits_for_processes_then_says_closed() -> None:
    core = serving()
    poll(core, s=ASSIGNED)
    core.handle(ag.Connected("s", Connection("c", 7, "python")))
    assert core.handle(ag.Shutdown()) == [ag.KillConnection("s", "c")]
    (report,) = core.handle(ag.PollDue())
    assert isinstance(report, ag.SendReport) and report.command.state is AgentState.ACTIVE
    core.handle(ag.ReportAccepted())
    core.handle(ag.ProcessEnded("s", "c", 0))
    (report,) = core.handle(ag.PollDue())
    assert isinstance(report, ag.SendReport) and report.command.state is AgentState.CLOSED
    assert report.command.sessions["s"].state is SessionState.CLOSED
    core.handle(ag.ReportAccepted())
    assert core.phase is ag.Phase.STOPPED and core.handle(ag.PollDue()) == []


def test_shutdown_while_the_registration_is_under_way_takes_it_back() -> None:
    core = ag.AgentCore(TEMPLATE)
    core.handle(ag.PollDue())
    core.handle(ag.Shutdown())
    (report,) = core.handle(ag.Registered("a1"))
    assert isinstance(report, ag.SendReport) and report.command.state is AgentState.CLOSED


def test_unknown_happening() -> None:
    with pytest.raises(TypeError, match="no happening"):
        ag.AgentCore(TEMPLATE).handle(ag.Happening())


class Driver:
    """Carries instructions out against a controller; may lose requests and replies, and kills slowly."""

    def __init__(self, world: World, core: ag.AgentCore, chance: random.Random | None = None) -> None:
        self.world, self.core, self.chance = world, core, chance
        self.dying: list[ag.KillConnection] = []

    def poll(self) -> None:
        self.carry_out(self.core.handle(ag.PollDue()))

    def carry_out(self, instructions: list[ag.Instruction]) -> None:
        for instruction in instructions:
            match instruction:
                case ag.SendRegister(command) | ag.SendReport(command):
                    self.carry_out(self.core.handle(self.send(command)))
                case ag.SendFetch(agent_id):
                    self.carry_out(self.core.handle(self.fetch(agent_id)))
                case ag.KillConnection():
                    self.dying.append(instruction)

    def send(self, command: object) -> ag.Happening:
        if self.loses():
            return ag.RequestFailed(None, "request lost")
        try:
            reply = self.world.do(command)
        except Refused as refusal:
            assert refusal.kind is Kind.NOT_FOUND, refusal
            return ag.RequestFailed(404, str(refusal))
        if self.loses():
            return ag.RequestFailed(None, "reply lost")
        return ag.Registered(reply) if isinstance(command, RegisterAgent) else ag.ReportAccepted()

    def fetch(self, agent_id: str) -> ag.Happening:
        if self.loses():
            return ag.RequestFailed(503)
        agent = self.world.controller.agent(agent_id)
        record = {}
        for session_id in sorted(agent.session_ids):
            session = self.world.session(session_id)
            gpus = tuple((grant.index, grant.vram) for grant in session.grants)
            record[session_id] = ag.RecordedSession(session.state, gpus)
        return ag.RecordRead(record, agent.state)

    def reap(self) -> None:
        for kill in self.dying:
            self.core.handle(ag.ProcessEnded(kill.session_id, kill.connection_id, 0))
        self.dying = []

    def loses(self) -> bool:
        return self.chance is not None and self.chance.random() < 0.3


@pytest.mark.parametrize("seed", range(5))
def test_agents_and_controller_agree_whatever_gets_lost(world: World, seed: int) -> None:
    """No GPU is ever used by more than it was granted to, by the agents' own account; in the end all is given back."""
    chance = random.Random(seed)
    pool = world.pool()
    cores = [ag.AgentCore(RegisterAgent(f"h{n}", f"h{n}:1", pool, GPUS)) for n in range(2)]
    drivers = [Driver(world, core, chance) for core in cores]
    wanted: list[str] = []
    for step in range(400):
        world.advance(chance.choice((0.3, 1.0, 1.0, 20.0)))
        driver = chance.choice(drivers)
        driver.poll()
        if chance.random() < 0.5:
            driver.reap()
        if chance.random() < 0.4:
            wanted.append(world.request(pool, chance.choice((0, 30, 50))))
        if wanted and chance.random() < 0.4:
            world.do(CloseSession(wanted.pop(chance.randrange(len(wanted)))))
        for session in list(driver.core.sessions.values()):
            if session.state is SessionState.ACTIVE and chance.random() < 0.2:
                driver.core.handle(ag.Connected(session.id, Connection(f"c{step}", step, "python")))
        for core in cores:
            assert all(size <= 100 for size in core.vram_granted().values()), f"step {step}: {core.sessions}"
    for session_id in wanted:
        world.do(CloseSession(session_id))
    for driver in drivers:
        driver.chance = None
    for _ in range(8):
        world.advance(1)
        for driver in drivers:
            driver.poll()
            driver.reap()
    assert world.controller.sessions() == [] and all(core.idle for core in cores)
    assert all(core.phase is ag.Phase.SERVING for core in cores)
    for agent in world.controller.agents():
        assert set(world.controller.gpu_use(agent.id).values()) == {(0, 0)}


def in_session(*gpus: tuple[int, int], processes: tuple[str, ...] = ()) -> ag.AgentCore:
    """An agent with an active session `s` and processes in it."""
    core = serving()
    core.handle(ag.PollDue())
    core.handle(ag.RecordRead({"s": ag.RecordedSession(ASSIGNED, gpus)}))
    core.handle(ag.ReportAccepted())
    for name in processes:
        assert core.handle(ag.Connected("s", Connection(name, 1, "sh"))) == []
    return core


def test_ended_processes_are_forgotten_once_they_are_told_but_for_the_latest() -> None:
    core = in_session((0, 100), processes=tuple(f"c{number}" for number in range(200)))
    for number in range(200):
        core.handle(ag.ProcessEnded("s", f"c{number}", 0))
    core.handle(ag.Connected("s", Connection("runs", 7, "python")))
    core.handle(ag.PollDue())
    (report,) = core.handle(ag.RecordRead({"s": ag.RecordedSession(SessionState.ACTIVE, ((0, 100),))}))
    assert isinstance(report, ag.SendReport)
    assert len(report.command.sessions["s"].connections) == 201  # nothing is dropped that was not told
    core.handle(ag.ReportAccepted())
    latest = [f"c{number}" for number in range(200 - ag.KEPT_ENDED, 200)]
    assert [*core.sessions["s"].connections] == [*latest, "runs"]


def test_memory_is_accounted_for_per_gpu_and_per_session() -> None:
    core = in_session((3, 40), (5, 60), processes=("c", "d"))
    assert core.use_vram("s", "c", 40, 0) and not core.use_vram("s", "d", 1, 0)
    assert core.use_vram("s", "d", 60, 1) and not core.use_vram("s", "c", 1, 1)
    assert not core.use_vram("s", "c", 0, 2) and not core.use_vram("s", "c", 0, -2)
    assert [core.sessions["s"].used_on(position) for position in (0, 1)] == [40, 60]
    core.handle(ag.ProcessEnded("s", "d", 0))
    assert core.vram_used() == {"s": 40} and core.use_vram("s", "c", 60, 1)


def test_a_process_may_become_another_program() -> None:
    core = in_session((0, 100), processes=("c",))
    before = core.sessions["s"].revision
    core.handle(ag.ProcessRenamed("s", "c", "sh"))
    core.handle(ag.ProcessRenamed("s", "nobody", "x"))
    assert core.sessions["s"].revision == before
    core.handle(ag.ProcessRenamed("s", "c", "py\nthon"))
    assert core.sessions["s"].connections["c"].process_name == "py?thon"
    assert core.sessions["s"].revision == before + 1
