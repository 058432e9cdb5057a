"""What is wrong with a body that does not decode: field, value and what is accepted, as one `Refused`.

msgspec says it in one line of English. In that line any member of a JSON object with free names is `[...]`, and the
words of an enumeration are not told; both are looked up here, where only a body that is refused pays for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import inspect

from .core.errors import Kind, Refused

_LINE = re.compile(r"^(?P<reason>.*?)(?: - at (?P<key>`key` in )?`(?P<path>[^`]*)`)?$", re.DOTALL)
_STEP = re.compile(r"\[\.\.\.\]|[^.\[\]]+")
_ANY = "[...]"


def not_acceptable(error: msgspec.ValidationError, value: Any, kind: Any) -> Refused:
    """The refusal of `value`, which `msgspec.convert(value, kind)` answered with `error`."""
    match = _LINE.match(str(error))
    assert match is not None  # the pattern takes any text
    reason = match["reason"].replace("`", "")
    steps = _STEP.findall((match["path"] or "").removeprefix("$"))
    names: list[Any] = []
    for step in steps:
        here = _at(value, names)
        if step == _ANY:
            names.append(_culprit(value, names, kind, str(error)))
        else:
            names.append(int(step) if isinstance(here, list) else step)
    given = _culprit(value, names, kind, str(error)) if match["key"] else _at(value, names)
    missing = re.match(r"Object missing required field (.*)$", reason)
    if missing:
        names.append(missing[1])
        steps.append(missing[1])
        reason, given = "the member is missing", None
    return Refused(
        Kind.INVALID,
        reason,
        field=_written(names),
        value=given if isinstance(given, (str, int, float, bool)) else None,
        accepted=_accepted(reason, kind, steps),
    )


def not_json(text: str, error: ValueError) -> Refused:
    """The refusal of `text`, which `json.loads` answered with `error`. The member that is NaN or Infinity is named."""
    names = _path_of_constant(text)
    if names is None:
        return Refused(Kind.INVALID, f"the body is not JSON: {error}", accepted="a JSON object")
    constant = _at(json.loads(text, parse_constant=str), names)
    return Refused(Kind.INVALID, "is no JSON number", field=_written(names), value=constant, accepted="a finite number")


class _Constant(str):
    """NaN, Infinity or -Infinity where a value should be."""


def _path_of_constant(text: str) -> list[Any] | None:
    try:
        value = json.loads(text, parse_constant=_Constant)
    except ValueError:
        return None
    waiting: list[tuple[list[Any], Any]] = [([], value)]
    while waiting:
        path, here = waiting.pop()
        if isinstance(here, _Constant):
            return path
        members = here.items() if isinstance(here, dict) else enumerate(here) if isinstance(here, list) else ()
        waiting.extend(([*path, name], member) for name, member in members)
    return None


def _written(names: Sequence[Any]) -> str:
    """A path as in `gpus[0].vramRequired`. Names that a caller chose are cut."""
    text = "".join(f"[{name}]" if isinstance(name, int) else f".{str(name)[:120]}" for name in names)
    return text.removeprefix(".")


def _at(value: Any, names: Sequence[Any]) -> Any:
    for name in names:
        value = value[name]
    return value


def _with(value: Any, names: Sequence[Any], new: Any) -> Any:
    """A copy of `value` in which `new` stands at the path; the rest is shared."""
    if not names:
        return new
    copy = dict(value) if isinstance(value, dict) else list(value)
    copy[names[0]] = _with(value[names[0]], names[1:], new)
    return copy


def _culprit(value: Any, names: Sequence[Any], kind: Any, said: str) -> str:
    """The name of the first member of the object at the path about which msgspec complains, found by halving."""
    members: dict[str, Any] = _at(value, names)
    keys = list(members)
    while len(keys) > 1:
        half = keys[: len(keys) // 2]
        complains = _complains(kind, said)
        keys = half if complains(_with(value, names, {key: members[key] for key in half})) else keys[len(half) :]
    return keys[0]


def _complains(kind: Any, said: str) -> Callable[[Any], bool]:
    def holds(value: Any) -> bool:
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            return str(error) == said
        return False

    return holds


def _accepted(reason: str, kind: Any, steps: Sequence[str]) -> str:
    match = re.match(r"Expected (.*?)(?:, got .*)?$", reason)
    if match:
        return match[1]
    words = sorted(_words(_type_at(inspect.type_info(kind), steps)))
    return ", ".join(words) or "see /openapi.json"


def _type_at(found: inspect.Type, steps: Sequence[str]) -> list[inspect.Type]:
    """The types that the path may lead to, unions taken apart."""
    types = _parts(found)
    for step in steps:
        following: list[inspect.Type] = []
        for one in types:
            if isinstance(one, inspect.StructType):
                following += [part for f in one.fields if f.encode_name == step for part in _parts(f.type)]
            elif isinstance(one, inspect.ListType):
                following += _parts(one.item_type)
            elif isinstance(one, inspect.DictType):
                following += _parts(one.value_type)
        types = following
    return types


def _parts(found: inspect.Type) -> list[inspect.Type]:
    if isinstance(found, inspect.Metadata):
        return _parts(found.type)
    if isinstance(found, inspect.UnionType):
        return [part for one in found.types for part in _parts(one)]
    return [found]


def _words(types: Sequence[inspect.Type]) -> set[str]:
    return {str(word) for one in types if isinstance(one, inspect.LiteralType) for word in one.values if word != ""}
