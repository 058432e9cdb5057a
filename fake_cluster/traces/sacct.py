"""Reader of accounting exports of Slurm: `sacct --allusers --allocations --parsable2 --format=... > history.txt`.

The first line names the columns, `|` separates them. Needed: JobID or JobIDRaw, Submit, and ElapsedRaw, Elapsed or
Start with End. Used when there: AllocTRES or ReqTRES (GPUs and their model), AllocGRES or ReqGRES (old releases),
NCPUS, AllocCPUS or ReqCPUS, User, Account, Partition, QOS, JobName, State, Constraints, Group. Times are read as
UTC, or as Unix seconds (SLURM_TIME_FORMAT=%s). Steps (`123.batch`) are left out and counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TextIO

from .job import BadRow, BadValue, LeftOut, Tally, number
from .mapping import RawJob
from .openb import WrongHeader

_FIELDS = {
    "user": "user",
    "account": "account",
    "partition": "partition",
    "qos": "qos",
    "jobname": "name",
    "state": "state",
    "constraints": "constraints",
    "group": "group",
}
_KNOWN_NOTHING = ("", "Unknown", "None", "N/A", "NONE")
_ELAPSED = re.compile(r"(?:(?:([0-9]+)-)?([0-9]+):)?([0-9]+):([0-9]+)(?:\.[0-9]+)?", re.ASCII)
_GPU = re.compile(r"gres/gpu(?::([^=,]+))?=([0-9]+)", re.ASCII)
_OLD_GPU = re.compile(r"(?:^|,)(?:gres:)?gpu(?::([A-Za-z][^:,(]*))?[:=]([0-9]+)", re.ASCII)
_CPU = re.compile(r"(?:^|,)cpu=([0-9]+)", re.ASCII)


def read_jobs(file: TextIO, tally: Tally) -> Iterator[RawJob | BadRow | LeftOut]:
    """The jobs, in the order of the file; `submit_s` is in Unix seconds. Raises WrongHeader."""
    header = [name.strip().lower() for name in file.readline().rstrip("\r\n").split("|")]
    _check_header(header)
    for line, text in enumerate(file, start=2):
        text = text.rstrip("\r\n")
        if not text:
            continue
        tally.rows += 1
        values = text.split("|")
        if len(values) != len(header):
            reason = f"{len(values)} columns instead of {len(header)} (a name with | in it? Leave JobName out)"
            yield BadRow(line, "row", text, reason)
            continue
        try:
            yield _job(line, dict(zip(header, values, strict=True)))
        except BadValue as error:
            yield BadRow(line, error.column, error.value, error.reason)
        except LeftOut as reason:
            yield reason


def _check_header(header: list[str]) -> None:
    accepted = "the first line of `sacct --parsable2 --format=JobID,Submit,Elapsed,...`"
    if not {"jobid", "jobidraw"} & set(header):
        raise WrongHeader(f"line 1: no column JobID; accepted: {accepted}")
    if "submit" not in header:
        raise WrongHeader(f"line 1: no column Submit; accepted: {accepted}")
    if not {"elapsed", "elapsedraw"} & set(header) and not {"start", "end"} <= set(header):
        raise WrongHeader(f"line 1: no column Elapsed (or Start and End); accepted: {accepted}")
    twice = sorted({name for name in header if header.count(name) > 1})
    if twice:
        raise WrongHeader(f"line 1: column {', '.join(twice)} is given twice")


def _job(line: int, row: dict[str, str]) -> RawJob:
    job_id = row.get("jobid") or row.get("jobidraw") or ""
    if not re.match(r"[0-9]+", job_id):
        raise BadValue("JobID", job_id, "not a job id")
    if "." in job_id:
        raise LeftOut("job step")
    submit = _time("Submit", row["submit"])
    if submit is None:
        raise BadValue("Submit", row["submit"], "unknown submit time")
    run_s = _elapsed(row)
    state = row.get("state", "").partition(" ")[0]
    if state in ("PENDING", "REQUEUED", "RESIZING"):
        raise LeftOut("never ran")
    if run_s is None or (run_s == 0 and _time("Start", row.get("start", "")) is None):
        raise LeftOut("never ran")
    if state in ("RUNNING", "SUSPENDED", "COMPLETING"):
        raise LeftOut("still running at the time of the export")
    tres = row.get("alloctres") or row.get("reqtres") or ""
    gpus, models = _gpus(tres, row.get("allocgres") or row.get("reqgres") or "")
    fields = {name: row[column] for column, name in _FIELDS.items() if column in row}
    fields["state"] = state
    return RawJob(line, submit, run_s, _cpus(row, tres), gpus, None, models, fields)


def _gpus(tres: str, gres: str) -> tuple[int, tuple[str, ...]]:
    """Number of GPUs and their models. A TRES lists the total and, again, the number of each model."""
    found = _GPU.findall(tres) or _OLD_GPU.findall(gres)
    models = tuple(dict.fromkeys(model for model, _ in found if model))
    total = max((int(count) for model, count in found if not model), default=0)
    return max(total, sum(int(count) for model, count in found if model)), models


def _cpus(row: dict[str, str], tres: str) -> float:
    for column in ("alloccpus", "ncpus", "reqcpus"):
        if row.get(column, "") not in ("", "0"):
            return number(column, row[column])
    in_tres = _CPU.search(tres)
    return float(in_tres[1]) if in_tres else 1.0


def _elapsed(row: dict[str, str]) -> float | None:
    raw = row.get("elapsedraw", "")
    if raw not in _KNOWN_NOTHING:
        return number("ElapsedRaw", raw)
    text = row.get("elapsed", "")
    if text not in _KNOWN_NOTHING:
        match = _ELAPSED.fullmatch(text)
        if match is None:
            raise BadValue("Elapsed", text, "not a time; accepted: [days-]hours:minutes:seconds")
        days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
        return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)
    start, end = _time("Start", row.get("start", "")), _time("End", row.get("end", ""))
    if start is None or end is None:
        return None
    if end < start:
        raise BadValue("End", row["end"], f"before Start {row['start']}")
    return end - start


def _time(column: str, text: str) -> float | None:
    if text in _KNOWN_NOTHING:
        return None
    if re.fullmatch(r"[0-9]{1,12}", text, re.ASCII):
        return float(text)
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}", text, re.ASCII):
        raise BadValue(column, text, "not a time; accepted: 2026-01-31T23:59:59 or Unix seconds")
    try:
        return datetime.strptime(text, "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        raise BadValue(column, text, "no such time") from None
