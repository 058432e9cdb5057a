"""The mapping file: which jobs of a recorded workload would use which pool, how many GPUs, and which slice.

    unmatched: skip              # jobs that no rule matches: skip (default, counted) or cpu (a job without Juice)
    rules:                       # in order; the first that matches applies
      - match: {partition: "gpu*", gpu_model: [a100, h100]}
        pool: large              # whole GPUs, as many as the job had
      - match: {partition: interactive, user: "!svc-*"}
        pool: small
        gpus: 1
        vram: 10GiB              # a slice
      - match: {partition: cpu}
        pool: small
        cpus_per_gpu: 16         # one GPU for each 16 CPUs, rounded up
      - match: {account: [test, "ci-*"]}
        use: skip

`match` compares fields of the row with patterns (shell globs, upper and lower case alike, `!` in front negates); all
fields must match, of a list any one pattern. `gpus` in a match is a number or a range: `1`, `">=2"`, `"<8"`.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from juice_sim.core.units import ACCEPTED as VRAM_ACCEPTED
from juice_sim.core.units import parse_vram

from ..bad_input import BadInput, Reading, suggestion
from ..strict_yaml import (
    Choice,
    Key,
    ListOf,
    MapOf,
    Parsed,
    Section,
    Text,
    Whole,
    read_yaml_file,
)
from .job import BadValue, LeftOut, TraceJob

JUICE, CPU, SKIP = "juice", "cpu", "skip"
MAX_GPUS = 1024
FIELDS = (
    "account",
    "application",
    "constraints",
    "gpu_model",
    "gpus",
    "group",
    "name",
    "partition",
    "qos",
    "queue",
    "state",
    "user",
)
_RANGE = re.compile(r"(<=|>=|<|>|=|!)?\s*([0-9]{1,6})", re.ASCII)
_COMPARE: dict[str, Callable[[int, int], bool]] = {
    "": operator.eq,
    "=": operator.eq,
    "!": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True)
class RawJob:
    """What a format says about one job, before the mapping: `fields` are those that rules can match.

    `gpus` None: the format says nothing about GPUs. `vram` is bytes of one GPU when the trace itself has fractions.
    """

    line: int
    submit_s: float
    run_s: float
    cpus: float
    gpus: int | None
    vram: int | None = None
    models: tuple[str, ...] = ()
    fields: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Rule:
    """One rule. `gpus` and `cpus_per_gpu` None: as many as the job had. `vram` None: whole GPUs, or the trace's own."""

    match: dict[str, tuple[str, ...]] = field(default_factory=dict)
    use: str = JUICE
    pool: str = ""
    gpus: int | None = None
    cpus_per_gpu: int | None = None
    vram: int | None = None

    def matches(self, job: RawJob) -> bool:
        """Whether all fields of `match` agree with the job."""
        return all(_matches(name, patterns, job) for name, patterns in self.match.items())


@dataclass(frozen=True)
class Mapping:
    """A mapping file. `default_pool` is for a format that knows which jobs use GPUs, when there are no rules."""

    rules: tuple[Rule, ...] = ()
    unmatched: str = SKIP
    default_pool: Callable[[RawJob], str] | None = None

    def apply(self, job: RawJob) -> TraceJob:
        """The job as it would run with Juice. Raises LeftOut, BadValue."""
        rule = next((rule for rule in self.rules if rule.matches(job)), None)
        if rule is None and self.default_pool is not None:
            rule = Rule(use=JUICE if job.gpus else CPU, pool=self.default_pool(job) if job.gpus else "")
        if rule is None:
            if self.unmatched == SKIP:
                raise LeftOut("no rule of the mapping matches")
            rule = Rule(use=CPU)
        if rule.use == SKIP:
            raise LeftOut("a rule of the mapping skips it")
        if rule.use == CPU:
            return _made(job, 0, None, "")
        gpus = _gpus(rule, job)
        vram = rule.vram if rule.vram is not None else job.vram
        if vram is not None and gpus != 1:
            raise BadValue("gpus", str(gpus), "a slice (vram) is of exactly one GPU")
        return _made(job, gpus, vram, rule.pool)


def load_mapping(path: Path) -> Mapping:
    """Read a mapping file. Raises BadInput with file, line and key."""
    value, reading, _ = read_yaml_file(path, _MAPPING)
    mapping: Mapping = value
    for position, rule in enumerate(mapping.rules):
        _check(rule, f"rules[{position}]", reading)
    return mapping


def _made(job: RawJob, gpus: int, vram: int | None, pool: str) -> TraceJob:
    return TraceJob(
        job.submit_s,
        job.run_s,
        job.cpus,
        gpus,
        vram,
        pool,
        job.fields.get("user", ""),
        job.line,
        job.fields.get("name", ""),
        job.models if gpus else (),
    )


def _gpus(rule: Rule, job: RawJob) -> int:
    if rule.gpus is not None:
        return rule.gpus
    gpus = math.ceil(job.cpus / rule.cpus_per_gpu) if rule.cpus_per_gpu is not None else job.gpus
    if not gpus and (rule.vram is not None or job.vram is not None):
        gpus = 1
    if not gpus:
        raise BadValue("gpus", str(gpus or ""), "the job has no GPUs; give `gpus` or `cpus_per_gpu` in the rule")
    if gpus > MAX_GPUS:
        raise BadValue("gpus", str(gpus), f"more than {MAX_GPUS} GPUs in one session")
    return gpus


def _matches(name: str, patterns: tuple[str, ...], job: RawJob) -> bool:
    if name == "gpus":
        return job.gpus is not None and any(_in_range(pattern, job.gpus) for pattern in patterns)
    names = job.models if name == "gpu_model" else (job.fields.get(name, ""),)
    lowered = [text.lower() for text in names] or [""]
    for pattern in patterns:
        if pattern.startswith("!"):
            if not any(fnmatchcase(text, pattern[1:].lower()) for text in lowered):
                return True
        elif any(fnmatchcase(text, pattern.lower()) for text in lowered):
            return True
    return False


def _in_range(pattern: str, value: int) -> bool:
    match = _RANGE.fullmatch(pattern)
    assert match is not None, "checked when the file was read"
    return _COMPARE[match[1] or ""](value, int(match[2]))


def _check(rule: Rule, key: str, reading: Reading) -> None:
    def refuse(where: str, reason: str, value: object, accepted: str) -> BadInput:
        path = f"{key}.{where}" if where else key
        return BadInput(reading.source, reason, line=reading.line_of(path), key=path, value=value, accepted=accepted)

    for name, patterns in rule.match.items():
        if name not in FIELDS:
            raise refuse(f"match.{name}", f"unknown field{suggestion(name, FIELDS)}", name, ", ".join(FIELDS))
        if name == "gpus":
            for pattern in patterns:
                if not _RANGE.fullmatch(pattern):
                    raise refuse(f"match.{name}", "not a number or range", pattern, "such as 1, >=2, <8")
    if rule.use == JUICE and not rule.pool:
        raise refuse("", "no pool", None, "pool: NAME, or use: cpu or skip")
    if rule.use != JUICE and (rule.pool or rule.gpus or rule.vram or rule.cpus_per_gpu):
        raise refuse("use", "a rule for jobs without Juice has no pool, gpus, vram", rule.use, "match and use only")
    if rule.gpus is not None and rule.cpus_per_gpu is not None:
        raise refuse("cpus_per_gpu", "given together with gpus", rule.cpus_per_gpu, "one of the two")
    if rule.vram is not None and (rule.gpus or 1) != 1:
        raise refuse("vram", "a slice is of exactly one GPU", rule.gpus, "gpus: 1")


def _patterns(text: list[str]) -> tuple[str, ...]:
    return tuple(text)


_PATTERN = Text(accepted="a pattern such as gpu* or !test", loose=True, max_length=200, allow_empty=True)
_RULE = Section(
    "rules",
    [
        Key(
            "match", MapOf(ListOf(_PATTERN, least=1, single=True), "field: pattern lines"), "Which jobs.", default="all"
        ),
        Key("use", Choice((JUICE, CPU, SKIP)), "A Juice job, a job without GPUs, or none.", default=JUICE),
        Key("pool", Text(accepted="a pool's name", max_length=200), "The pool that they would use."),
        Key("gpus", Whole(1, MAX_GPUS), "GPUs of each job.", default="as many as it had"),
        Key("cpus_per_gpu", Whole(1, 100_000), "One GPU for so many CPUs, rounded up."),
        Key("vram", Parsed(parse_vram, VRAM_ACCEPTED), "A slice of that size of one GPU.", default="whole GPUs"),
    ],
    lambda match=None, **values: Rule(
        match={name: _patterns(patterns) for name, patterns in (match or {}).items()}, **values
    ),
)
_MAPPING = Section(
    "mapping",
    [
        Key("rules", ListOf(_RULE, least=1, most=10_000), "In order; the first that matches applies.", required=True),
        Key("unmatched", Choice((SKIP, CPU)), "What becomes of jobs that no rule matches.", default=SKIP),
    ],
    lambda rules, **values: Mapping(rules=tuple(rules), **values),
)
