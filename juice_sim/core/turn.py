"""One command being decided: what a decision may look at, and how it makes events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from .errors import Kind, Refused
from .events import Event
from .model import Agent, Pool, Session
from .permissions import Principal
from .state import State

T = TypeVar("T")


@dataclass
class Turn:
    """The state, the time, the caller. `emit` applies an event at once, so a decision checks everything first."""

    state: State
    now: float
    principal: Principal
    new_id: Callable[[], str]
    emit: Callable[[Event], None]

    def pool(self, pool_id: str, field: str = "poolId") -> Pool:
        """The pool, or Refused(NOT_FOUND)."""
        return found(self.state.pools, pool_id, "pool", field)

    def agent(self, agent_id: str) -> Agent:
        """The agent, closed ones included, or Refused(NOT_FOUND)."""
        return found(self.state.agents, agent_id, "agent")

    def session(self, session_id: str) -> Session:
        """The session, or Refused(NOT_FOUND)."""
        return found(self.state.sessions, session_id, "session")


def found(things: Mapping[str, T], wanted: str, noun: str, field: str = "id") -> T:
    """The thing of that id. Raises Refused(NOT_FOUND); an id that is no string is not found either."""
    thing = things.get(wanted) if isinstance(wanted, str) else None
    if thing is None:
        raise Refused(Kind.NOT_FOUND, f"no such {noun}", field=field, value=wanted, accepted=f"the id of a {noun}")
    return thing
