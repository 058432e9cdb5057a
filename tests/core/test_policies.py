"""The scoring policies: each keeps every invariant, never leaves room unused, and prefers what its definition says."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence

import pytest

from juice_sim.core.capacity import Capacity, View
from juice_sim.core.fragmentation import fragmented
from juice_sim.core.model import Agent, Gpu, GpuGrant, GpuRequirement
from juice_sim.core.placement import POLICIES, Need, Placement, place, place_on, policy_named
from juice_sim.core.policies import SCORING

from .conftest import GIB, World

NAMES = [policy.name for policy in SCORING]


class Pool:
    """Agents in one view, placed on without a controller."""

    def __init__(self, policy: str, *agents: Sequence[int]) -> None:
        self.policy = policy_named(policy)
        self.view = View((), lambda labels, taints: True, by_size=self.policy.by_size)
        self.agents = [self._agent(order, sizes) for order, sizes in enumerate(agents)]

    def _agent(self, order: int, sizes: Sequence[int]) -> Capacity:
        gpus = tuple(Gpu(i, f"g{order}-{i}", "A10", size) for i, size in enumerate(sizes))
        capacity = Capacity(Agent(f"agent-{order}", "h", "", "", "p", gpus), order)
        self.view.add(capacity)
        return capacity

    def hold(self, agent: int, gpu: int, vram: int) -> tuple[GpuGrant, ...]:
        """A slice that is there already."""
        grants = (GpuGrant(gpu, vram, whole=False),)
        self.agents[agent].take(grants)
        return grants

    def hold_whole(self, agent: int, *gpus: int) -> tuple[GpuGrant, ...]:
        """A session with whole GPUs that is there already."""
        capacity = self.agents[agent]
        grants = tuple(GpuGrant(gpu, capacity.agent.gpus[gpu].vram, whole=True) for gpu in gpus)
        capacity.take(grants)
        return grants

    def choose(self, vram: int = 0, count: int = 1) -> tuple[int, list[int]] | None:
        """(agent, indexes of the GPUs) for a request; books nothing."""
        placement = place(self.policy, self.view, Need(count, vram, vram, ("",) * count))
        if placement is None:
            return None
        return self.agents.index(placement.capacity), [grant.index for grant in placement.grants]

    def take(self, vram: int = 0, count: int = 1) -> tuple[int, list[int]] | None:
        """The same, and books it."""
        placement: Placement | None = place(self.policy, self.view, Need(count, vram, vram, ("",) * count))
        if placement is None:
            return None
        placement.capacity.take(placement.grants)
        return self.agents.index(placement.capacity), [grant.index for grant in placement.grants]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(3))
def test_no_invariant_breaks_under_any_policy(name: str, seed: int, make_world: Callable[..., World]) -> None:
    """Sessions come and go, agents are lost and come back; the world validates after each command."""
    chance = random.Random(f"{name}/{seed}")
    world = make_world(default_policy=name, granted_percent=93)
    pool = world.pool()
    agents = [
        world.agent(pool, *(chance.choice((16, 24)) * GIB for _ in range(chance.randint(1, 4)))) for _ in range(5)
    ]
    open_sessions: list[str] = []
    assigned = 0
    for _ in range(120):
        roll = chance.random()
        if roll < 0.55:
            if chance.random() < 0.6:
                session = world.request(pool, vram=chance.choice((2, 5, 8, 12, 17)) * GIB)
            else:
                session = world.request(pool, gpus=chance.randint(1, 3))
            open_sessions.append(session)
            if world.state(session) == "assigned":
                assigned += 1
                world.activate(session)
        elif roll < 0.95 and open_sessions:
            world.close(open_sessions.pop(chance.randrange(len(open_sessions))))
        else:
            for agent in agents:
                if chance.random() < 0.9:
                    world.report(agent)
            world.advance(5)
    assert assigned > 20


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_a_request_is_placed_whenever_any_agent_has_room(name: str, seed: int) -> None:
    chance = random.Random(seed)
    pool = Pool(name, *[[chance.choice((50, 100)) for _ in range(chance.randint(1, 4))] for _ in range(6)])
    held: list[tuple[Capacity, tuple[GpuGrant, ...]]] = []
    outcomes: Counter[bool] = Counter()
    for _ in range(600):
        if held and chance.random() < 0.45:
            capacity, grants = held.pop(chance.randrange(len(held)))
            capacity.give_back(grants)
        else:
            count = chance.randint(1, 3)
            vram = chance.choice((0, 10, 33, 50, 100)) if count == 1 else 0
            need = Need(count, vram, vram, ("",) * count)
            rooms = [
                max(capacity.free) >= vram if vram else capacity.holders.count(0) >= count for capacity in pool.agents
            ]
            placement = place(pool.policy, pool.view, need)
            assert (placement is not None) == any(rooms)
            outcomes[any(rooms)] += 1
            if placement is not None:
                assert rooms[pool.agents.index(placement.capacity)]
                alone = place_on(pool.policy, placement.capacity, need)
                assert alone is not None and [grant.vram for grant in alone.grants] == [
                    grant.vram for grant in placement.grants
                ]
                placement.capacity.take(placement.grants)
                held.append((placement.capacity, placement.grants))
        for capacity in pool.agents:
            pool.view.check(capacity.places[pool.view], capacity)
            assert min(capacity.free) >= 0
        assert pool.view.kinds == sum((capacity.kinds for capacity in pool.agents), Counter())
    assert outcomes[True] > 50 and outcomes[False] > 10


@pytest.mark.parametrize("name", NAMES)
def test_an_agent_that_is_away_or_full_gets_nothing(name: str) -> None:
    pool = Pool(name, [100], [100])
    pool.agents[0].set_schedulable(False)
    assert pool.choose(vram=10) == (1, [0]) and pool.choose() == (1, [0])
    pool.hold(1, 0, 95)
    assert pool.choose(vram=10) is None and pool.choose() is None
    assert pool.choose(vram=5) == (1, [0])


@pytest.mark.parametrize("name", NAMES)
def test_named_buses_are_kept_to(name: str, make_world: Callable[..., World]) -> None:
    world = make_world(default_policy=name)
    pool = world.pool()
    world.agent(pool, 16 * GIB, 16 * GIB)
    whole = world.request(pool, wanted=(GpuRequirement(0, pci_bus="0000:01:00.0"),))
    assert [grant.index for grant in world.session(whole).grants] == [1]
    waiting = world.request(pool, wanted=(GpuRequirement(GIB, pci_bus="0000:01:00.0"),))
    assert world.state(waiting) == "queued"
    world.activate(whole)
    world.close(whole)
    assert [grant.index for grant in world.session(waiting).grants] == [1]


def test_random_reaches_every_agent_and_gpu_about_equally() -> None:
    pool = Pool("random", [10**6] * 4, [10**6], [10**6] * 2)
    agents: Counter[int] = Counter()
    gpus: Counter[int] = Counter()
    for _ in range(1500):
        chosen = pool.take(vram=1)
        assert chosen is not None
        agents[chosen[0]] += 1
        if chosen[0] == 0:
            gpus[chosen[1][0]] += 1
    assert all(400 < agents[agent] < 600 for agent in range(3)), agents
    assert all(80 < gpus[gpu] < 170 for gpu in range(4)), gpus


def test_random_draws_the_same_again_from_the_same_ids_and_history() -> None:
    def choices() -> list[object]:
        pool = Pool("random", [100] * 3, [100] * 3, [100])
        return [pool.take(vram=7) for _ in range(40)]

    assert choices() == choices()


def test_dot_prod_puts_a_request_where_least_is_free() -> None:
    pool = Pool("dot_prod", [100, 100], [100, 100], [100])
    assert pool.choose(vram=10) == (2, [0]), "the agent with the least free VRAM in all"
    assert pool.choose() == (2, [0])
    pool.hold_whole(1, 0)
    assert pool.choose(count=1) == (1, [1]), "as little is free as on the small agent, and it registered first"
    pool.hold(0, 1, 95)
    pool.hold(0, 0, 40)
    assert pool.choose(vram=5) == (0, [1]), "of its GPUs the fullest with room"


def test_gpu_packing_takes_a_shared_gpu_then_an_agent_in_use_then_the_smallest_idle_one() -> None:
    pool = Pool("gpu_packing", [100] * 4, [100] * 2, [100] * 2)
    assert pool.choose(vram=10) == (1, [0]), "all idle: the agent with fewer GPUs"
    pool.hold(0, 0, 50)
    pool.hold(2, 1, 80)
    assert pool.choose(vram=10) == (2, [1]), "the fuller of the shared GPUs"
    assert pool.choose(vram=30) == (0, [0])
    assert pool.choose(vram=60) == (0, [1]), "no shared GPU has room: an idle one of an agent in use"
    assert pool.choose(count=2) == (0, [1, 2])
    assert Pool("gpu_packing", [100] * 4, [100] * 2).choose(count=2) == (1, [0, 1])


def test_gpu_clustering_keeps_kinds_of_sessions_together() -> None:
    pool = Pool("gpu_clustering", [100] * 4, [100] * 4, [100] * 4, [100] * 4)
    pool.hold_whole(0, 0)
    pool.hold(1, 0, 10)
    pool.hold_whole(2, 0)
    pool.hold(2, 1, 10)
    assert pool.choose(vram=10) == (1, [0]), "only slices there"
    assert pool.choose(count=1) == (0, [1]), "only single GPUs there"
    assert pool.choose(count=2) == (3, [0, 1]), "no agent holds pairs: an idle one"
    pool.hold_whole(0, 1, 2, 3)
    assert pool.choose(count=1) == (2, [2]), "single GPUs among others, before an idle agent"
    full = Pool("gpu_clustering", [100] * 4)
    full.hold(0, 0, 10)
    assert full.choose(count=2) == (0, [1, 2]), "others only, when nothing else is left"


def test_gpu_clustering_forgets_what_has_ended() -> None:
    pool = Pool("gpu_clustering", [100] * 2, [100] * 2)
    grants = pool.hold(1, 0, 10)
    assert pool.choose(vram=10) == (1, [0])
    pool.agents[1].give_back(grants)
    assert pool.choose(vram=10) == (0, [0])


def test_fgd_fills_what_typical_sessions_cannot_use() -> None:
    pool = Pool("fgd", [100] * 2, [100] * 2, [100])
    for gpu in (0, 1):
        pool.hold(0, gpu, 50)
    pool.hold(2, 0, 70)
    # Halves are typical: the rest of 30 on agent 2 is a fragment, so a small slice goes there and costs nothing.
    assert pool.choose(vram=30) == (2, [0])
    # Another half fits on agent 0 without making a fragment; on an idle GPU neither, but whole GPUs are asked for too.
    for gpu in (0, 1):
        pool.hold_whole(1, gpu)
    assert pool.choose(vram=50) == (0, [0])


def test_fgd_keeps_idle_gpus_for_the_pairs_that_are_typical() -> None:
    pool = Pool("fgd", [100] * 4, [100] * 4, [100] * 2)
    pool.hold_whole(2, 0, 1)
    pool.hold_whole(1, 0)
    pool.hold(1, 1, 40)
    assert pool.choose(vram=40) == (1, [1]), "the shared GPU: an idle one would be missing to a pair"
    assert Pool("first_fit", [100] * 4, [100] * 4).choose(vram=40) == (0, [0])


def test_fragmented_counts_what_each_typical_session_could_not_use() -> None:
    gpus = [(30, False), (100, True), (0, False)]
    assert fragmented(gpus, [((0, 30), 1)]) == 0
    assert fragmented(gpus, [((0, 31), 1)]) == 30, "too little on the first GPU"
    assert fragmented(gpus, [((0, 101), 1)]) == 130, "fits nowhere: all of it"
    assert fragmented(gpus, [((1, 0), 1)]) == 30, "whole GPUs use idle ones only"
    assert fragmented(gpus, [((2, 0), 3)]) == 3 * 130
    assert fragmented([(0, False)], [((0, 10), 5)]) == 0


def test_policies_are_chosen_per_pool_by_name(make_world: Callable[..., World]) -> None:
    assert set(NAMES) == {"random", "dot_prod", "gpu_packing", "gpu_clustering", "fgd"}
    assert {"first_fit", "best_fit", *NAMES} == set(POLICIES)
    world = make_world(policies={"packed": "gpu_packing"})
    for name, expected in (("plain", "gpu0"), ("packed", "gpu3")):
        pool = world.pool(name)
        for sizes in ([GIB] * 3, [GIB]):
            world.agent(pool, *sizes)
        session = world.session(world.request(pool))
        agents = {agent.id: agent.hostname for agent in world.controller.agents(pool_id=pool)}
        assert agents[session.agent_id] == expected
