"""The faults of the old open-source controller that a client can meet, each switchable by name.

`--quirks open-source` switches all on. What each is for, and which faults of the old code are deliberately not here, is
in docs/compatibility.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

QUIRKS: Mapping[str, str] = {
    "empty-queued": "a queued session reads as an object whose members are all empty",
    "lost-request": "a request that cannot be stored (unknown or malformed pool id, VRAM above 2^63-1) is answered 200 "
    "with a UUID that is unknown afterwards",
    "text-errors": "every error is 500 text/plain (only an id that differs from the path's is 400)",
    "every-gpu": "a session reads as holding every GPU of its agent that one of its requirements would take",
    "slow-tick": "sessions are assigned once a second, at most 20, and 20 that cannot be served at the head of the "
    "queue stop it",
    "reopen-closed": "a closed session that is deleted again reads as canceling for ever",
    "one-read": "a request whose head and body exceed 4,096 bytes fails with 500",
    "too-many-clients": "more than 97 requests at once: 500",
    "first-20-agents": "lists of agents end after 20",
    "no-permissions": "any valid token may do anything",
    "no-extensions": "paths, headers and members that the old controller does not have are unknown or ignored",
}

ALL = "open-source"
TICK_S = 1.0
TICK_SESSIONS = 20
READ_SIZE = 4096
CLIENTS = 97


class UnknownQuirk(ValueError):
    """A name that is no quirk; `str(error)` lists those that are."""


@dataclass(frozen=True)
class Quirks:
    """The quirks that are switched on."""

    names: frozenset[str] = frozenset()

    def __contains__(self, name: str) -> bool:
        if name not in QUIRKS:
            raise UnknownQuirk(f"quirk {name!r} is unknown")
        return name in self.names

    def __bool__(self) -> bool:
        return bool(self.names)


def parse(text: str | None) -> Quirks:
    """`open-source`, `none`, or names separated by commas; `open-source,-NAME` is all but one. Raises UnknownQuirk."""
    names: set[str] = set()
    for word in (text or "").split(","):
        word = word.strip()
        if word in ("", "none"):
            continue
        if word == ALL:
            names |= set(QUIRKS)
        elif word in QUIRKS:
            names.add(word)
        elif word.startswith("-") and word[1:] in QUIRKS:
            names.discard(word[1:])
        else:
            raise UnknownQuirk(f"quirk {word!r} is unknown; accepted: {ALL}, none, {', '.join(QUIRKS)}")
    return Quirks(frozenset(names))
