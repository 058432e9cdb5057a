"""Assignment: who gets what became free, in which order. Runs at the event that makes an assignment possible.

In a pool with the queue policy `skip`, no waiting session fits anywhere between two commands. So a new session is
placed at once or waits, and when an agent has got room only that agent has to be looked at. With `strict_fifo` only the
session that has waited longest is looked at, on all agents of the pool.
"""

from __future__ import annotations

from . import events as ev
from .capacity import Capacity
from .model import Pool
from .placement import Placement, place, place_on, place_rest
from .turn import Turn
from .waiting import Shape, ShapeKey


def session_arrived(turn: Turn, session_id: str) -> None:
    """Assign a session that has just been queued, if that is possible and fair."""
    shape = turn.state.waiting.shape_of(session_id)
    if len(shape.sessions) > 1:
        return  # one like it has come earlier and waits
    _place_head(turn, shape)


def room_on(turn: Turn, agent_id: str) -> None:
    """Serve waiting sessions after the agent has got room: it registered, came back, or a session on it closed."""
    state = turn.state
    capacity = state.capacities[agent_id]
    pool = state.pools.get(capacity.agent.pool_id)
    if pool is None or not len(state.waiting):
        return
    if state.is_strict(pool):
        _serve_in_order(turn, pool)
        return
    policy = state.policy(pool)
    while capacity.schedulable and (capacity.idle or capacity.largest_free > 0):
        shape = _first_that_fits(turn, pool, capacity)
        if shape is None:
            return
        placement = place_on(policy, capacity, shape.need)
        assert placement is not None, "the shape fits"
        _assign(turn, shape, placement)
        queue_moved(turn, shape)


def queue_moved(turn: Turn, shape: Shape) -> None:
    """A session of this shape has left the queue: where nobody may pass, the next in line may have its turn."""
    state = turn.state
    if state.never_strict:
        return
    for pool in list(state.pools_of(shape)):
        if state.is_strict(pool):
            _serve_in_order(turn, pool)


def pools_opened(turn: Turn, user_id: str) -> None:
    """The user may use another pool: sessions that name no pool may fit there."""
    state = turn.state
    blocked: set[ShapeKey] = set()
    while True:
        open_shapes = (s for s in state.waiting.shapes("") if s.owner == user_id and s.key not in blocked)
        shape = min(open_shapes, key=lambda one: one.head, default=None)
        if shape is None:
            return
        if _place_head(turn, shape):
            queue_moved(turn, shape)
        else:
            blocked.add(shape.key)


def pool_closed_to_user(turn: Turn, pool: Pool) -> None:
    """A user may not use the pool any more: where nobody may pass, somebody else may now be first in its line."""
    if turn.state.is_strict(pool):
        _serve_in_order(turn, pool)


def _place_head(turn: Turn, shape: Shape) -> bool:
    """Assign the first session of the shape in the first pool that has room and in which it is its turn."""
    state, need = turn.state, shape.need
    pools = [p for p in state.pools_of(shape) if not state.is_strict(p) or _head(turn, p) is shape]
    for pool in pools:
        placement = place(state.policy(pool), state.view(pool, shape), need)
        if placement is not None:
            _assign(turn, shape, placement)
            return True
    if need.floor < need.vram:  # no GPU in any of the pools has all of it
        for pool in pools:
            placement = place_rest(state.view(pool, shape), need)
            if placement is not None:
                _assign(turn, shape, placement)
                return True
    return False


def _first_that_fits(turn: Turn, pool: Pool, capacity: Capacity) -> Shape | None:
    """The shape of the session that has waited longest among those that this agent could serve now."""
    largest, idle = capacity.largest_free, capacity.idle
    first: Shape | None = None
    for shape in turn.state.shapes_for(pool):
        if shape.least_slice > largest or shape.least_idle > idle or (first is not None and shape.head > first.head):
            continue  # cheap comparisons first: there may be thousands of shapes
        if shape.fits(capacity):
            first = shape
    return first


def _serve_in_order(turn: Turn, pool: Pool) -> None:
    state = turn.state
    while (shape := _head(turn, pool)) is not None:
        view = state.view(pool, shape)
        placement = place(state.policy(pool), view, shape.need) or place_rest(view, shape.need)
        if placement is None:
            return
        _assign(turn, shape, placement)
        if not shape.pool_id:
            queue_moved(turn, shape)


def _head(turn: Turn, pool: Pool) -> Shape | None:
    """The shape of the session that has waited longest for this pool."""
    return min(turn.state.shapes_for(pool), key=lambda shape: shape.head, default=None)


def _assign(turn: Turn, shape: Shape, placement: Placement) -> None:
    session_id = shape.sessions[shape.head]
    turn.emit(ev.SessionAssigned(turn.now, session_id, placement.capacity.agent.id, placement.grants))
