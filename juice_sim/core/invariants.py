"""What must hold between any two commands. A breach is a bug of the core; the message carries the session's story."""

from __future__ import annotations

from collections import Counter, defaultdict

from .capacity import Kind, kind_of
from .events import Event
from .model import AgentState, SessionState
from .placement import need_of, place, place_rest
from .state import State

HOLDING = (SessionState.ASSIGNED, SessionState.ACTIVE, SessionState.CANCELING)


class InvariantBroken(AssertionError):
    """An invariant does not hold."""


def validate(state: State) -> None:
    """Check everything from scratch, from agents and sessions alone. Linear in their number. Raises InvariantBroken."""
    _check_grants(state)
    _check_sessions(state)
    _check_indexes(state)
    _check_queue(state)


def _broken(state: State, session_id: str, what: str) -> InvariantBroken:
    story: list[Event] = list(state.stories.get(session_id, ()))
    told = "".join(f"\n  {event}" for event in story) or "\n  (no history kept)"
    return InvariantBroken(f"session {session_id}: {what}; its story:{told}")


def _check_grants(state: State) -> None:
    """No GPU holds more than it has; a whole GPU is shared with nobody."""
    held: dict[tuple[str, int], int] = defaultdict(int)
    holders: dict[tuple[str, int], list[str]] = defaultdict(list)
    whole: set[tuple[str, int]] = set()
    vram = {(agent.id, gpu.index): gpu.vram for agent in state.agents.values() for gpu in agent.gpus}
    for session in state.sessions.values():
        if session.state not in HOLDING:
            continue
        if session.agent_id not in state.capacities:
            raise _broken(state, session.id, f"is {session.state.value} on agent {session.agent_id!r}, which is gone")
        for grant in session.grants:
            gpu = (session.agent_id, grant.index)
            if gpu not in vram:
                raise _broken(state, session.id, f"holds GPU {gpu}, which does not exist")
            held[gpu] += grant.vram
            holders[gpu].append(session.id)
            if grant.vram < 1:
                raise _broken(state, session.id, f"holds {grant.vram} bytes of GPU {gpu}")
            if held[gpu] > vram[gpu]:
                raise _broken(state, session.id, f"GPU {gpu} is over-committed: {held[gpu]} of {vram[gpu]} bytes")
            if grant.whole:
                whole.add(gpu)
                if grant.vram != vram[gpu]:
                    raise _broken(state, session.id, f"holds GPU {gpu} whole but {grant.vram} of {vram[gpu]} bytes")
            if gpu in whole and len(holders[gpu]) > 1:
                raise _broken(state, session.id, f"GPU {gpu} is held whole and shared by {holders[gpu]}")
    for agent_id, capacity in state.capacities.items():
        agent = state.agents[agent_id]
        for place_, gpu_ in enumerate(agent.gpus):
            key = (agent_id, gpu_.index)
            if capacity.free[place_] != gpu_.vram - held[key] or capacity.holders[place_] != len(holders[key]):
                raise InvariantBroken(
                    f"agent {agent_id} GPU {gpu_.index}: booked {gpu_.vram - capacity.free[place_]} bytes for "
                    f"{capacity.holders[place_]} sessions, but sessions {holders[key]} hold {held[key]} bytes"
                )
        if capacity.idle != capacity.holders.count(0) or capacity.largest_free != max(capacity.free):
            raise InvariantBroken(f"agent {agent_id}: wrong totals {capacity.idle} idle, {capacity.largest_free} free")


def _check_sessions(state: State) -> None:
    """Each session has what its state implies: its own shape of grants, distinct GPUs, one agent that knows of it."""
    percent = state.settings.granted_percent
    for session in state.sessions.values():
        need = need_of(session.requirements, percent)
        if session.state in HOLDING:
            indexes = [grant.index for grant in session.grants]
            if len(set(indexes)) != len(indexes) or len(indexes) != need.count:
                raise _broken(state, session.id, f"asked for {need.count} GPUs and holds {indexes}")
            if need.vram and not need.floor <= session.grants[0].vram <= need.vram:
                raise _broken(state, session.id, f"asked for {need.vram} bytes and holds {session.grants[0].vram}")
            if any(grant.whole == bool(need.vram) for grant in session.grants):
                raise _broken(state, session.id, "holds a slice instead of a whole GPU, or the reverse")
            if session.id not in state.agents[session.agent_id].session_ids:
                raise _broken(state, session.id, f"is unknown to its agent {session.agent_id}")
            wanted = session.requirements.pool_id
            if wanted and state.agents[session.agent_id].pool_id != wanted:
                raise _broken(state, session.id, f"runs in another pool than {wanted}")
        elif session.state is SessionState.QUEUED and (session.agent_id or session.grants):
            raise _broken(state, session.id, "waits and holds something")
        if (session.closed_at is not None) != (session.state is SessionState.CLOSED):
            raise _broken(state, session.id, f"is {session.state.value} and has closed_at {session.closed_at}")
        if (session.id in state.waiting) != (session.state is SessionState.QUEUED):
            raise _broken(state, session.id, f"is {session.state.value}, which the queue does not know")
    for agent in state.agents.values():
        for session_id in agent.session_ids:
            session = state.sessions[session_id]
            if session.agent_id != agent.id or session.state not in HOLDING:
                raise _broken(state, session_id, f"is listed by agent {agent.id}")


def _check_indexes(state: State) -> None:
    """What is derived equals what it is derived from."""
    live = {agent.id for agent in state.agents.values() if agent.state is not AgentState.CLOSED}
    if live != set(state.capacities):
        raise InvariantBroken(f"agents {sorted(live ^ set(state.capacities))} are live or indexed, not both")
    for agent_id in live:
        if state.capacities[agent_id].schedulable != (state.agents[agent_id].state is AgentState.ACTIVE):
            raise InvariantBroken(f"agent {agent_id} is {state.agents[agent_id].state.value} and indexed otherwise")
    is_open = Counter(s.pool_id for s in state.sessions.values() if s.state is not SessionState.CLOSED)
    if is_open != +state.open_sessions:
        raise InvariantBroken(f"open sessions are {is_open}, counted {state.open_sessions}")
    agents = Counter(state.agents[agent_id].pool_id for agent_id in live)
    if agents != +state.open_agents:
        raise InvariantBroken(f"agents are {agents}, counted {state.open_agents}")
    keys = {(s.owner, s.idempotency_key): s.id for s in state.sessions.values() if s.idempotency_key}
    if keys != state.session_by_key:
        raise InvariantBroken(f"idempotency keys differ: {set(keys.items()) ^ set(state.session_by_key.items())}")
    if {pool.name: pool.id for pool in state.pools.values()} != state.pool_by_name:
        raise InvariantBroken("names of pools differ")
    kinds: dict[str, Counter[Kind]] = defaultdict(Counter)
    for session in state.sessions.values():
        if session.state in HOLDING:
            kinds[session.agent_id][kind_of(session.grants)] += 1
    for agent_id, capacity in state.capacities.items():
        if capacity.kinds != kinds[agent_id]:
            raise InvariantBroken(f"agent {agent_id} holds {kinds[agent_id]}, counted {capacity.kinds}")
        for view, leaf in capacity.places.items():
            view.check(leaf, capacity)
    for view in {view for capacity in state.capacities.values() for view in capacity.places}:
        held = sum((kinds[capacity.agent.id] for capacity in view.agents()), Counter())
        if view.kinds != held:
            raise InvariantBroken(f"a view's agents hold {held}, counted {view.kinds}")


def _check_queue(state: State) -> None:
    """Nobody waits for what is free, except where the queue policy lets nobody pass."""
    for shape in state.waiting.all_shapes():
        for pool in state.pools_of(shape):
            if state.is_strict(pool):
                head = min(state.shapes_for(pool), key=lambda one: one.head)
                if head is not shape:
                    continue
            view = state.view(pool, shape)
            if place(state.policy(pool), view, shape.need) or place_rest(view, shape.need):
                waiting = shape.sessions[shape.head]
                raise _broken(state, waiting, f"waits although pool {pool.name!r} has room")
