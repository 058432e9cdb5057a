"""Agents at the controller: registration, reports, silence, removal, restarts; and time that goes wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from juice_sim.core import events as ev
from juice_sim.core.commands import CloseSession, RegisterAgent, SessionReport, Tick, UpdateAgent
from juice_sim.core.controller import ADMIN, Controller, Principal
from juice_sim.core.errors import Kind, Refused
from juice_sim.core.model import AgentState, Connection, Gpu, SessionState

if TYPE_CHECKING:
    from .conftest import World

ALICE = Principal("alice")
CLOSED = SessionReport(SessionState.CLOSED)


def refused(kind: Kind, field: str, act: Callable[[], Any]) -> Refused:
    with pytest.raises(Refused) as refusal:
        act()
    assert (refusal.value.kind, refusal.value.field) == (kind, field)
    return refusal.value


def gpu(index: int = 0, vram: Any = 100, **fields: Any) -> Gpu:
    return Gpu(index, f"uuid-{index}", "A10", vram, **fields)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"gpus": ()}, "gpus"),
        ({"gpus": (gpu(0), gpu(0))}, "gpus[1].index"),
        ({"gpus": (gpu(0, pci_bus="0:1"), gpu(1, pci_bus="0:1"))}, "gpus[1].pciBus"),
        ({"gpus": (gpu(-1),)}, "gpus[0].index"),
        ({"gpus": (gpu(0, 0),)}, "gpus[0].vram"),
        ({"gpus": (gpu(0, 2**63),)}, "gpus[0].vram"),
        ({"gpus": (gpu(0, float("nan")),)}, "gpus[0].vram"),
        ({"gpus": (gpu(0, True),)}, "gpus[0].vram"),
        ({"gpus": (gpu(0, vendor_id=2**32),)}, "gpus[0].vendorId"),
        ({"gpus": ("gpu",)}, "gpus[0]"),
        ({"hostname": "a\0b"}, "hostname"),
        ({"address": "x" * 5000}, "address"),
        ({"labels": {"a": 1}}, "labels.a"),
        ({"labels": {"": "x"}}, "labels key"),
        ({"labels": {str(n): "" for n in range(300)}}, "labels"),
        ({"taints": {"a": "\ud800"}}, "taints.a"),
        ({"taints": []}, "taints"),
    ],
)
def test_bad_registrations(world: World, fields: dict[str, Any], field: str) -> None:
    pool = world.pool()
    refused(Kind.INVALID, field, lambda: world.agent(pool, 100, **fields))
    assert world.controller.agents() == []


def test_registration_needs_a_pool(world: World) -> None:
    refused(Kind.NOT_FOUND, "poolId", lambda: world.agent("nowhere", 100))


@pytest.mark.parametrize(
    ("report", "field"),
    [
        (SessionReport(SessionState.QUEUED), ".state"),
        (SessionReport("running"), ".state"),  # type: ignore[arg-type]
        (SessionReport(SessionState.ACTIVE, {"c": Connection("", 1, "x")}), ".connections.id"),
        (SessionReport(SessionState.ACTIVE, {"c": Connection("c", -1, "x")}), ".connections.pid"),
        (SessionReport(SessionState.ACTIVE, {"c": Connection("c", 1, "x", 2**64)}), ".connections.exitCode"),
    ],
)
def test_one_bad_session_refuses_the_whole_report(world: World, report: SessionReport, field: str) -> None:
    pool = world.pool()
    agent = world.agent(pool, 100)
    good, bad = world.request(pool, 10), world.request(pool, 10)
    reports = {good: SessionReport(SessionState.ACTIVE), bad: report}
    refused(Kind.INVALID, f"sessions.{bad}{field}", lambda: world.do(UpdateAgent(agent, None, reports)))
    assert world.state(good) == "assigned"


@pytest.mark.parametrize("state", [AgentState.MISSING, "gone"])
def test_states_that_no_agent_reports(world: World, state: Any) -> None:
    agent = world.agent(world.pool(), 100)
    refused(Kind.INVALID, "state", lambda: world.do(UpdateAgent(agent, state)))


def test_foreign_sessions_and_agents(world: World) -> None:
    pool = world.pool()
    mine, other = world.agent(pool, 100), world.agent(pool, 100)
    session, queued = world.request(pool), world.request(pool, gpus=2)
    for session_id in (session, queued, "unknown"):
        refused(
            Kind.INVALID, f"sessions.{session_id}", lambda s=session_id: world.do(UpdateAgent(other, None, {s: CLOSED}))
        )
    refused(Kind.FORBIDDEN, "id", lambda: world.do(UpdateAgent(mine, None, {session: CLOSED}), ALICE))
    assert world.state(session) == "assigned"


def test_reports_that_come_late_or_twice_change_nothing(world: World) -> None:
    pool = world.pool()
    agent = world.agent(pool, 100)
    session = world.request(pool)
    world.activate(session)
    world.do(CloseSession(session))
    for stale in (SessionState.ASSIGNED, SessionState.ACTIVE, SessionState.CANCELING):
        world.do(UpdateAgent(agent, None, {session: SessionReport(stale)}))
        assert world.state(session) == "canceling"
    for _ in range(2):
        world.do(UpdateAgent(agent, None, {session: CLOSED}))
        assert world.state(session) == "closed"
    world.do(UpdateAgent(agent, None, {session: SessionReport(SessionState.ACTIVE)}))
    assert world.state(session) == "closed" and world.controller.gpu_use(agent) == {0: (0, 0)}


def test_connections_are_recorded_and_do_not_come_back_to_life(world: World) -> None:
    pool = world.pool()
    agent = world.agent(pool, 100)
    session = world.request(pool)
    running, ended = Connection("c1", 7, "python"), Connection("c1", 7, "python", -1)
    for connection in (running, running, ended, running):
        world.do(UpdateAgent(agent, None, {session: SessionReport(SessionState.ACTIVE, {"c1": connection})}))
    assert world.session(session).connections == {"c1": ended}
    assert sum(isinstance(event, ev.ConnectionChanged) for event in world.events) == 2


def test_heartbeats_leave_no_event(world: World) -> None:
    agent = world.agent(world.pool(), 100)
    count = len(world.events)
    for _ in range(100):
        world.advance(20)
        world.report(agent)
    assert len(world.events) == count and world.controller.agent(agent).last_seen == world.now


def test_silent_agent_goes_missing_then_is_removed_with_its_sessions(world: World) -> None:
    pool = world.pool()
    agent = world.agent(pool, 100, 100)
    held, waiting = world.request(pool), world.request(pool, gpus=2)
    assert world.controller.next_deadline() == 1030.0
    world.advance(29.9)
    assert world.controller.agent(agent).state is AgentState.ACTIVE
    world.advance(0.2)
    assert world.controller.agent(agent).state is AgentState.MISSING
    assert world.state(held) == "assigned" and world.state(world.request(pool)) == "queued"
    world.advance(299.8)
    assert world.state(held) == "assigned"
    world.advance(0.2)
    assert world.controller.agent(agent).state is AgentState.CLOSED
    assert world.state(held) == "closed" and "silent for 330 s" in world.session(held).close_reason
    assert world.state(waiting) == "queued" and world.controller.agents() == []
    refused(Kind.NOT_FOUND, "id", lambda: world.report(agent))  # the agent then registers again


def test_a_report_revives_a_missing_agent_and_serves_those_who_wait(world: World) -> None:
    pool = world.pool()
    agent = world.agent(pool, 100)
    world.advance(31)
    session = world.request(pool)
    assert world.state(session) == "queued"
    world.report(agent)
    assert world.controller.agent(agent).state is AgentState.ACTIVE and world.state(session) == "assigned"


def test_disabled_agent_keeps_its_sessions_and_gets_no_new_ones(world: World) -> None:
    pool = world.pool()
    agent = world.agent(pool, 100, 100)
    held = world.request(pool)
    world.report(agent, AgentState.DISABLED)
    waiting = world.request(pool)
    assert (world.state(held), world.state(waiting)) == ("assigned", "queued")
    world.close(held)
    assert world.state(waiting) == "queued"
    world.report(agent, AgentState.ACTIVE)
    assert world.state(waiting) == "assigned"


def test_agent_that_shuts_down_ends_its_sessions(world: World) -> None:
    pool = world.pool()
    agent, other = world.agent(pool, 100), world.agent(pool, 100)
    session, kept = world.request(pool), world.request(pool)
    world.report(agent, AgentState.CLOSED)
    assert (world.state(session), world.state(kept)) == ("closed", "assigned")
    assert [a.id for a in world.controller.agents()] == [other]


def test_agent_that_was_restarted_has_lost_its_sessions(world: World) -> None:
    pool = world.pool()
    where = {"hostname": "gpu7", "address": "10.0.0.7:43210"}
    old = world.agent(pool, 100, **where)
    lost, waiting = world.request(pool), world.request(pool)
    new = world.agent(pool, 100, **where)
    assert world.controller.agent(old).state is AgentState.CLOSED
    assert world.state(lost) == "closed" and "started again" in world.session(lost).close_reason
    assert world.session(waiting).agent_id == new


def test_nobody_pushes_another_users_agent_out(world: World) -> None:
    pool, own = world.pool("theirs"), world.pool("own", ALICE)
    where = {"hostname": "gpu7", "address": "10.0.0.7:43210"}
    agent = world.agent(pool, 100, **where)
    refused(Kind.CONFLICT, "address", lambda: world.agent(own, 100, principal=ALICE, **where))
    assert world.controller.agent(agent).state is AgentState.ACTIVE
    world.advance(31)
    world.agent(own, 100, principal=ALICE, **where)
    assert world.controller.agent(agent).state is AgentState.MISSING
    world.report(agent)
    world.advance(20)


def test_agents_without_address_do_not_replace_each_other(world: World) -> None:
    pool = world.pool()
    for _ in range(2):
        world.agent(pool, 100, hostname="h", address="")
    assert len(world.controller.agents()) == 2


def test_session_timeout_counts_from_active(world: World) -> None:
    pool = world.pool()
    agent = world.agent(pool, 100)
    session = world.request(pool, more={"timeout_s": 25.0})
    world.advance(20)
    world.activate(session)
    assert world.controller.next_deadline() == 1045.0
    world.advance(24)
    world.report(agent)
    assert world.state(session) == "active"
    world.advance(1)
    assert world.state(session) == "canceling" and "25 s" in world.session(session).close_reason
    world.close(session)
    assert world.session(session).close_reason == "session timeout of 25 s"


def test_history_is_forgotten_after_seven_days(world: World) -> None:
    pool = world.pool()
    agent = world.agent(pool, 100)
    session = world.request(pool, more={"idempotency_key": "k"})
    world.report(agent, AgentState.CLOSED)
    world.advance(7 * 86400 - 1)
    assert world.state(session) == "closed"
    world.advance(1)
    refused(Kind.NOT_FOUND, "id", lambda: world.session(session))
    refused(Kind.NOT_FOUND, "id", lambda: world.controller.agent(agent))
    assert world.controller.story(session) == [] and world.controller.next_deadline() is None
    assert world.request(pool, more={"idempotency_key": "k"}) != session


@pytest.mark.parametrize("how", ["replay", "restore"])
def test_a_restart_gives_every_agent_the_full_time_again(world: World, how: str) -> None:
    pool = world.pool()
    silent, missing = world.agent(pool, 100), world.agent(pool, 100)
    session = world.request(pool, more={"timeout_s": 10_000.0})
    world.advance(20)
    world.report(silent)
    world.activate(session)
    world.advance(15)
    assert world.controller.agent(missing).state is AgentState.MISSING
    if how == "replay":
        controller = Controller(world.settings, lambda: next(world.ids))
        controller.replay(world.events)
    else:
        controller = Controller.restore(world.controller.snapshot(), world.settings, lambda: next(world.ids))
    world.controller = controller
    world.now += 5000  # the controller was down
    world.do(Tick())
    assert world.controller.agent(silent).state is AgentState.ACTIVE
    assert world.controller.agent(missing).state is AgentState.MISSING
    world.advance(29)
    assert world.controller.agent(silent).state is AgentState.ACTIVE
    world.advance(2)
    assert world.controller.agent(silent).state is AgentState.MISSING
    assert world.state(session) == "active"
    world.advance(270)
    assert world.controller.agent(missing).state is AgentState.CLOSED


def test_a_clock_that_goes_backwards_harms_nothing(world: World) -> None:
    pool = world.pool()
    world.now = 1_000_000.0
    agent = world.agent(pool, 100)
    session = world.request(pool, more={"timeout_s": 60.0})
    world.activate(session)
    world.now = 1000.0
    world.do(Tick())
    assert world.controller.agent(agent).state is AgentState.ACTIVE and world.state(session) == "active"
    due = world.controller.next_deadline()
    assert due is not None and 1000.0 < due <= 1030.0
    world.advance(31)  # silence is noticed in the usual time, not in 11 days
    assert world.controller.agent(agent).state is AgentState.MISSING
    world.report(agent)
    world.advance(29)
    assert world.state(session) == "canceling"


@pytest.mark.parametrize("now", [float("nan"), float("inf"), float("-inf")])
def test_a_time_that_is_none(world: World, now: float) -> None:
    with pytest.raises(ValueError, match="finite"):
        world.controller.handle(Tick(), now=now, principal=ADMIN)


def test_registration_copies_what_the_caller_could_change(world: World) -> None:
    labels = {"zone": "a"}
    pool = world.pool()
    agent = world.do(RegisterAgent("h", "h:1", pool, (gpu(),), labels=labels))
    labels["zone"] = "b"
    assert world.controller.agent(agent).labels == {"zone": "a"}
