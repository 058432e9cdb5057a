"""YAML read strictly: every value is checked against a declared type, every error names file, line and key.

A type turns a YAML node into a Python value. The types describe themselves too, as JSON Schema and as the rows of a
reference table, so that what is accepted is written down in one place only.
"""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from .bad_input import BadInput, Reading, shorten, show, suggestion

MAX_FILE_BYTES = 4 * 1024 * 1024
MAX_ALIASED_NODES = 200_000  # a file of nested aliases may stand for billions of nodes

_NULL, _BOOL, _INT, _FLOAT = (f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float"))
_MERGE = "tag:yaml.org,2002:merge"


class Type(ABC):
    """Turns a node into a value. `accepted` says in words what it takes."""

    accepted: str = ""

    @abstractmethod
    def read(self, node: yaml.Node, key: str, reading: Reading) -> Any:
        """The value that stands at `node`, whose path in the file is `key`. Raises BadInput."""

    @abstractmethod
    def json_schema(self) -> dict[str, Any]:
        """The same type as JSON Schema."""

    def nested(self) -> list[Section]:
        """Sections inside this type, for the reference tables."""
        return []

    def _refuse(self, node: yaml.Node, key: str, reading: Reading, reason: str = "wrong value") -> BadInput:
        return reading.error(node, key, reason, value=show(node), accepted=self.accepted)


@dataclass
class Text(Type):
    """One text. A bare number or `yes` is taken as it is written when `loose`."""

    pattern: str = ""
    accepted: str = "a text"
    max_length: int = 65536
    loose: bool = False
    allow_empty: bool = False

    def read(self, node: yaml.Node, key: str, reading: Reading) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.tag == _NULL:
            raise self._refuse(node, key, reading)
        if not self.loose and node.tag in (_BOOL, _INT, _FLOAT):
            raise self._refuse(node, key, reading, "not a text (put it in quotes if it is meant as one)")
        text: str = node.value
        if not text and not self.allow_empty:
            raise self._refuse(node, key, reading, "empty")
        if "\0" in text:
            raise self._refuse(node, key, reading, "holds a NUL character")
        if len(text) > self.max_length:
            raise self._refuse(node, key, reading, f"too long ({len(text)} characters, at most {self.max_length})")
        if self.pattern and not re.fullmatch(self.pattern, text):
            raise self._refuse(node, key, reading)
        return text

    def json_schema(self) -> dict[str, Any]:
        schema: dict[str, Any] = {"type": ["string", "number", "boolean"] if self.loose else "string"}
        if self.pattern:
            schema["pattern"] = f"^(?:{self.pattern})$"
        return schema


@dataclass
class Flag(Type):
    accepted: str = "true or false"

    def read(self, node: yaml.Node, key: str, reading: Reading) -> bool:
        if not isinstance(node, yaml.ScalarNode) or node.tag != _BOOL or node.value.lower() not in ("true", "false"):
            raise self._refuse(node, key, reading)
        return bool(node.value.lower() == "true")

    def json_schema(self) -> dict[str, Any]:
        return {"type": "boolean"}


@dataclass
class Whole(Type):
    """A whole number within bounds."""

    least: int = 0
    most: int = 1_000_000

    @property
    def accepted(self) -> str:  # type: ignore[override]
        return f"a whole number from {self.least} to {self.most}"

    def read(self, node: yaml.Node, key: str, reading: Reading) -> int:
        # Plain decimal digits only: YAML 1.1 reads 010 as 8 and 1:30 as 90, which nobody means here.
        if (
            not isinstance(node, yaml.ScalarNode)
            or node.tag != _INT
            or not re.fullmatch(r"-?(0|[1-9][0-9_]*)", node.value)
        ):
            raise self._refuse(node, key, reading)
        text = node.value.replace("_", "")
        if len(text) > 20 or not self.least <= int(text) <= self.most:
            raise self._refuse(node, key, reading, "out of range")
        return int(text)

    def json_schema(self) -> dict[str, Any]:
        return {"type": "integer", "minimum": self.least, "maximum": self.most}


@dataclass
class Number(Type):
    """A finite decimal number within bounds."""

    least: float = 0.0
    most: float = 1e9
    unit: str = ""
    exclusive: bool = False

    @property
    def accepted(self) -> str:  # type: ignore[override]
        low = f"over {self.least:g}" if self.exclusive else f"from {self.least:g}"
        return f"a number {low} to {self.most:g}" + (f" ({self.unit})" if self.unit else "")

    def read(self, node: yaml.Node, key: str, reading: Reading) -> float:
        if not isinstance(node, yaml.ScalarNode) or not re.fullmatch(
            r"[-+]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?", node.value
        ):
            raise self._refuse(node, key, reading)
        if node.style in ("'", '"'):
            raise self._refuse(node, key, reading, "a text, not a number")
        value = float(node.value)
        if not math.isfinite(value) or not self.least <= value <= self.most or (self.exclusive and value == self.least):
            raise self._refuse(node, key, reading, "out of range")
        return value

    def json_schema(self) -> dict[str, Any]:
        low = "exclusiveMinimum" if self.exclusive else "minimum"
        return {"type": "number", low: self.least, "maximum": self.most}


_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


@dataclass
class Duration(Type):
    """Seconds as a number, or a text such as `500ms`, `1.5s`, `2m`, `1h`. The value is in seconds."""

    least: float = 0.0
    most: float = 30 * 86400.0
    exclusive: bool = False

    @property
    def accepted(self) -> str:  # type: ignore[override]
        low = f"over {self.least:g}" if self.exclusive else f"from {self.least:g}"
        return f"seconds {low} to {self.most:g}, as a number or like 500ms, 1.5s, 2m, 1h"

    def read(self, node: yaml.Node, key: str, reading: Reading) -> float:
        match = isinstance(node, yaml.ScalarNode) and re.fullmatch(r"([0-9]+(?:\.[0-9]+)?) ?(ms|s|m|h|d)?", node.value)
        if not match or len(match.group(1)) > 20:
            raise self._refuse(node, key, reading)
        value = float(match.group(1)) * _SECONDS[match.group(2) or "s"]
        if not self.least <= value <= self.most or (self.exclusive and value == self.least):
            raise self._refuse(node, key, reading, "out of range")
        return value

    def json_schema(self) -> dict[str, Any]:
        return {
            "anyOf": [
                {"type": "number", "minimum": self.least, "maximum": self.most},
                {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)? ?(ms|s|m|h|d)?$"},
            ]
        }


@dataclass
class Choice(Type):
    """One of a few words."""

    words: Sequence[str]

    @property
    def accepted(self) -> str:  # type: ignore[override]
        return ", ".join(self.words)

    def read(self, node: yaml.Node, key: str, reading: Reading) -> str:
        if not isinstance(node, yaml.ScalarNode) or node.value not in self.words:
            near = suggestion(node.value, self.words) if isinstance(node, yaml.ScalarNode) else ""
            raise self._refuse(node, key, reading, f"unknown{near}")
        return str(node.value)

    def json_schema(self) -> dict[str, Any]:
        return {"enum": list(self.words)}


@dataclass
class Parsed(Type):
    """A text or number that a function turns into a value; the function raises ValueError with the reason."""

    parse: Callable[[str], Any]
    accepted: str
    schema: dict[str, Any] = field(default_factory=lambda: {"type": ["string", "number"]})

    def read(self, node: yaml.Node, key: str, reading: Reading) -> Any:
        if not isinstance(node, yaml.ScalarNode) or node.tag in (_NULL, _BOOL):
            raise self._refuse(node, key, reading)
        try:
            return self.parse(node.value)
        except ValueError as error:
            raise self._refuse(node, key, reading, str(error)) from None

    def json_schema(self) -> dict[str, Any]:
        return self.schema


@dataclass
class ListOf(Type):
    item: Type
    least: int = 0
    most: int = 100_000
    single: bool = False  # one item may stand without the list around it

    @property
    def accepted(self) -> str:  # type: ignore[override]
        return f"a list of: {self.item.accepted}" if self.item.accepted else "a list"

    def read(self, node: yaml.Node, key: str, reading: Reading) -> list[Any]:
        if self.single and not isinstance(node, yaml.SequenceNode):
            return [self.item.read(node, key, reading)]
        if not isinstance(node, yaml.SequenceNode):
            raise self._refuse(node, key, reading, "not a list")
        if not self.least <= len(node.value) <= self.most:
            raise self._refuse(node, key, reading, f"needs {self.least} to {self.most} entries")
        values = []
        for position, child in enumerate(node.value):
            path = f"{key}[{position}]"
            _enter(child, path, reading)
            values.append(self.item.read(child, path, reading))
        return values

    def json_schema(self) -> dict[str, Any]:
        array: dict[str, Any] = {"type": "array", "items": self.item.json_schema(), "minItems": self.least}
        return {"anyOf": [self.item.json_schema(), array]} if self.single else array

    def nested(self) -> list[Section]:
        return self.item.nested()


@dataclass
class MapOf(Type):
    """Any keys, values of one type."""

    value: Type
    accepted: str = "a mapping"

    def read(self, node: yaml.Node, key: str, reading: Reading) -> dict[str, Any]:
        return {
            name: self.value.read(child, f"{key}.{name}", reading) for name, child in _pairs(node, key, reading).items()
        }

    def json_schema(self) -> dict[str, Any]:
        return {"type": "object", "additionalProperties": self.value.json_schema()}


@dataclass
class OneOf(Type):
    """A plain value in short form, or a section in long form."""

    short: Type
    long: Type

    @property
    def accepted(self) -> str:  # type: ignore[override]
        return f"{self.short.accepted}; or {self.long.accepted}"

    def read(self, node: yaml.Node, key: str, reading: Reading) -> Any:
        return (self.long if isinstance(node, yaml.MappingNode) else self.short).read(node, key, reading)

    def json_schema(self) -> dict[str, Any]:
        return {"anyOf": [self.short.json_schema(), self.long.json_schema()]}

    def nested(self) -> list[Section]:
        return self.short.nested() + self.long.nested()


@dataclass
class Key:
    """One key of a section. Without `required`, a missing key has the section's own default."""

    name: str
    type: Type
    meaning: str
    required: bool = False
    default: str = ""  # as the reference shows it


@dataclass
class Section(Type):
    """A mapping with known keys; `build` makes the value from them (missing ones are not passed)."""

    title: str
    keys: Sequence[Key]
    build: Callable[..., Any]
    about: str = ""

    @property
    def accepted(self) -> str:  # type: ignore[override]
        return f"a mapping with the keys {', '.join(key.name for key in self.keys)}"

    def read(self, node: yaml.Node, key: str, reading: Reading) -> Any:
        pairs = _pairs(node, key, reading)
        return self.build(**self.read_pairs(node, pairs, key, reading))

    def read_pairs(
        self, node: yaml.Node, pairs: dict[str, yaml.Node], key: str, reading: Reading, also: Sequence[str] = ()
    ) -> dict[str, Any]:
        known = {entry.name: entry for entry in self.keys}
        values = {}
        for name, child in pairs.items():
            path = f"{key}.{name}" if key else name
            if name in also:
                continue
            if name not in known:
                names = [*also, *known]
                raise reading.error(
                    child, path, f"unknown key{suggestion(name, names)}", accepted=", ".join(names) or "no keys"
                )
            values[name.replace("-", "_")] = known[name].type.read(child, path, reading)
        for entry in self.keys:
            if entry.required and entry.name not in pairs:
                raise reading.error(
                    node, f"{key}.{entry.name}" if key else entry.name, "missing", accepted=entry.type.accepted
                )
        return values

    def json_schema(self) -> dict[str, Any]:
        return {
            "type": "object",
            "additionalProperties": False,
            "properties": {
                entry.name: {**entry.type.json_schema(), "description": entry.meaning} for entry in self.keys
            },
            "required": [entry.name for entry in self.keys if entry.required],
        }

    def nested(self) -> list[Section]:
        inner = [section for entry in self.keys for section in entry.type.nested()]
        return [self, *inner]


@dataclass
class Variant(Type):
    """A mapping whose key `tag` says which section it is."""

    tag: str
    cases: dict[str, Section]
    common: Sequence[Key] = ()  # keys that every case has
    default: str = ""

    def __post_init__(self) -> None:
        for section in self.cases.values():
            section.keys = [*section.keys, *self.common]

    @property
    def accepted(self) -> str:  # type: ignore[override]
        return f"a mapping with {self.tag}: {', '.join(self.cases)}"

    def read(self, node: yaml.Node, key: str, reading: Reading) -> Any:
        pairs = _pairs(node, key, reading)
        child = pairs.get(self.tag)
        path = f"{key}.{self.tag}"
        if child is None:
            if not self.default:
                raise reading.error(node, path, "missing", accepted=", ".join(self.cases))
            word = self.default
        else:
            word = Choice(list(self.cases)).read(child, path, reading)
        section = self.cases[word]
        return section.build(**section.read_pairs(node, pairs, key, reading, also=[self.tag]))

    def json_schema(self) -> dict[str, Any]:
        schemas = []
        for word, section in self.cases.items():
            schema = section.json_schema()
            schema["properties"] = {self.tag: {"const": word}, **schema["properties"]}
            if word != self.default:
                schema["required"] = [self.tag, *schema["required"]]
            schemas.append(schema)
        return {"oneOf": schemas}

    def nested(self) -> list[Section]:
        return [inner for section in self.cases.values() for inner in section.nested()]


def _enter(node: yaml.Node, key: str, reading: Reading) -> None:
    reading.lines.setdefault(key, node.start_mark.line + 1)
    reading.visited += 1
    if reading.visited > MAX_ALIASED_NODES:
        raise reading.error(node, key, f"more than {MAX_ALIASED_NODES} values once the aliases are followed")


def _pairs(node: yaml.Node, key: str, reading: Reading) -> dict[str, yaml.Node]:
    if not isinstance(node, yaml.MappingNode):
        raise reading.error(node, key, "not a mapping", value=show(node), accepted="key: value lines")
    pairs: dict[str, yaml.Node] = {}
    for name_node, child in node.value:
        if name_node.tag == _MERGE:
            raise reading.error(
                name_node, key, "merge keys (<<) are not supported", accepted="plain keys; &anchors on values"
            )
        if not isinstance(name_node, yaml.ScalarNode):
            raise reading.error(name_node, key, "a key must be a plain word", value=show(name_node))
        name = name_node.value
        path = f"{key}.{name}" if key else name
        if name in pairs:
            raise reading.error(name_node, path, f"given twice (first on line {reading.lines.get(path)})")
        pairs[name] = child
        reading.lines[path] = name_node.start_mark.line + 1
        _enter(child, path, reading)
    return pairs


def read_yaml(text: str, source: str, schema: Type) -> tuple[Any, Reading]:
    """Read one YAML document. Returns the value and the reading (for errors of later cross-checks). Raises BadInput."""
    reading = Reading(source)
    try:
        loader = yaml.SafeLoader(text)
        try:
            root = loader.get_single_node()
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        reason = " ".join(part for part in (error.context, error.problem) if part)
        raise BadInput(source, f"not valid YAML: {reason}", line=mark.line + 1 if mark else None) from None
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise BadInput(source, f"not valid YAML: {shorten(' '.join(str(error).split()))}") from None
    if root is None:
        raise BadInput(source, "the file is empty", accepted=schema.accepted)
    reading.lines[""] = root.start_mark.line + 1
    try:
        return schema.read(root, "", reading), reading
    except RecursionError:
        raise BadInput(source, "nested too deeply") from None


def read_yaml_file(path: Path, schema: Type) -> tuple[Any, Reading, str]:
    """Like `read_yaml`, from a file; also returns its text."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise BadInput(str(path), f"cannot be read: {error.strerror or error}") from None
    if len(raw) > MAX_FILE_BYTES:
        raise BadInput(str(path), f"larger than {MAX_FILE_BYTES} bytes")
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise BadInput(str(path), "not UTF-8", line=line, value=raw[error.start : error.end]) from None
    value, reading = read_yaml(text, str(path), schema)
    return value, reading, text
