"""The one error that the core raises: a command that was refused and has changed nothing."""

from __future__ import annotations

from enum import Enum
from typing import Any


class Kind(str, Enum):
    """Why a command was refused. `rest.py` maps each to one HTTP status."""

    INVALID = "invalid"  # 400: a field has a value that is never acceptable
    UNAUTHORIZED = "unauthorized"  # 401: no valid token
    FORBIDDEN = "forbidden"  # 403: the caller lacks a permission
    NOT_FOUND = "not_found"  # 404: no such object
    CONFLICT = "conflict"  # 409: the object's state forbids it (e.g. a pool that still has agents)
    UNSATISFIABLE = "unsatisfiable"  # 422: well formed, but nothing registered or startable could ever serve it


class Refused(Exception):
    """A command that was refused; the state of the controller is unchanged.

    `field` names what was wrong (JSON name, e.g. `gpus[0].vramRequired`), `value` is the value that was given,
    `accepted` says what would have been accepted. `str(error)` is one line that holds all three.
    """

    def __init__(self, kind: Kind, reason: str, *, field: str = "", value: Any = None, accepted: str = "") -> None:
        if isinstance(value, Enum):
            value = value.value  # callers know the word on the wire, not our name for it
        self.kind = kind
        self.reason = reason
        self.field = field
        self.value = value
        self.accepted = accepted
        parts = [f"{field}: {reason}" if field else reason]
        if value is not None:
            text = repr(value)
            parts.append(f"got {text if len(text) <= 120 else text[:117] + '...'}")
        if accepted:
            parts.append(f"accepted: {accepted}")
        super().__init__("; ".join(parts))
