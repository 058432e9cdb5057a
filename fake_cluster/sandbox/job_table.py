"""Jobs and nodes in the form in which squeue, sinfo and scontrol print them."""

from __future__ import annotations

import os
import pwd
import re
import time
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from ..slurm.hook_environment import host_list
from ..slurm.interface import Job, JobState
from ..slurm.rules_jobs import ClusterConfig

PARTITION = ClusterConfig.partition
SQUEUE_FORMAT = "%.18i %.9P %.8j %.8u %.2t %.10M %.6D %R"
CODES = {
    JobState.PENDING: "PD",
    JobState.CONFIGURING: "CF",
    JobState.RUNNING: "R",
    JobState.COMPLETING: "CG",
    JobState.COMPLETED: "CD",
    JobState.FAILED: "F",
    JobState.CANCELLED: "CA",
    JobState.TIMEOUT: "TO",
    JobState.NODE_FAIL: "NF",
    JobState.BOOT_FAIL: "BF",
}
_HEADINGS = {
    "i": "JOBID",
    "A": "JOBID",
    "F": "ARRAY_JOB_ID",
    "K": "ARRAY_TASK_ID",
    "j": "NAME",
    "u": "USER",
    "U": "UID",
    "P": "PARTITION",
    "t": "ST",
    "T": "STATE",
    "M": "TIME",
    "D": "NODES",
    "N": "NODELIST",
    "R": "NODELIST(REASON)",
    "r": "REASON",
    "S": "START_TIME",
    "V": "SUBMIT_TIME",
    "e": "END_TIME",
}
_FIELD = re.compile(r"%(\.?)(\d*)([A-Za-z])")


class BadFormat(ValueError):
    """A format that is not understood; `str(error)` is one line."""


def user_name(user_id: int) -> str:
    try:
        return pwd.getpwuid(user_id).pw_name
    except KeyError:
        return str(user_id)


def stamp(at: float | None) -> str:
    return "Unknown" if at is None else datetime.fromtimestamp(at).strftime("%Y-%m-%dT%H:%M:%S")


def elapsed(seconds: float) -> str:
    """`0:05`, `1:02:03`, `2-03:04:05`."""
    whole = max(0, int(seconds))
    days, hours, minutes, rest = whole // 86400, whole // 3600 % 24, whole // 60 % 60, whole % 60
    if days:
        return f"{days}-{hours:02}:{minutes:02}:{rest:02}"
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def run_time(job: Job) -> float:
    if job.start_time is None or job.state is JobState.PENDING:
        return 0.0
    return (time.time() if job.end_time is None else job.end_time) - job.start_time


def numbers(values: Iterable[int]) -> str:
    """`0-3,7`."""
    parts: list[list[int]] = []
    for value in sorted(values):
        if parts and value == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], value]
        else:
            parts.append([value])
    return ",".join("-".join(map(str, part)) for part in parts)


def shown_id(job: Job, waiting_tasks: Sequence[int] = ()) -> str:
    """`5`, `5_2`, `5_[0-3]`, `7+1`."""
    if job.array_job_id is not None:
        tasks = f"[{numbers(waiting_tasks)}]" if len(waiting_tasks) > 1 else str(job.array_task_id)
        return f"{job.array_job_id}_{tasks}"
    if job.het_job_id is not None:
        return f"{job.het_job_id}+{job.het_offset}"
    return str(job.job_id)


def _value(job: Job, letter: str, waiting: Sequence[int]) -> str:
    nodes = host_list(job.nodes) if job.nodes and job.state is not JobState.PENDING else ""
    reason = job.reason or "None"
    values: dict[str, Callable[[], str]] = {
        "i": lambda: shown_id(job, waiting),
        "A": lambda: str(job.job_id),
        "F": lambda: str(job.array_job_id if job.array_job_id is not None else job.job_id),
        "K": lambda: "N/A" if job.array_task_id is None else str(job.array_task_id),
        "j": lambda: job.name,
        "u": lambda: user_name(job.user_id),
        "U": lambda: str(job.user_id),
        "P": lambda: PARTITION,
        "t": lambda: CODES[job.state],
        "T": lambda: job.state.value,
        "M": lambda: elapsed(run_time(job)),
        "D": lambda: str(max(1, len(job.nodes))),
        "N": lambda: nodes,
        "R": lambda: nodes or f"({reason})",
        "r": lambda: reason,
        "S": lambda: "N/A" if job.start_time is None else stamp(job.start_time),
        "V": lambda: stamp(job.submit_time),
        "e": lambda: "N/A" if job.end_time is None else stamp(job.end_time),
    }
    return values[letter]()


def _row(form: str, value: dict[str, str]) -> str:
    def field(match: re.Match[str]) -> str:
        text = value[match[3]]
        width = int(match[2] or 0)
        if not width:
            return text
        text = text[:width]
        return text.rjust(width) if match[1] else text.ljust(width)

    return _FIELD.sub(field, form)


def squeue_text(jobs: Iterable[Job], form: str = SQUEUE_FORMAT, *, heading: bool = True) -> str:
    """The waiting tasks of an array are one line, as in squeue. Raises BadFormat."""
    letters = {match[3] for match in _FIELD.finditer(form)}
    unknown = letters - _HEADINGS.keys()
    if unknown or not letters:
        what = f"%{sorted(unknown)[0]}" if unknown else "no field"
        raise BadFormat(f"--format {form!r}: {what} is not simulated; accepted: {' '.join('%' + c for c in _HEADINGS)}")
    lines = [_row(form, _HEADINGS)] if heading else []
    arrays: dict[int, list[Job]] = {}
    shown: list[tuple[Job, list[int]]] = []
    for job in sorted(jobs, key=lambda job: (job.state is not JobState.PENDING, CODES[job.state], job.job_id)):
        if job.array_job_id is not None and job.state is JobState.PENDING and not job.restarts:
            together = arrays.setdefault(job.array_job_id, [])
            together.append(job)
            if len(together) > 1:
                continue
        shown.append((job, []))
    for job, _ in shown:
        waiting = arrays.get(job.array_job_id or -1, []) if job.state is JobState.PENDING and not job.restarts else []
        tasks = [task.array_task_id for task in waiting if task.array_task_id is not None]
        lines.append(_row(form, {letter: _value(job, letter, tasks) for letter in letters}))
    return "".join(f"{line}\n" for line in lines)


def sinfo_text(states: dict[str, str], *, heading: bool = True) -> str:
    """Nodes by state, as sinfo does without options."""
    short = {"allocated": "alloc", "mixed": "mix", "completing": "comp", "drained": "drain", "draining": "drng"}
    groups: dict[str, list[str]] = {}
    for name, state in states.items():
        plain = state.rstrip("*")
        groups.setdefault(short.get(plain, plain) + state[len(plain) :], []).append(name)
    lines = ["PARTITION AVAIL  TIMELIMIT  NODES  STATE NODELIST"] if heading else []
    for state, names in sorted(groups.items()):
        lines.append(f"{PARTITION + '*':<9} {'up':>5} {'infinite':>10} {len(names):>6} {state:>6} {host_list(names)}")
    return "".join(f"{line}\n" for line in lines)


def job_record(job: Job) -> str:
    """As `scontrol show job` prints it; fields that are not simulated are left out."""
    lines = [f"JobId={job.job_id} JobName={job.name}"]
    if job.array_job_id is not None:
        lines[0] = (
            f"JobId={job.job_id} ArrayJobId={job.array_job_id} ArrayTaskId={job.array_task_id} JobName={job.name}"
        )
    if job.het_job_id is not None:
        lines[0] = f"JobId={job.job_id} HetJobId={job.het_job_id} HetJobOffset={job.het_offset} JobName={job.name}"
    end = "Unknown" if job.end_time is None else stamp(job.end_time)
    nodes = host_list(job.nodes) if job.nodes and job.state is not JobState.PENDING else "(null)"
    lines += [
        f"   UserId={user_name(job.user_id)}({job.user_id})",
        f"   JobState={job.state.value} Reason={job.reason or 'None'} Dependency=(null)",
        f"   Restarts={job.restarts} ExitCode={job.exit_code}:{job.signal}",
        f"   RunTime={_long(run_time(job))}",
        f"   SubmitTime={stamp(job.submit_time)} EligibleTime={stamp(job.eligible_time)}",
        f"   StartTime={stamp(job.start_time)} EndTime={end}",
        f"   Partition={PARTITION} NodeList={nodes}",
        f"   NumNodes={max(1, len(job.nodes))}",
    ]
    if job.stderr is not None or job.stdout is not None:
        lines += [f"   StdErr={job.stderr or job.stdout}", f"   StdOut={job.stdout}"]
    return "\n".join(lines) + "\n"


def _long(seconds: float) -> str:
    text = elapsed(seconds)
    if "-" in text:
        return text
    return ":".join(part.zfill(2) for part in (["0"] * (3 - len(text.split(":"))) + text.split(":")))


def node_record(name: str, state: str, cpus: int, used: int) -> str:
    """As `scontrol show node` prints it, shortened."""
    return (
        f"NodeName={name} CPUAlloc={used} CPUTot={cpus}\n"
        f"   NodeAddr=127.0.0.1 NodeHostName={os.uname().nodename.split('.')[0]}\n"
        f"   State={state.upper()} Partitions={PARTITION}\n"
    )
