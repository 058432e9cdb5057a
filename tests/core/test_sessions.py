"""Sessions: from request to closed, the queue, permissions, idempotency, the 93 % rule, what can never be served."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from juice_sim.core import events as ev
from juice_sim.core.commands import (
    CloseSession,
    DeclareNodeTypes,
    GrantPermission,
    RequestSession,
    RevokePermission,
    UpdateAgent,
)
from juice_sim.core.controller import Principal
from juice_sim.core.errors import Kind, Refused
from juice_sim.core.model import (
    AgentState,
    Gpu,
    GpuRequirement,
    NodeType,
    Permission,
    Requirements,
    SessionState,
)
from juice_sim.core.settings import STRICT_FIFO

if TYPE_CHECKING:
    from .conftest import World

GIB = 2**30
ALICE = Principal("alice")
BOB = Principal("bob")


def refused(world: World, kind: Kind, field: str, act: Callable[[], Any]) -> Refused:
    with pytest.raises(Refused) as refusal:
        act()
    assert (refusal.value.kind, refusal.value.field) == (kind, field)
    assert "\n" not in str(refusal.value)
    return refusal.value


def test_life_of_a_session(world: World) -> None:
    pool = world.pool()
    agent = world.agent(pool, 24 * GIB, version="2024.1", labels={"zone": "a"})
    session = world.request(pool, 2 * GIB, more={"name": "train", "timeout_s": 60.0})
    at = world.session(session)
    assert (at.state, at.agent_id, at.address) == (SessionState.ASSIGNED, agent, "10.0.0.0:43210")
    assert (at.version, at.pool_id, at.requested_at, at.assigned_at) == ("2024.1", pool, 1000.0, 1000.0)
    world.now += 1
    world.activate(session)
    assert world.session(session).active_at == 1001.0
    world.do(CloseSession(session, "job 17 ended"))
    assert world.state(session) == "canceling"
    assert world.controller.gpu_use(agent) == {0: (2 * GIB, 1)}  # not given back before the agent says so
    world.now += 1
    world.close(session)
    at = world.session(session)
    assert (at.state, at.closed_at, at.close_reason) == (SessionState.CLOSED, 1002.0, "job 17 ended")
    assert at.address and at.grants  # stays readable
    assert world.controller.gpu_use(agent) == {0: (0, 0)}
    story = [type(event) for event in world.controller.story(session)]
    assert story == [ev.SessionQueued, ev.SessionAssigned, ev.SessionActivated, ev.SessionCanceling, ev.SessionClosed]


def test_queued_session_closes_at_once(world: World) -> None:
    session = world.request(world.pool())
    assert world.controller.queue() == [session]
    world.do(CloseSession(session))
    assert world.state(session) == "closed" and not world.controller.queue()


def test_assignment_needs_no_tick(world: World) -> None:
    pool = world.pool()
    session = world.request(pool, gpus=2)
    world.agent(pool, 24 * GIB)
    assert world.state(session) == "queued"
    agent = world.agent(pool, 24 * GIB, 24 * GIB)
    assert world.session(session).agent_id == agent


def test_all_gpus_of_a_session_come_from_one_agent(world: World) -> None:
    pool = world.pool()
    for _ in range(3):
        world.agent(pool, 24 * GIB, 24 * GIB)
    assert world.state(world.request(pool, gpus=3)) == "queued"
    session = world.session(world.request(pool, gpus=2))
    assert [grant.index for grant in session.grants] == [0, 1] and all(grant.whole for grant in session.grants)


def test_slices_are_for_single_gpu_sessions(world: World) -> None:
    pool = world.pool()
    world.agent(pool, 24 * GIB, 24 * GIB)
    wanted = (GpuRequirement(0), GpuRequirement(GIB))
    error = refused(world, Kind.INVALID, "gpus[1].vramRequired", lambda: world.request(pool, wanted=wanted))
    assert "one GPU" in error.accepted


@pytest.mark.parametrize(
    ("left", "wanted", "strict", "granted"),
    [
        (93, 100, False, 93),  # exactly 93 %
        (92, 100, False, None),
        (99, 100, False, 99),
        (99, 100, True, None),
        (100, 100, True, 100),
        (94, 101, False, 94),  # 93.07 %
        (93, 101, False, None),  # 92.08 %
        (1, 1, False, 1),
        (927, 997, False, None),  # 92.98 %
        (928, 997, False, 928),
    ],
)
def test_rule_of_93_percent(world: World, left: int, wanted: int, strict: bool, granted: int | None) -> None:
    pool = world.pool()
    world.agent(pool, left)
    session = world.request(pool, wanted, strict=strict)
    assert world.vram(session) == ([] if granted is None else [granted])


def test_less_is_granted_only_when_no_gpu_has_all(world: World) -> None:
    pool = world.pool()
    world.agent(pool, 97, 95)
    roomy = world.agent(pool, 100)
    assert world.session(world.request(pool, 100)).agent_id == roomy
    shaved = world.session(world.request(pool, 100))
    assert [(grant.index, grant.vram) for grant in shaved.grants] == [(0, 97)]  # the largest rest
    assert world.vram(world.request(pool, 100)) == [95]
    assert world.state(world.request(pool, 100)) == "queued"


def test_less_is_granted_only_when_no_gpu_of_any_pool_has_all(world: World) -> None:
    world.agent(world.pool("small"), 95)
    large = world.agent(world.pool("large"), 100)
    assert world.session(world.request("", 100)).agent_id == large


def test_pci_bus_is_honoured(world: World) -> None:
    pool = world.pool()
    agent = world.agent(pool, 100, 100, 100)
    second = world.session(world.request(pool, wanted=(GpuRequirement(0, "0000:01:00.0"),)))
    assert [grant.index for grant in second.grants] == [1]
    assert world.state(world.request(pool, 10, wanted=(GpuRequirement(10, "0000:01:00.0"),))) == "queued"
    both = world.session(world.request(pool, wanted=(GpuRequirement(0), GpuRequirement(0, "0000:00:00.0"))))
    assert [grant.index for grant in both.grants] == [2, 0]  # in the order of the requirements
    assert world.controller.agent(agent).session_ids == {second.id, both.id}
    assert world.state(world.request(pool, wanted=(GpuRequirement(0, "0000:09:00.0"),))) == "queued"


def test_labels_taints_and_selectors(world: World) -> None:
    pool = world.pool()
    plain = world.agent(pool, 100)
    tainted = world.agent(pool, 100, labels={"gpu": "H100"}, taints={"dedicated": "ml"})
    labelled = world.agent(pool, 100, labels={"gpu": "A10"})

    def where(**requirements: Any) -> str:
        session = world.request(pool, 10, **requirements)
        return world.session(session).agent_id

    assert where() == plain
    assert where(match_labels={"gpu": "A10"}) == labelled
    assert where(match_labels={"gpu": "H100"}) == ""
    assert where(match_labels={"gpu": "H100"}, tolerates={"dedicated": "ml"}) == tainted
    assert where(match_labels={"gpu": "H100"}, tolerates={"dedicated": "web"}) == ""
    assert where(label_selector="gpu in (A10, H100)") == labelled
    assert where(label_selector="gpu!=A10") == plain
    assert where(label_selector="gpu", tolerates={"dedicated": "ml"}) == tainted
    refused(world, Kind.INVALID, "labelSelector", lambda: where(label_selector="gpu in A10"))


def test_first_come_first_served_within_what_fits(world: World) -> None:
    pool = world.pool()
    world.agent(pool, 100, 100)
    holders = [world.request(pool), world.request(pool)]
    pair, first, second = world.request(pool, gpus=2), world.request(pool), world.request(pool, 50)
    third = world.request(pool, 50)
    world.close(holders[0])
    assert [world.state(s) for s in (pair, first, second, third)] == ["queued", "assigned", "queued", "queued"]
    world.close(holders[1])  # room for both slices at once
    assert [world.state(s) for s in (pair, first, second, third)] == ["queued", "assigned", "assigned", "assigned"]


def test_strict_fifo_lets_nobody_pass(make_world: Callable[..., World]) -> None:
    world = make_world(queue_policies={"fifo": STRICT_FIFO})
    fifo, other = world.pool("fifo"), world.pool("other")
    world.agent(fifo, 100, 100)
    holder = world.request(fifo)
    pair, small = world.request(fifo, gpus=2), world.request(fifo, 10)
    assert [world.state(s) for s in (pair, small)] == ["queued", "queued"]
    world.do(CloseSession(pair))  # the head leaves: the next has its turn
    assert world.state(small) == "assigned"
    world.agent(other, 100)
    assert world.state(world.request(other, gpus=2)) == "queued"
    assert world.state(world.request(other, 10)) == "assigned"
    world.close(holder)


def test_strict_fifo_when_the_head_may_not_use_the_pool_any_more(make_world: Callable[..., World]) -> None:
    world = make_world(default_queue_policy=STRICT_FIFO)
    pool = world.pool()
    world.do(GrantPermission(Permission.CREATE_SESSION, "alice", pool))
    world.agent(pool, 100)
    world.request("", gpus=2, principal=ALICE)
    behind = world.request(pool, 10)
    assert world.state(behind) == "queued"
    world.do(RevokePermission(Permission.CREATE_SESSION, "alice", pool))
    assert world.state(behind) == "assigned"


def test_any_pool_means_any_that_the_caller_may_use(world: World) -> None:
    closed, opened = world.pool("closed"), world.pool("opened")
    world.agent(closed, 100)
    error = refused(world, Kind.FORBIDDEN, "poolId", lambda: world.request("", principal=ALICE))
    assert "alice" in str(error)
    world.do(GrantPermission(Permission.CREATE_SESSION, "alice", opened))
    session = world.request("", principal=ALICE)
    assert world.state(session) == "queued"
    world.agent(opened, 100)
    assert world.session(session).pool_id == opened
    waiting = world.request("", principal=ALICE)
    world.do(GrantPermission(Permission.CREATE_SESSION, "alice", closed))
    assert world.session(waiting).pool_id == closed
    assert world.state(world.request("")) == "queued"  # an admin's too: both are full


def test_permissions_are_per_pool(world: World) -> None:
    pool, other = world.pool("mine", ALICE), world.pool("theirs", BOB)
    world.agent(pool, 100, principal=ALICE)
    refused(world, Kind.FORBIDDEN, "poolId", lambda: world.request(pool, principal=BOB))
    world.do(GrantPermission(Permission.CREATE_SESSION, "bob", pool), ALICE)
    session = world.request(pool, 10, principal=BOB)
    refused(world, Kind.FORBIDDEN, "poolId", lambda: world.agent(pool, 100, principal=BOB))
    refused(world, Kind.FORBIDDEN, "id", lambda: world.do(CloseSession(session), Principal("carol")))
    assert world.controller.session(session, ALICE).owner == "bob"  # the pool's admin sees it
    with pytest.raises(Refused):
        world.controller.session(session, Principal("carol"))
    assert [s.id for s in world.controller.sessions(principal=BOB)] == [session]
    assert world.controller.sessions(principal=Principal("carol")) == []
    world.do(CloseSession(session), ALICE)
    assert world.state(session) == "canceling"
    assert [p.id for p in world.controller.pools(BOB)] == [pool, other]


def test_key_with_another_body_is_a_conflict(world: World) -> None:
    pool = world.pool()
    world.agent(pool, 100)
    session = world.request(pool, 10, more={"idempotency_key": "k"})
    error = refused(
        world, Kind.CONFLICT, "Idempotency-Key", lambda: world.request(pool, 11, more={"idempotency_key": "k"})
    )
    assert session in str(error)
    other = world.request(pool, 11, more={"idempotency_key": "k"}, principal=Principal("root", is_admin=True))
    assert other != session  # keys are per owner
    refused(world, Kind.INVALID, "Idempotency-Key", lambda: world.request(pool, more={"idempotency_key": "k" * 300}))


def test_repeated_key_needs_no_permission_any_more(world: World) -> None:
    pool = world.pool()
    world.do(GrantPermission(Permission.CREATE_SESSION, "alice", pool))
    session = world.request(pool, principal=ALICE, more={"idempotency_key": "k"})
    world.do(RevokePermission(Permission.CREATE_SESSION, "alice", pool))
    assert world.request(pool, principal=ALICE, more={"idempotency_key": "k"}) == session


@pytest.mark.parametrize(
    ("requirements", "possible", "words"),
    [
        ({"vram": 100}, True, ""),
        ({"vram": 107}, True, ""),  # 100 is 93.5 %
        ({"vram": 107, "strict": True}, False, "slice"),
        ({"vram": 108}, False, "slice"),
        ({"gpus": 2}, True, ""),
        ({"gpus": 3}, False, "3 GPUs"),
        ({"match_labels": {"zone": "b"}}, False, "labels"),
        ({"label_selector": "zone=a"}, True, ""),
        ({"wanted": (GpuRequirement(0, "0000:07:00.0"),)}, False, "bus"),
    ],
)
def test_could_ever_serve(world: World, requirements: dict[str, Any], possible: bool, words: str) -> None:
    """Busy and missing agents count, as do removed ones until they are forgotten."""
    pool = world.pool()
    agent = world.agent(pool, 100, 100, labels={"zone": "a"})
    world.request(pool, gpus=2)

    def ask() -> None:
        more = {"refuse_unsatisfiable": True}
        arguments = dict(requirements)
        vram, gpus = arguments.pop("vram", 0), arguments.pop("gpus", 1)
        if possible:
            assert world.state(world.request(pool, vram, gpus, more=more, **arguments)) == "queued"
        else:
            error = refused(
                world, Kind.UNSATISFIABLE, "", lambda: world.request(pool, vram, gpus, more=more, **arguments)
            )
            assert words in str(error) and "'test'" in str(error)

    ask()
    world.advance(31)
    assert world.controller.agent(agent).state is AgentState.MISSING
    ask()
    world.advance(400)
    assert world.controller.agent(agent).state is AgentState.CLOSED
    ask()
    world.advance(8 * 86400)
    refused(world, Kind.UNSATISFIABLE, "", lambda: world.request(pool, 1, more={"refuse_unsatisfiable": True}))


def test_node_types_make_a_request_possible(world: World) -> None:
    pool = world.pool()
    wanted = Requirements((GpuRequirement(0),) * 4, pool)
    assert world.controller.could_ever_serve(wanted)[0] is False
    gpus = tuple(Gpu(i, "", "H100", 80 * GIB) for i in range(4))
    world.do(DeclareNodeTypes((NodeType("big", pool, gpus, max_workers=0),)))
    assert world.controller.could_ever_serve(wanted)[0] is False
    world.do(DeclareNodeTypes((NodeType("big", pool, gpus, max_workers=2),)))
    assert world.controller.could_ever_serve(wanted) == (True, "")
    world.do(DeclareNodeTypes(()))
    possible, reason = world.controller.could_ever_serve(wanted)
    assert not possible and "no agent" in reason


def test_a_request_nobody_can_serve_waits_unless_asked_to_refuse(world: World) -> None:
    pool = world.pool()
    assert world.state(world.request(pool, 500)) == "queued"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"timeout_s": 0.0}, "sessionTimeout"),
        ({"timeout_s": -1.0}, "sessionTimeout"),
        ({"timeout_s": float("nan")}, "sessionTimeout"),
        ({"timeout_s": float("inf")}, "sessionTimeout"),
        ({"timeout_s": "60"}, "sessionTimeout"),
        ({"name": "x" * 2000}, "name"),
        ({"name": "a\nb"}, "name"),
    ],
)
def test_bad_fields_of_a_request(world: World, more: dict[str, Any], field: str) -> None:
    pool = world.pool()
    refused(world, Kind.INVALID, field, lambda: world.request(pool, more=more))


@pytest.mark.parametrize("wanted", [(), (GpuRequirement(),) * 1025, [GpuRequirement()], None])
def test_number_of_gpus(world: World, wanted: Any) -> None:
    pool = world.pool()
    refused(world, Kind.INVALID, "gpus", lambda: world.do(RequestSession(Requirements(wanted, pool))))


def test_unknown_ids(world: World) -> None:
    refused(world, Kind.NOT_FOUND, "id", lambda: world.do(CloseSession("nobody")))
    refused(world, Kind.NOT_FOUND, "id", lambda: world.do(UpdateAgent("nobody")))
    for read in (world.controller.session, world.controller.agent, world.controller.pool):
        refused(world, Kind.NOT_FOUND, "id", lambda read=read: read("nobody"))


def test_story_is_bounded_and_can_be_switched_off(make_world: Callable[..., World]) -> None:
    for kept in (0, 2):
        world = make_world(story_events=kept)
        pool = world.pool()
        world.agent(pool, 100)
        session = world.request(pool)
        world.close(session)
        assert len(world.controller.story(session)) == kept
