"""Reader of Alibaba's cluster-trace-gpu-v2023 ("openb"): node lists and task lists, CSV with a header line.

Times are seconds from the start of the trace, CPU in thousandths, `gpu_milli` thousandths of each of `num_gpu` GPUs;
`gpu_spec` names the models on which a task can run, `A|B`; empty for any.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TextIO

from .job import BadRow, BadValue, LeftOut, Tally, number, whole
from .mapping import RawJob

TASK_COLUMNS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")
TIME_COLUMNS = ("creation_time", "deletion_time", "scheduled_time")
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
MILLI = 1000
# MiB of one GPU, to turn thousandths of a GPU into VRAM. G1 to G3 are models that the trace does not name.
VRAM_MIB = {
    "T4": 15109,
    "V100M16": 16160,
    "P100": 16280,
    "A10": 22731,
    "V100M32": 32510,
    "A100": 81251,
    "G1": 10000,
    "G2": 20000,
    "G3": 30000,
}
DEFAULT_VRAM_MIB = VRAM_MIB["V100M16"]  # of a task that names no model


@dataclass(frozen=True, slots=True)
class OpenbTask:
    """One task as the file has it. CPU and GPU in thousandths, memory in MiB."""

    line: int
    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    gpu_milli: int
    models: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class OpenbNode:
    """One node as the file has it."""

    name: str
    cpu_milli: int
    memory_mib: int
    gpus: int
    model: str


class WrongHeader(ValueError):
    """The file does not begin with the header line of its format; `str(error)` names what is missing."""


def read_tasks(file: TextIO, tally: Tally) -> Iterator[OpenbTask]:
    """The tasks, with those of 0 GPUs and those that never started. Raises WrongHeader."""
    for line, row in _rows(file, tally, TASK_COLUMNS):
        try:
            task = _task(line, row)
        except BadValue as error:
            tally.add_bad(BadRow(line, error.column, error.value, error.reason))
            continue
        tally.jobs += 1
        yield task


def read_nodes(file: TextIO, tally: Tally) -> Iterator[OpenbNode]:
    """The nodes. Raises WrongHeader."""
    for line, row in _rows(file, tally, NODE_COLUMNS):
        try:
            node = OpenbNode(
                row["sn"],
                whole("cpu_milli", row["cpu_milli"]),
                whole("memory_mib", row["memory_mib"]),
                whole("gpu", row["gpu"], most=1024),
                row["model"],
            )
        except BadValue as error:
            tally.add_bad(BadRow(line, error.column, error.value, error.reason))
            continue
        tally.jobs += 1
        yield node


def read_jobs(file: TextIO, tally: Tally) -> Iterator[RawJob | BadRow | LeftOut]:
    """The tasks as jobs, from creation, for as long as they ran. A fraction of a GPU is a slice: its share of the
    VRAM of the smallest model that the task accepts (of a V100 with 16 GB when it names none)."""
    for line, row in _rows(file, tally, (*TASK_COLUMNS, *TIME_COLUMNS)):
        try:
            yield _job(line, row)
        except BadValue as error:
            yield BadRow(line, error.column, error.value, error.reason)
        except LeftOut as reason:
            yield reason


def slice_bytes(gpu_milli: int, models: tuple[str, ...]) -> int:
    """VRAM in bytes of a share of a GPU."""
    mib = min((VRAM_MIB.get(model, DEFAULT_VRAM_MIB) for model in models), default=DEFAULT_VRAM_MIB)
    return (mib << 20) * gpu_milli // MILLI


def _job(line: int, row: dict[str, str]) -> RawJob:
    task = _task(line, row)
    created = number("creation_time", row["creation_time"])
    if not row["scheduled_time"]:
        raise LeftOut("never started")
    started = number("scheduled_time", row["scheduled_time"])
    if not row["deletion_time"]:
        raise LeftOut("still running at the end of the trace")
    ended = number("deletion_time", row["deletion_time"])
    if ended < started:
        raise BadValue("deletion_time", row["deletion_time"], f"before scheduled_time {row['scheduled_time']}")
    if started < created:
        raise BadValue("scheduled_time", row["scheduled_time"], f"before creation_time {row['creation_time']}")
    fields = {"name": task.name, "qos": row.get("qos") or "", "state": row.get("pod_phase") or ""}
    vram = slice_bytes(task.gpu_milli, task.models) if task.gpus == 1 and task.gpu_milli < MILLI else None
    return RawJob(line, created, ended - started, task.cpu_milli / MILLI, task.gpus, vram, task.models, fields)


def _task(line: int, row: dict[str, str]) -> OpenbTask:
    gpus = whole("num_gpu", row["num_gpu"], most=1024)
    milli = whole("gpu_milli", row["gpu_milli"] or "0", most=MILLI) if gpus else 0
    if gpus and not milli:
        raise BadValue("gpu_milli", row["gpu_milli"], "0 of a GPU; accepted: 1 to 1000")
    if gpus > 1 and milli < MILLI:
        raise BadValue("gpu_milli", row["gpu_milli"], "parts of several GPUs; accepted with num_gpu over 1: 1000")
    models = tuple(model for model in row["gpu_spec"].split("|") if model)
    return OpenbTask(
        line,
        row["name"],
        whole("cpu_milli", row["cpu_milli"]),
        whole("memory_mib", row["memory_mib"]),
        gpus,
        milli,
        models,
    )


def _rows(file: TextIO, tally: Tally, columns: tuple[str, ...]) -> Iterator[tuple[int, dict[str, str]]]:
    reader = csv.reader(file)
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise WrongHeader(f"line 1: not CSV: {error}") from None
    missing = [name for name in columns if name not in header]
    if missing:
        raise WrongHeader(f"line 1: no column {', '.join(missing)}; accepted: a header line with {','.join(columns)}")
    while True:
        try:
            values = next(reader, None)
        except csv.Error as error:
            tally.rows += 1
            tally.add_bad(BadRow(reader.line_num, "row", "", f"not CSV: {error}"))
            continue
        if values is None:
            return
        if not values:
            continue  # an empty line is no row
        tally.rows += 1
        if len(values) != len(header):
            reason = f"{len(values)} columns instead of {len(header)}"
            tally.add_bad(BadRow(reader.line_num, "row", ",".join(values), reason))
            continue
        yield reader.line_num, dict(zip(header, values, strict=True))
