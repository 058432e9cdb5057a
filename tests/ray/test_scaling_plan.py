from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from juice_sim.core.model import Gpu, GpuRequirement, Requirements
from juice_sim.scaling import Growable, NodeView, Phase, Plan, Waiting, plan

GIB = 1 << 30
_ids = count()


def gpus(number: int, vram: int = 24) -> tuple[Gpu, ...]:
    return tuple(Gpu(index, f"GPU-{index}", "A10", vram * GIB) for index in range(number))


SMALL = Growable("small", "pool-1", gpus(1), max_nodes=3)
LARGE = Growable("large", "pool-1", gpus(4, 80), max_nodes=2)


def slice_of(vram: float, **more: object) -> Requirements:
    return Requirements((GpuRequirement(int(vram * GIB)),), "pool-1", **more)  # type: ignore[arg-type]


def whole(number: int = 1, **more: object) -> Requirements:
    return Requirements((GpuRequirement(),) * number, **{"pool_id": "pool-1", **more})  # type: ignore[arg-type]


def waiting(*wanted: Requirements, since: float = 0.0) -> list[Waiting]:
    return [Waiting(f"s{next(_ids):06d}", requirements, since) for requirements in wanted]


def node(key: str, phase: Phase = Phase.SERVING, kind: Growable = SMALL, idle_since: float | None = None) -> NodeView:
    return NodeView(key, kind.name, phase, idle_since)


@pytest.mark.parametrize(
    ("wanted", "add"),
    [
        ([], {}),
        ([whole()], {"small": 1}),
        ([whole(), whole()], {"small": 2}),
        ([whole(2)], {"large": 1}),
        ([whole(2), whole(2)], {"large": 1}),
        ([whole(2), whole(), whole()], {"large": 1}),
        ([whole(5)], {}),
        ([slice_of(8)] * 3, {"small": 1}),
        ([slice_of(8)] * 4, {"small": 2}),
        ([slice_of(25)], {"small": 1}),  # 93 % of it are there
        ([slice_of(25, strict=True)], {"large": 1}),
        ([slice_of(40)], {"large": 1}),
        ([slice_of(81, strict=True)], {}),
        ([whole()] * 4, {"small": 3, "large": 1}),
        ([whole()] * 50, {"small": 3, "large": 2}),
        ([whole(pool_id="")], {"small": 1}),
        ([whole(pool_id="pool-2")], {}),
        ([whole(match_labels={"zone": "a"})], {}),
        ([whole(label_selector="zone!=a")], {"small": 1}),
    ],
)
def test_what_waits_decides_what_is_added(wanted: list[Requirements], add: dict[str, int]) -> None:
    assert plan(waiting(*wanted), [LARGE, SMALL], [], now=100.0).add == add


def test_labels_and_taints_are_those_of_the_type() -> None:
    tainted = replace(SMALL, name="tainted", labels={"zone": "a"}, taints={"team": "x"})
    in_zone = whole(match_labels={"zone": "a"})
    assert plan(waiting(in_zone), [tainted], [], 100.0).add == {}
    assert plan(waiting(replace(in_zone, tolerates={"team": "x"})), [tainted], [], 100.0).add == {"tainted": 1}


def test_a_session_is_given_time_to_be_assigned() -> None:
    session = waiting(whole(), since=99.5)
    assert not plan(session, [SMALL], [], now=100.0, patience_s=1.0)
    assert plan(session, [SMALL], [], now=100.5, patience_s=1.0).add == {"small": 1}


def test_nodes_that_are_starting_count() -> None:
    starting = [node("n1", Phase.STARTING), node("n2", Phase.STARTING)]
    assert not plan(waiting(whole(), slice_of(8), slice_of(8)), [SMALL], starting, 100.0)
    assert plan(waiting(whole(), whole(), whole()), [SMALL], starting, 100.0).add == {"small": 1}


def test_a_draining_node_stays_when_it_is_needed() -> None:
    draining = [node("n1", Phase.DRAINING)]
    assert plan(waiting(whole()), [SMALL], draining, 100.0) == Plan({}, resume=("n1",))
    both = plan(waiting(whole(), whole()), [SMALL], draining, 100.0)
    assert (both.resume, both.add) == (("n1",), {"small": 1})
    assert plan(waiting(whole(2)), [SMALL, LARGE], draining, 100.0) == Plan({"large": 1})


def test_draining_nodes_still_take_their_place() -> None:
    full = [node("n1"), node("n2"), node("n3", Phase.DRAINING)]
    assert plan(waiting(whole(), whole()), [SMALL], full, 100.0) == Plan({}, resume=("n3",))


def test_what_nothing_could_serve_is_named() -> None:
    sessions = waiting(whole(5), whole())
    assert plan(sessions, [SMALL, LARGE], [], 100.0).hopeless == (sessions[0].session_id,)


def test_idle_nodes_go_the_longest_idle_first_down_to_the_minimum() -> None:
    kind = replace(SMALL, min_nodes=1)
    nodes = [node("n1", idle_since=50.0), node("n2", idle_since=40.0), node("n3", idle_since=95.0)]
    assert plan([], [kind], nodes, 100.0, idle_after_s=30.0) == Plan({}, drain=("n2", "n1"))
    assert plan([], [replace(kind, min_nodes=2)], nodes, 100.0).drain == ("n2",)
    assert plan([], [replace(kind, min_nodes=3)], nodes, 100.0).drain == ()
    assert plan([], [kind], [node("n1"), node("n2", Phase.STARTING)], 100.0).drain == ()


def test_the_minimum_is_restored() -> None:
    kind = replace(SMALL, min_nodes=2)
    assert plan([], [kind], [], 100.0) == Plan({"small": 2})
    assert plan([], [kind], [node("n1"), node("n2", Phase.DRAINING)], 100.0) == Plan({}, resume=("n2",))
    assert plan([], [kind], [node("n1"), node("n2", Phase.STARTING)], 100.0) == Plan({})


def test_a_node_is_not_drained_while_others_of_its_type_are_added() -> None:
    elsewhere = Requirements((GpuRequirement(), GpuRequirement()), "pool-1")
    nodes = [node("n1", kind=LARGE, idle_since=0.0)]
    decided = plan(waiting(elsewhere), [LARGE], nodes, 100.0)
    assert (decided.add, decided.drain) == ({"large": 1}, ())


def test_many_agents_on_one_node_are_filled_before_another_is_added() -> None:
    shared = replace(SMALL, agents_per_node=10)
    assert plan(waiting(*[whole()] * 10), [shared], [], 100.0).add == {"small": 1}
    assert plan(waiting(*[whole()] * 11), [shared], [], 100.0).add == {"small": 2}


def test_nodes_of_types_that_are_no_longer_known_are_left_alone() -> None:
    assert not plan([], [SMALL], [NodeView("old", "gone", Phase.SERVING, 0.0)], 100.0)


requirements = st.one_of(
    st.integers(1, 6).map(whole), st.floats(0.5, 90).map(slice_of), st.just(whole(match_labels={"zone": "a"}))
)
views = st.builds(
    node,
    st.uuids().map(str),
    st.sampled_from(Phase),
    st.sampled_from([SMALL, LARGE]),
    st.one_of(st.none(), st.floats(0, 100)),
)


@settings(max_examples=200, deadline=None)
@given(st.lists(requirements, max_size=20), st.lists(views, max_size=6), st.integers(0, 2))
def test_limits_hold_and_a_carried_out_plan_is_not_repeated(
    wanted: list[Requirements], nodes: list[NodeView], minimum: int
) -> None:
    types = [replace(SMALL, min_nodes=minimum), replace(LARGE, min_nodes=minimum)]
    sessions = waiting(*wanted)
    first = plan(sessions, types, nodes, 100.0)
    after = [
        replace(each, phase=Phase.STARTING)
        if each.key in first.resume
        else replace(each, phase=Phase.DRAINING)
        if each.key in first.drain
        else each
        for each in nodes
    ]
    after += [
        NodeView(f"new-{name}-{at}", name, Phase.STARTING) for name, number in first.add.items() for at in range(number)
    ]
    for kind in types:
        before = [each for each in nodes if each.type_name == kind.name]
        now = [each for each in after if each.type_name == kind.name]
        assert len(now) <= max(kind.max_nodes, len(before))
        staying = [each for each in now if each.phase is not Phase.DRAINING]
        assert len(staying) >= min(kind.min_nodes, sum(each.phase is not Phase.DRAINING for each in before))
    again = plan(sessions, types, after, 100.0)
    assert again.add == {}
    assert set(again.resume) <= set(first.drain)
