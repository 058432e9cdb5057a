"""Placement against an oracle that looks at every GPU; the index under change; the policies' own promises."""

from __future__ import annotations

import random

import pytest

from juice_sim.core.capacity import Capacity, SizeIndex, View
from juice_sim.core.model import Agent, Gpu, GpuGrant, GpuRequirement, Requirements
from juice_sim.core.placement import (
    POLICIES,
    Need,
    Placement,
    fits_empty,
    need_of,
    place,
    place_on,
    place_rest,
    policy_named,
)
from juice_sim.core.settings import Settings

BUSES = ("0:0", "0:1", "0:2")


def make_agent(order: int, sizes: tuple[int, ...]) -> Capacity:
    gpus = tuple(Gpu(10 + i, f"u{i}", "A10", size, pci_bus=BUSES[i]) for i, size in enumerate(sizes))
    return Capacity(Agent(f"a{order}", "h", "", "", "p", gpus), order)


def oracle(policy: str, agents: list[Capacity], need: Need) -> tuple[str, tuple[GpuGrant, ...]] | None:
    """The plain rule, written without an index."""
    choices = []
    for capacity in agents:
        if not capacity.schedulable:
            continue
        gpus = capacity.agent.gpus
        if need.vram:
            for at, gpu in enumerate(gpus):
                if need.buses[0] in ("", gpu.pci_bus) and capacity.free[at] >= need.vram:
                    grants = (GpuGrant(gpu.index, need.vram, False),)
                    choices.append((capacity.free[at], capacity.order, at, capacity.agent.id, grants))
        else:
            idle = [at for at in range(len(gpus)) if not capacity.holders[at]]
            named = [next((at for at in idle if gpus[at].pci_bus == bus), None) for bus in need.named]
            if None in named or len(set(named)) < len(named) or len(idle) < need.count:
                continue
            rest = [at for at in idle if at not in named]
            chosen = [named.pop(0) if bus else rest.pop(0) for bus in need.buses]
            grants = tuple(GpuGrant(gpus[at].index, gpus[at].vram, True) for at in chosen)
            choices.append((len(idle), capacity.order, 0, capacity.agent.id, grants))
    if policy == "first_fit":
        choices.sort(key=lambda choice: choice[1:3])
    else:
        choices.sort(key=lambda choice: choice[:3])
    return (choices[0][3], choices[0][4]) if choices else None


def told(placement: Placement | None) -> tuple[str, tuple[GpuGrant, ...]] | None:
    return None if placement is None else (placement.capacity.agent.id, placement.grants)


@pytest.mark.parametrize("policy", ["first_fit", "best_fit"])
@pytest.mark.parametrize("seed", range(6))
def test_index_agrees_with_looking_at_every_gpu(policy: str, seed: int) -> None:
    chance = random.Random(seed)
    chosen = policy_named(policy)
    views = {
        buses: View(buses, lambda labels, taints: True, by_size=chosen.by_size)
        for buses in ((), *((b,) for b in BUSES))
    }
    agents: list[Capacity] = []
    held: list[tuple[Capacity, tuple[GpuGrant, ...]]] = []
    order = placed = 0
    for _ in range(1500):
        roll = chance.random()
        if roll < 0.05 or len(agents) < 3:
            agents.append(make_agent(order, tuple(chance.choice((50, 100)) for _ in range(chance.randint(1, 3)))))
            order += 1
            for view in views.values():
                view.add(agents[-1])
        elif roll < 0.08:
            gone = agents.pop(chance.randrange(len(agents)))
            for view in views.values():
                view.remove(gone)
            held = [(capacity, grants) for capacity, grants in held if capacity is not gone]
        elif roll < 0.12:
            chance.choice(agents).set_schedulable(chance.random() < 0.6)
        elif roll < 0.5 and held:
            capacity, grants = held.pop(chance.randrange(len(held)))
            capacity.give_back(grants)
        else:
            buses = (
                ("",) * chance.randint(1, 3)
                if chance.random() < 0.7
                else (chance.choice(BUSES), *("",) * chance.randint(0, 1))
            )
            vram = chance.choice((0, 10, 25, 33, 50, 60, 100)) if len(buses) == 1 else 0
            need = Need(len(buses), vram, vram, buses)
            view = views[need.named]
            expected = oracle(policy, agents, need)
            placement = place(chosen, view, need)
            assert told(placement) == expected
            assert place_rest(view, need) is None or placement is not None
            if placement is not None:
                assert told(place_on(chosen, placement.capacity, need)) == expected
                placement.capacity.take(placement.grants)
                held.append((placement.capacity, placement.grants))
                placed += 1
        for view in views.values():
            for capacity in agents:
                view.check(capacity.places[view], capacity)
    assert placed > 100


def test_rest_goes_to_the_largest() -> None:
    view = View((), lambda labels, taints: True, by_size=False)
    for order, size in enumerate((93, 97, 97, 92)):
        view.add(make_agent(order, (size,)))
    need = need_of(Requirements((GpuRequirement(100),)), 93)
    assert (need.vram, need.floor) == (100, 93)
    assert place(POLICIES["first_fit"], view, need) is None
    assert told(place_rest(view, need)) == ("a1", (GpuGrant(10, 97, False),))
    assert place_rest(view, need_of(Requirements((GpuRequirement(100),), strict=True), 93)) is None


def test_best_fit_leaves_the_large_gpu_alone() -> None:
    view = View((), lambda labels, taints: True, by_size=True)
    for order, size in enumerate((100, 60, 50)):
        view.add(make_agent(order, (size,)))
    need = Need(1, 50, 50, ("",))
    assert told(place(POLICIES["best_fit"], view, need)) == ("a2", (GpuGrant(10, 50, False),))


@pytest.mark.parametrize("make", [lambda: policy_named("nope"), lambda: Settings(default_queue_policy="nope")])
def test_unknown_policies_list_the_known(make) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=r"accepted: .*fi"):
        make()


def test_fits_empty_with_buses() -> None:
    gpus = ((100, "0:0"), (50, "0:1"))
    assert fits_empty(gpus, Need(1, 50, 50, ("0:1",))) and not fits_empty(gpus, Need(1, 51, 51, ("0:1",)))
    assert fits_empty(gpus, Need(2, 0, 0, ("0:1", ""))) and not fits_empty(gpus, Need(2, 0, 0, ("0:1", "0:1")))


def test_size_index_forgets_what_has_left() -> None:
    index = SizeIndex()
    for round_ in range(500):
        for item in range(4):
            index.set((item, 0), (item + round_) % 3, item)
    assert index.tightest(0) is not None and index.tightest(3) is None
    assert all(len(heap) <= 2 * 4 + 17 for heap in index._heaps.values())
    for item in range(4):
        index.discard((item, 0))
    assert index.tightest(0) is None


def test_work_per_decision_grows_with_the_logarithm() -> None:
    """Counted, not timed: nodes of the tree that one grant writes, at 64 and at 4,096 agents."""

    class Counting(list):  # type: ignore[type-arg]
        writes = 0

        def __setitem__(self, at, value) -> None:  # type: ignore[no-untyped-def]
            Counting.writes += 1
            super().__setitem__(at, value)

    counts = []
    for size in (64, 4096):
        view = View((), lambda labels, taints: True, by_size=False)
        for order in range(size):
            view.add(make_agent(order, (100,)))
        view._slices, view._idle = Counting(view._slices), Counting(view._idle)
        Counting.writes = 0
        need = Need(1, 0, 0, ("",))
        for _ in range(64):
            placement = place(POLICIES["first_fit"], view, need)
            assert placement is not None
            placement.capacity.take(placement.grants)
        counts.append(Counting.writes)
    assert counts[1] <= counts[0] * 12 / 6 + 64
