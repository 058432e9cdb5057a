"""From the text of `scontrol show job` and `scontrol show node` to Job and node states.

The commands run with SLURM_TIME_FORMAT=%s, so times are Unix seconds.
"""

from __future__ import annotations

import re
from pathlib import Path

from .interface import Job, JobState

# States that Slurm prints and the interface does not tell apart.
STATES = {
    "REQUEUED": JobState.PENDING,
    "REQUEUE_FED": JobState.PENDING,
    "REQUEUE_HOLD": JobState.PENDING,
    "SPECIAL_EXIT": JobState.PENDING,
    "RESV_DEL_HOLD": JobState.PENDING,
    "SUSPENDED": JobState.RUNNING,
    "STOPPED": JobState.RUNNING,
    "SIGNALING": JobState.RUNNING,
    "RESIZING": JobState.RUNNING,
    "STAGE_OUT": JobState.COMPLETING,
    "DEADLINE": JobState.TIMEOUT,
    "OUT_OF_MEMORY": JobState.FAILED,
    "PREEMPTED": JobState.CANCELLED,
    "REVOKED": JobState.CANCELLED,
    "LAUNCH_FAILED": JobState.BOOT_FAIL,
    "RECONFIG_FAIL": JobState.BOOT_FAIL,
}
FIELD = re.compile(r"(?:^|\s)([A-Za-z][A-Za-z0-9_:/]*)=")
WHOLE_LINE = ("Command", "WorkDir", "StdErr", "StdIn", "StdOut", "Comment", "AdminComment", "SystemComment")


class ParseError(ValueError):
    """Slurm printed something that is not understood; carries the text."""


def records(text: str) -> list[dict[str, str]]:
    """The records of `scontrol show ...` (not its one-line form): field -> value.

    A job's name may hold anything, `JobState=COMPLETED` too: it is the last field of the first line, and a field that
    was seen first on its own line wins. Values that fill a line (paths, comments) are taken whole.
    """
    found = []
    for block in re.split(r"\n\s*\n", text):
        fields: dict[str, str] = {}
        for line in block.splitlines():
            line = line.strip()
            name, equals, value = line.partition("=")
            if equals and name in WHOLE_LINE:
                fields[name] = value
                continue
            head, is_job, job_name = line.partition(" JobName=") if line.startswith("JobId=") else (line, "", "")
            starts = list(FIELD.finditer(head))
            for match, following in zip(starts, [*starts[1:], None], strict=False):
                fields.setdefault(match[1], head[match.end() : following.start() if following else len(head)].strip())
            if is_job:
                fields["JobName"] = job_name
        if fields:
            found.append(fields)
    return found


def parse_jobs(text: str) -> list[Job]:
    """`scontrol show job` -> jobs; the record of an array's waiting tasks gives one Job per task."""
    jobs: list[Job] = []
    for fields in records(text):
        if "JobId" not in fields:
            continue
        tasks = task_ids(fields.get("ArrayTaskId", ""))
        jobs += [job_of(fields, task) for task in tasks] if tasks else [job_of(fields, None)]
    return jobs


def job_of(fields: dict[str, str], task: int | None) -> Job:
    try:
        code, _, sig = fields["ExitCode"].partition(":")
        state = state_of(fields["JobState"])
        waits = state is JobState.PENDING  # its start and end are forecasts of the scheduler
        return Job(
            job_id=int(fields["JobId"]),
            name=fields["JobName"],
            user_id=_user_id(fields["UserId"]),
            state=state,
            reason="" if fields.get("Reason", "None") == "None" else fields["Reason"].split(" ")[0],
            restarts=int(fields.get("Restarts", 0)),
            exit_code=int(code),
            signal=int(sig or 0),
            nodes=tuple(expand_hosts("" if fields.get("NodeList") in (None, "(null)") else fields["NodeList"])),
            submit_time=_time(fields.get("SubmitTime")),
            eligible_time=_time(fields.get("EligibleTime")),
            start_time=None if waits else _time(fields.get("StartTime")),
            end_time=_time(fields.get("EndTime")) if state.ended else None,
            array_job_id=_number(fields.get("ArrayJobId")),
            array_task_id=task,
            het_job_id=_number(fields.get("HetJobId")),
            het_offset=_number(fields.get("HetJobOffset")),
            stdout=_path(fields.get("StdOut")),
            stderr=_path(fields.get("StdErr")),
        )
    except (KeyError, ValueError) as error:
        raise ParseError(f"scontrol show job printed a record that is not understood ({error!r}): {fields}") from None


def state_of(text: str) -> JobState:
    """`RUNNING`, `CANCELLED by 0`, ... -> JobState."""
    name = text.split(" ")[0].rstrip("+")
    return STATES[name] if name in STATES else JobState(name)


def parse_node_states(text: str) -> dict[str, str]:
    """`scontrol show node` -> name -> state in lower case, with what matters most of several flags.

    Slurm prints e.g. `IDLE+DRAIN`, `MIXED`, `DOWN*+NOT_RESPONDING`; a draining node that still runs jobs is `draining`,
    one that runs none is `drained`, one that does not answer carries the flag's `*`.
    """
    states = {}
    for fields in records(text):
        if "NodeName" not in fields or "State" not in fields:
            continue
        base, *flags = fields["State"].upper().split("+")
        silent = base.endswith("*") or "NOT_RESPONDING" in flags
        base = base.rstrip("*")
        if "DRAIN" in flags:
            base = "DRAINED" if base in ("IDLE", "DOWN") else "DRAINING"
        elif "COMPLETING" in flags and base != "DOWN":
            base = "COMPLETING"
        states[fields["NodeName"]] = base.lower() + ("*" if silent else "")
    return states


def task_ids(text: str) -> list[int]:
    """`0-3,7%2` or `0-8:2` -> the task numbers; empty text -> none."""
    found: list[int] = []
    for part in text.partition("%")[0].split(","):
        if not part or part == "N/A":
            continue
        span, _, step = part.partition(":")
        first, _, last = span.partition("-")
        found += range(int(first), int(last or first) + 1, int(step or 1))
    return found


def expand_hosts(text: str) -> list[str]:
    """`node[1-3,7],other` -> names."""
    names: list[str] = []
    for prefix, ranges in re.findall(r"([^,\[\]]+)(?:\[([^\]]*)\])?", text):
        if not ranges:
            names.append(prefix)
            continue
        for part in ranges.split(","):
            first, _, last = part.partition("-")
            width = len(first)
            names += [f"{prefix}{number:0{width}}" for number in range(int(first), int(last or first) + 1)]
    return names


def _user_id(text: str) -> int:
    match = re.search(r"\((\d+)\)$", text)
    if match is None:
        raise ValueError(f"UserId {text!r}")
    return int(match[1])


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isdigit() else None


def _time(text: str | None) -> float | None:
    return float(text) if text and text.isdigit() and text != "0" else None


def _path(text: str | None) -> Path | None:
    return Path(text) if text and text not in ("(null)", "None") else None
