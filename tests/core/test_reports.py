"""Regressions named after public reports of faults in this field, as far as the core can have them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from juice_sim.core import codec
from juice_sim.core.commands import CloseSession, CreateToken, SessionReport, Tick, UpdateAgent
from juice_sim.core.controller import Controller
from juice_sim.core.errors import Kind, Refused
from juice_sim.core.model import AgentState, GpuRequirement, Permission, SessionState

if TYPE_CHECKING:
    from .conftest import World

GIB = 2**30
MIB = 2**20


def test_hami_1535_ten_slices_of_3000_mib_on_24_gib(world: World) -> None:
    """Exactly 8 fit, and the 93 % rule does not squeeze in a ninth (576 MiB are left)."""
    pool = world.pool()
    world.agent(pool, 24 * GIB)
    sessions = [world.request(pool, 3000 * MIB) for _ in range(10)]
    assert [world.state(s) for s in sessions] == ["assigned"] * 8 + ["queued"] * 2
    assert all(world.vram(s) == [3000 * MIB] for s in sessions[:8])
    world.activate(sessions[3])
    world.close(sessions[3])
    assert world.state(sessions[8]) == "assigned" and world.state(sessions[9]) == "queued"


def test_hami_2923_cycles_leave_nothing_booked(world: World) -> None:
    pool = world.pool()
    agent = world.agent(pool, 24 * GIB, 24 * GIB)
    for round_ in range(200):
        session = world.request(pool, 0 if round_ % 3 == 0 else (1 + round_ % 7) * GIB)
        if round_ % 2:
            world.activate(session)
        world.close(session)
    assert world.controller.gpu_use(agent) == {0: (0, 0), 1: (0, 0)}
    assert world.vram(world.request(pool, gpus=2)) == [24 * GIB] * 2


def test_hami_2156_zero_is_a_whole_gpu_and_books_it(world: World) -> None:
    """A size of 0 must not be booked as 0 and then mean everything: it takes the GPU for itself."""
    pool = world.pool()
    agent = world.agent(pool, 24 * GIB)
    first = world.request(pool)
    second, third = world.request(pool), world.request(pool, 1)
    assert [world.state(s) for s in (first, second, third)] == ["assigned", "queued", "queued"]
    assert world.controller.gpu_use(agent) == {0: (24 * GIB, 1)}


@pytest.mark.parametrize("vram", [-1, 2**63, 2**64, float("nan"), 1.0, True, "1", None])
def test_hami_714_sizes_that_are_none(world: World, vram: object) -> None:
    pool = world.pool()
    world.agent(pool, 24 * GIB)
    with pytest.raises(Refused) as refusal:
        world.request(pool, vram)
    assert refusal.value.kind is Kind.INVALID and refusal.value.field == "gpus[0].vramRequired"


def test_hami_714_the_largest_size_is_no_small_one(world: World) -> None:
    pool = world.pool()
    world.agent(pool, 24 * GIB)
    for vram in (2**32 * MIB, 2**63 - 1, 24 * GIB * 100 // 93 + 2):
        assert world.state(world.request(pool, vram)) == "queued"


def test_snakemake_2774_a_tiny_slice_is_not_rounded_to_nothing(world: World) -> None:
    pool = world.pool()
    agent = world.agent(pool, 24 * GIB)
    session = world.request(pool, 1)
    assert world.vram(session) == [1]
    assert world.controller.gpu_use(agent) == {0: (1, 1)}
    assert world.state(world.request(pool)) == "queued"  # the GPU is shared already


def test_anthropic_sdk_java_370_reply_lost_then_repeated(world: World) -> None:
    """The POST landed, its reply was lost: the retry gets the same session, after a restart too, closed or not."""
    pool = world.pool()
    world.agent(pool, 24 * GIB)
    again = {"idempotency_key": "cluster/17/0"}
    session = world.request(pool, GIB, more=again)
    assert world.request(pool, GIB, more=again) == session
    world.close(session)
    assert world.request(pool, GIB, more=again) == session
    stored = json.loads(json.dumps([codec.encode_event(event) for event in world.events]))
    world.controller = Controller(world.settings, lambda: next(world.ids))
    world.controller.replay(codec.decode_event(event) for event in stored)
    assert world.request(pool, GIB, more=again) == session
    assert len(world.controller.sessions(include_closed=True)) == 1


def test_anthropic_sdk_java_370_a_refusal_does_not_use_up_the_key(world: World) -> None:
    pool = world.pool()
    more = {"idempotency_key": "k", "refuse_unsatisfiable": True}
    with pytest.raises(Refused) as refusal:
        world.request(pool, GIB, more=more)
    assert refusal.value.kind is Kind.UNSATISFIABLE
    world.agent(pool, 24 * GIB)
    assert world.state(world.request(pool, GIB, more=more)) == "assigned"


def test_gribi_68_second_close_is_no_error(world: World) -> None:
    pool = world.pool()
    world.agent(pool, 24 * GIB)
    session = world.request(pool)
    world.close(session)
    before = world.dump()
    world.do(CloseSession(session))
    assert world.dump() == before and world.state(session) == "closed"


def test_slurm_23482_two_prologs_with_one_key_share_one_session(world: World) -> None:
    pool = world.pool()
    world.agent(pool, 24 * GIB, 24 * GIB)
    assert world.request(pool, more={"idempotency_key": "c/9/1"}) == world.request(
        pool, more={"idempotency_key": "c/9/1"}
    )
    world.request(pool, more={"idempotency_key": "c/9/2"})
    assert len(world.controller.sessions()) == 2


def test_perses_3977_expired_token_loses_nothing(world: World) -> None:
    """The token expires between request and release: the session stays, and a renewed token of the user releases it."""
    pool = world.pool()
    world.agent(pool, 24 * GIB)
    rights = ((Permission.CREATE_SESSION, pool),)
    world.do(CreateToken("slurm", "a" * 64, "slurm", 60.0, permissions=rights))
    user = world.controller.authenticate("a" * 64, world.now)
    session = world.request(pool, principal=user)
    world.report(world.session(session).agent_id)
    world.advance(20)
    world.report(world.session(session).agent_id)
    world.now += 40.0
    with pytest.raises(Refused) as refusal:
        world.controller.authenticate("a" * 64, world.now)
    assert refusal.value.kind is Kind.UNAUTHORIZED and world.state(session) == "assigned"
    world.do(CreateToken("slurm, renewed", "b" * 64, "slurm", 60.0))
    renewed = world.controller.authenticate("b" * 64, world.now)
    world.do(CloseSession(session), renewed)
    assert world.state(session) == "canceling"


def test_old_controller_faults_do_not_come_back(world: World) -> None:
    """facts of the open-source controller, section 5: each of its faults, asked of this one."""
    pool = world.pool()
    agent = world.agent(pool, 1000, 1000)
    one = world.request(pool)  # 2: one requirement takes one GPU
    assert len(world.session(one).grants) == 1
    with pytest.raises(Refused):  # 2, 3: 100 + 1500 on two GPUs of 1000
        world.request(pool, wanted=(GpuRequirement(100), GpuRequirement(1500)))
    two = world.request(pool)
    assert world.state(world.request(pool)) == "queued"  # 3: whole-GPU requests do not repeat without bound
    for _ in range(25):  # 4: unsatisfiable ones at the head do not stop the queue
        world.request(pool, 5000)
    world.close(two)
    assert world.controller.gpu_use(agent) == {0: (1000, 1), 1: (1000, 1)}
    with pytest.raises(Refused) as refusal:  # 5: a request without GPUs
        world.request(pool, wanted=())
    assert refusal.value.field == "gpus"
    world.do(CloseSession(two))  # 6: a closed session does not become canceling again
    assert world.state(two) == "closed"
    other = world.agent(pool, 1000)
    with pytest.raises(Refused):  # 6: nor may another agent change it
        world.do(UpdateAgent(other, AgentState.ACTIVE, {one: SessionReport(SessionState.CLOSED)}))
    assert world.state(one) == "assigned"


def test_unknown_pool_is_an_error_and_stores_nothing(world: World) -> None:
    """The old controller answers 200 and an id that leads nowhere."""
    for pool_id in ("no-such-pool", "00000000-0000-0000-0000-000000000000"):
        with pytest.raises(Refused) as refusal:
            world.request(pool_id)
        assert refusal.value.kind is Kind.NOT_FOUND and refusal.value.field == "poolId"
    assert not world.controller.sessions(include_closed=True)


def test_kwok_272_a_slow_caller_does_not_lose_its_agents(make_world: Callable[[], World]) -> None:
    """However late a Tick comes, an agent goes missing before it is removed, and keeps its sessions for that time."""
    world = make_world()
    pool = world.pool()
    agent = world.agent(pool, 24 * GIB)
    session = world.request(pool)
    world.now += 10_000
    world.do(Tick())
    assert world.controller.agent(agent).state is AgentState.MISSING and world.state(session) == "assigned"
    world.report(agent)
    assert world.controller.agent(agent).state is AgentState.ACTIVE
