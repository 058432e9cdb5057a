"""Reader of the Standard Workload Format (version 2.2 of the Parallel Workloads Archive): 18 numbers a line.

Lines that begin with `;` are header comments. -1 stands for unknown. The format says nothing about GPUs: a mapping
gives jobs their pool, by `queue`, `partition`, `user`, `group`, `application` (numbers), or `state` (completed,
failed, cancelled).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TextIO

from .job import BadRow, BadValue, LeftOut, Tally, number
from .mapping import RawJob

COLUMNS = (
    "job",
    "submit",
    "wait",
    "run",
    "processors",
    "cpu_time",
    "memory",
    "requested_processors",
    "requested_time",
    "requested_memory",
    "status",
    "user",
    "group",
    "application",
    "queue",
    "partition",
    "preceding_job",
    "think_time",
)
_STATES = {0: "failed", 1: "completed", 5: "cancelled", -1: ""}
_PARTIAL = (2, 3, 4)  # one execution of a job that was swapped out or checkpointed; a line of its own sums it up


def read_jobs(file: TextIO, tally: Tally) -> Iterator[RawJob | BadRow | LeftOut]:
    """The jobs, in the order of the file."""
    for line, text in enumerate(file, start=1):
        words = text.split()
        if not words or words[0].startswith(";"):
            continue
        tally.rows += 1
        try:
            yield _job(line, words)
        except BadValue as error:
            yield BadRow(line, error.column, error.value, error.reason)
        except LeftOut as reason:
            yield reason


def _job(line: int, words: list[str]) -> RawJob:
    if len(words) != len(COLUMNS):
        raise BadValue("row", " ".join(words), f"{len(words)} fields instead of {len(COLUMNS)}")
    values = {name: number(name, word, least=-1.0) for name, word in zip(COLUMNS, words, strict=True)}
    status = int(values["status"])
    if status in _PARTIAL:
        raise LeftOut("partial execution of a job that has a line of its own")
    if status not in _STATES:
        raise BadValue("status", words[COLUMNS.index("status")], "unknown; accepted: -1 to 5")
    if values["submit"] < 0:
        raise BadValue("submit", words[1], "unknown submit time")
    if values["run"] < 0 or (values["run"] == 0 and status == 5):
        raise LeftOut("never ran")
    cpus = values["processors"] if values["processors"] > 0 else values["requested_processors"]
    if cpus <= 0:
        raise BadValue("processors", words[4], "neither allocated nor requested processors are known")
    fields = {name: f"{values[name]:g}" for name in ("user", "group", "application", "queue", "partition")}
    fields |= {"name": words[0], "state": _STATES[status]}
    return RawJob(line, values["submit"], values["run"], cpus, None, fields=fields)
