"""Events and nouns survive JSON; foreign data are refused with one line."""

from __future__ import annotations

import dataclasses
import json
from typing import Any, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from juice_sim.core import codec
from juice_sim.core import events as ev
from juice_sim.core.model import Agent, Pool, Session

EVENTS = [
    kind for kind in vars(ev).values() if isinstance(kind, type) and issubclass(kind, ev.Event) and kind is not ev.Event
]
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
NUMBER = st.floats(allow_nan=False, allow_infinity=False)


def build(kind: type) -> st.SearchStrategy[Any]:
    """Any value of a dataclass, from its annotations."""
    hints = get_type_hints(kind)
    return st.builds(kind, **{f.name: of_type(hints[f.name]) for f in dataclasses.fields(kind)})


def of_type(hint: Any) -> st.SearchStrategy[Any]:
    if dataclasses.is_dataclass(hint):
        return build(hint)  # type: ignore[arg-type]
    known = {
        str: TEXT,
        float: NUMBER,
        int: st.integers(),
        bool: st.booleans(),
        dict[str, str]: st.dictionaries(TEXT, TEXT, max_size=3),
    }
    if hint in known:
        return known[hint]
    if getattr(hint, "__origin__", None) is tuple:
        return st.lists(of_type(hint.__args__[0]), max_size=3).map(tuple)
    if hint in (float | None, int | None):
        return st.none() | of_type(hint.__args__[0])
    return st.from_type(hint)


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@given(data=st.data())
def test_every_event_survives_json(kind: type[ev.Event], data: st.DataObject) -> None:
    event = data.draw(build(kind))
    assert codec.decode_event(json.loads(json.dumps(codec.encode_event(event)))) == event


def test_no_event_is_left_out() -> None:
    assert {kind.__name__ for kind in EVENTS} == set(codec._BY_NAME)
    for kind in EVENTS:
        assert ("at", *codec._FIELDS[kind]) == tuple(field.name for field in dataclasses.fields(kind))


@given(build(Session), build(Agent), build(Pool))
def test_nouns_survive_json(session: Session, agent: Agent, pool: Pool) -> None:
    session.connections = {connection.id: connection for connection in session.connections.values()}
    agent.session_ids, agent.last_seen = set(), agent.registered_at  # soft, or told by the sessions
    assert codec.decode_session(json.loads(json.dumps(codec.encode_session(session)))) == session
    assert codec.decode_agent(json.loads(json.dumps(codec.encode_agent(agent)))) == agent
    assert codec.decode_pool(json.loads(json.dumps(codec.encode_pool(pool)))) == pool


def test_fields_added_later_are_ignored_and_missing_ones_have_their_default() -> None:
    data = codec.encode_event(ev.PoolCreated(1.0, "p", "test"))
    assert codec.decode_event(data | {"colour": "red"}) == ev.PoolCreated(1.0, "p", "test")
    old = {"event": "SessionQueued", "at": 1.0, "session_id": "s", "requirements": {"gpus": [[0, ""]]}, "owner": "o"}
    old |= {"idempotency_key": "", "name": "", "timeout_s": None}
    event = codec.decode_event(old)
    assert isinstance(event, ev.SessionQueued) and event.owner_is_admin is False


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"event": "Nonsense", "at": 1},
        {"event": 7},
        {"event": "PoolCreated"},
        {"event": "PoolCreated", "at": 1.0},
        {"event": "AgentStateChanged", "at": 1.0, "agent_id": "a", "state": "gone", "reason": ""},
    ],
)
def test_foreign_events(data: dict[str, Any]) -> None:
    with pytest.raises(codec.CodecError, match="event") as error:
        codec.decode_event(data)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("data", [{}, {"version": 0}, {"version": "1"}, [], None])
def test_foreign_snapshots(data: Any) -> None:
    with pytest.raises(codec.CodecError, match="version"):
        codec.check_version(data)
