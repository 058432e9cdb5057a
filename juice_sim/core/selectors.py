"""Which agents a session accepts: labels, taints and label selectors. Selectors are parsed once.

Grammar of a selector: terms separated by commas, all of which must hold.

    key=value  key==value  key!=value  key in (a,b)  key notin (a,b)  key  !key

`!=` and `notin` also hold for an agent without that label, as in Kubernetes, whose users the syntax comes from.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from .model import Requirements

ACCEPTED = "k=v, k!=v, k in (a,b), k notin (a,b), k or !k, separated by commas"

_NAME = r"[A-Za-z0-9_](?:[-A-Za-z0-9_./:]*[A-Za-z0-9_])?"
_TERM = re.compile(
    rf"\s*(?:(?P<key>{_NAME})\s*(?:"
    rf"(?P<op>==|=|!=)\s*(?P<value>(?:{_NAME})?)"
    rf"|\s(?P<set_op>in|notin)\s*\((?P<values>[^()]*)\)"
    rf")?|!\s*(?P<absent>{_NAME}))\s*(?P<end>,|\Z)"
)
_VALUE = re.compile(rf"(?:{_NAME})?\Z")


class SelectorError(ValueError):
    """A label selector that does not follow the grammar; `str(error)` says where."""


@dataclass(frozen=True)
class Term:
    """One term: the label `key` must (or, with `negated`, must not) be one of `values`; None means any value."""

    key: str
    values: frozenset[str] | None
    negated: bool = False

    def matches(self, labels: Mapping[str, str]) -> bool:
        held = self.key in labels and (self.values is None or labels[self.key] in self.values)
        return held != self.negated


@lru_cache(maxsize=1024)
def parse_selector(text: str) -> tuple[Term, ...]:
    """Parse a selector; "" (and blanks) selects everything. Raises SelectorError."""
    terms: list[Term] = []
    at = 0
    if not text.strip():
        return ()
    while True:
        found = _TERM.match(text, at)
        if found is None:
            raise SelectorError(f"label selector {_short(text)} cannot be read at {_short(text[at:])}")
        terms.append(_term(found, text))
        at = found.end()
        if found["end"] != ",":
            return tuple(terms)


def _term(found: re.Match[str], text: str) -> Term:
    if found["absent"]:
        return Term(found["absent"], None, negated=True)
    if found["op"]:
        return Term(found["key"], frozenset({found["value"]}), negated=found["op"] == "!=")
    if found["set_op"]:
        values = [value.strip() for value in found["values"].split(",")]
        wrong = next((value for value in values if not value or not _VALUE.match(value)), None)
        if wrong is not None:
            raise SelectorError(f"label selector {_short(text)} has the value {_short(wrong)} in a list")
        return Term(found["key"], frozenset(values), negated=found["set_op"] == "notin")
    return Term(found["key"], None)


def _short(text: str) -> str:
    quoted = repr(text)
    return quoted if len(quoted) <= 80 else quoted[:77] + "..."


def match_labels(wanted: Mapping[str, str], labels: Mapping[str, str]) -> bool:
    """True when the agent has every wanted label with that very value."""
    return all(labels.get(key) == value for key, value in wanted.items())


def tolerates(tolerated: Mapping[str, str], taints: Mapping[str, str]) -> bool:
    """True when every taint of the agent is tolerated, key and value."""
    return all(tolerated.get(key) == value for key, value in taints.items())


def accepts(requirements: Requirements) -> Callable[[Mapping[str, str], Mapping[str, str]], bool]:
    """The test of an agent's (labels, taints) that these requirements imply. Pools and VRAM are not its business."""
    terms = parse_selector(requirements.label_selector)
    wanted, tolerated = requirements.match_labels, requirements.tolerates

    def test(labels: Mapping[str, str], taints: Mapping[str, str]) -> bool:
        return (
            match_labels(wanted, labels)
            and tolerates(tolerated, taints)
            and all(term.matches(labels) for term in terms)
        )

    return test
