"""Deadlines that move."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from juice_sim.core.deadlines import Deadlines

MOVES = st.lists(st.tuples(st.sampled_from("abcd"), st.one_of(st.none(), st.integers(0, 50))), max_size=40)


def test_order_and_ties() -> None:
    deadlines = Deadlines()
    for key, due in (("b", 5.0), ("a", 5.0), ("c", 1.0), ("d", 9.0)):
        deadlines.set(key, due)
    assert deadlines.next() == 1.0
    assert deadlines.pop_due(5.0) == ["c", "a", "b"]
    assert deadlines.next() == 9.0 and len(deadlines) == 1 and "d" in deadlines


def test_a_moved_deadline_fires_once() -> None:
    deadlines = Deadlines()
    for due in (5.0, 9.0, 2.0, 7.0):
        deadlines.set("a", due)
    assert deadlines.pop_due(6.9) == [] and deadlines.next() == 7.0
    assert deadlines.pop_due(100.0) == ["a"] and deadlines.next() is None


@given(MOVES, st.integers(0, 50))
def test_like_a_plain_dict(moves: list[tuple[str, int | None]], now: int) -> None:
    deadlines, plain = Deadlines(), {}
    for key, due in moves:
        if due is None:
            deadlines.discard(key)
            plain.pop(key, None)
        else:
            deadlines.set(key, due)
            plain[key] = due
        assert deadlines.next() == min(plain.values(), default=None)
        assert deadlines.get(key) == plain.get(key)
    assert deadlines.pop_due(now) == [k for d, k in sorted((d, k) for k, d in plain.items() if d <= now)]
    assert set(deadlines.keys()) == {k for k, d in plain.items() if d > now}


def test_heartbeats_do_not_grow_the_heap() -> None:
    deadlines = Deadlines()
    for beat in range(10_000):
        deadlines.set("agent", 30.0 + beat)
    assert len(deadlines._heap) == 1
