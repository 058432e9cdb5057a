"""The queue: waiting sessions, grouped by what they ask for, so that a freed GPU looks at kinds and not at sessions."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping

from .capacity import Capacity
from .model import Requirements, Session
from .placement import Need, need_of
from .selectors import accepts

Pairs = tuple[tuple[str, str], ...]
ViewKey = tuple[Pairs, Pairs, str, tuple[str, ...]]  # labels, tolerated taints, selector, named buses
ShapeKey = tuple[str, ViewKey, Need, str, bool]


def pairs(mapping: Mapping[str, str]) -> Pairs:
    """A dict of strings as something that can be a key."""
    return tuple(sorted(mapping.items())) if mapping else ()


class Shape:
    """One kind of request: sessions of the same shape can be served by the same GPUs.

    Sessions that name no pool are told apart by owner too, since which pools are open to them depends on it.
    """

    __slots__ = (
        "_test",
        "head",
        "key",
        "least_idle",
        "least_slice",
        "need",
        "owner",
        "owner_is_admin",
        "pool_id",
        "sessions",
        "view_key",
    )

    def __init__(self, requirements: Requirements, owner: str, owner_is_admin: bool, granted_percent: int) -> None:
        self.pool_id = requirements.pool_id
        self.need = need_of(requirements, granted_percent)
        self.owner, self.owner_is_admin = ("", False) if self.pool_id else (owner, owner_is_admin)
        self.view_key: ViewKey = (
            pairs(requirements.match_labels),
            pairs(requirements.tolerates),
            requirements.label_selector,
            self.need.named,
        )
        self.key: ShapeKey = (self.pool_id, self.view_key, self.need, self.owner, self.owner_is_admin)
        self.sessions: OrderedDict[int, str] = OrderedDict()  # number in the queue -> session id
        self.head = 0  # number of the session that has waited longest
        # What an agent must have at the very least: two numbers that rule out most shapes without a further look.
        self.least_slice = self.need.floor if self.need.vram else -1
        self.least_idle = 0 if self.need.vram else self.need.count
        self._test = accepts(requirements)

    def accepts(self, labels: Mapping[str, str], taints: Mapping[str, str]) -> bool:
        """Whether labels, taints and selector allow an agent like this."""
        if not labels and not taints and not self.view_key[0] and not self.view_key[2]:
            return True
        return self._test(labels, taints)

    def fits(self, capacity: Capacity) -> bool:
        """Whether the agent could serve one session of this shape now."""
        largest, idle = capacity.offer(self.view_key[3])
        if largest < self.least_slice or idle < self.least_idle:
            return False
        return self.accepts(capacity.agent.labels, capacity.agent.taints)


class Waiting:
    """All waiting sessions in order of arrival, by shape and by the pool they name ("" for none)."""

    def __init__(self, granted_percent: int) -> None:
        self._granted_percent = granted_percent
        self._shapes: dict[str, dict[ShapeKey, Shape]] = {}
        self._entry: dict[str, tuple[int, Shape]] = {}
        self._last_number = 0

    def __len__(self) -> int:
        return len(self._entry)

    def __contains__(self, session_id: str) -> bool:
        return session_id in self._entry

    def add(self, session: Session) -> None:
        """Append a session to the queue."""
        shape = Shape(session.requirements, session.owner, session.owner_is_admin, self._granted_percent)
        shape = self._shapes.setdefault(shape.pool_id, {}).setdefault(shape.key, shape)
        self._last_number += 1
        if not shape.sessions:
            shape.head = self._last_number
        shape.sessions[self._last_number] = session.id
        self._entry[session.id] = (self._last_number, shape)

    def remove(self, session_id: str) -> None:
        """Take a session out; no error when it does not wait."""
        entry = self._entry.pop(session_id, None)
        if entry is None:
            return
        number, shape = entry
        del shape.sessions[number]
        if not shape.sessions:
            of_pool = self._shapes[shape.pool_id]
            del of_pool[shape.key]
            if not of_pool:
                del self._shapes[shape.pool_id]
        elif number == shape.head:
            shape.head = next(iter(shape.sessions))

    def shape_of(self, session_id: str) -> Shape:
        """The shape of a waiting session. KeyError when it does not wait."""
        return self._entry[session_id][1]

    def number_of(self, session_id: str) -> int:
        """The number of a waiting session in the queue; a smaller number came earlier."""
        return self._entry[session_id][0]

    def shapes(self, pool_id: str) -> Iterable[Shape]:
        """The shapes that name this pool ("": no pool)."""
        return self._shapes.get(pool_id, {}).values()

    def all_shapes(self) -> Iterator[Shape]:
        """Every shape of which a session waits."""
        for of_pool in self._shapes.values():
            yield from of_pool.values()

    def in_order(self) -> list[str]:
        """Ids of all waiting sessions, the oldest first."""
        return [session_id for session_id, _ in sorted(self._entry.items(), key=lambda item: item[1][0])]
