"""The one error about files that a user writes, and where in such a file its values stand."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import yaml


class BadInput(Exception):
    """A file that cannot be used. `str(error)` is one line: file, line, key, reason, value, what is accepted."""

    def __init__(
        self, source: str, reason: str, *, line: int | None = None, key: str = "", value: Any = None, accepted: str = ""
    ) -> None:
        self.source, self.line, self.key, self.reason, self.value, self.accepted = (
            source,
            line,
            key,
            reason,
            value,
            accepted,
        )
        where = source if line is None else f"{source}:{line}"
        parts = [f"{where}: {key}: {reason}" if key else f"{where}: {reason}"]
        if value is not None:
            parts.append(f"got {shorten(repr(value))}")
        if accepted:
            parts.append(f"accepted: {accepted}")
        super().__init__("; ".join(parts))


def shorten(text: str, limit: int = 100) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."


def suggestion(word: str, known: Iterable[str]) -> str:
    """` (did you mean 'x'?)`, or nothing when no known word is near."""
    near = difflib.get_close_matches(str(word), list(known), n=1, cutoff=0.6)
    return f" (did you mean {near[0]!r}?)" if near else ""


@dataclass
class Reading:
    """One file being read: its name and, per key path, the line on which the value stands (for later cross-checks)."""

    source: str
    lines: dict[str, int] = field(default_factory=dict)
    visited: int = 0

    def error(
        self, node: yaml.Node | None, key: str, reason: str, *, value: Any = None, accepted: str = ""
    ) -> BadInput:
        line = node.start_mark.line + 1 if node is not None else self.line_of(key)
        return BadInput(self.source, reason, line=line, key=key, value=value, accepted=accepted)

    def line_of(self, key: str) -> int | None:
        """The line of `key`, or of the nearest key that encloses it."""
        while key:
            if key in self.lines:
                return self.lines[key]
            key = re.sub(r"(\.[^.\[\]]+|\[\d+\]|^[^.\[\]]+)$", "", key)
        return self.lines.get("")


def show(node: yaml.Node) -> Any:
    """What stands in the file at `node`, for an error text."""
    if isinstance(node, yaml.ScalarNode):
        return node.value
    return (
        f"a list of {len(node.value)}"
        if isinstance(node, yaml.SequenceNode)
        else f"a mapping of {len(node.value)} keys"
    )
