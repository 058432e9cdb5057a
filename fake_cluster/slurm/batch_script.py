"""From a batch script (or srun's words) and options to what slurmctld gets: one JobSpec per component."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from fake_cluster.slurm.interface import SubmitError
from fake_cluster.slurm.juice_options import OPTIONS as JUICE_OPTIONS
from fake_cluster.slurm.juice_options import JuiceOptions
from fake_cluster.slurm.rules_jobs import JobSpec
from fake_cluster.slurm.sbatch_options import read_options

_DIRECTIVE = re.compile(r"#SBATCH(?=\s|$)")
_DURATION = {"second": 1, "minute": 60, "hour": 3600, "day": 86400, "week": 604800}


def split_line(line: str, where: str) -> list[str]:
    """The words of one `#SBATCH` line: blanks separate, quotes and backslashes protect, an unquoted `#` ends it.

    SubmitError for a quote that is not closed.
    """
    words: list[str] = []
    word, started, quote = "", False, ""
    i = 0
    while i < len(line):
        c = line[i]
        if quote:
            if c == quote:
                quote = ""
            elif c == "\\" and quote == '"' and i + 1 < len(line):
                i += 1
                word += line[i]
            else:
                word += c
        elif c in "'\"":
            quote, started = c, True
        elif c == "\\" and i + 1 < len(line):
            i += 1
            word, started = word + line[i], True
        elif c.isspace():
            if started:
                words.append(word)
            word, started = "", False
        elif c == "#":
            break
        else:
            word, started = word + c, True
        i += 1
    if quote:
        raise SubmitError(f"sbatch: fatal: {where}: Unmatched `{quote}` in [{line}]")
    if started:
        words.append(word)
    return words


def script_directives(text: str, name: str = "script") -> list[list[str]]:
    """The words of the `#SBATCH` lines, one list per het component. They end at the first command.

    SubmitError when the text is no batch script.
    """
    if not text:
        raise SubmitError("sbatch: error: Batch script is empty!")
    lines = text.splitlines()
    if not lines[0].startswith("#!"):
        raise SubmitError(
            "sbatch: error: This does not look like a batch script.  The first\n"
            "sbatch: error: line must start with #! followed by the path to an interpreter.\n"
            "sbatch: error: For instance: #!/bin/sh"
        )
    if "\0" in text:
        raise SubmitError("sbatch: error: The SLURM batch script contains a NULL character")
    components: list[list[str]] = [[]]
    for number, line in enumerate(lines, 1):
        if not line.strip() or (line.startswith("#") and not _DIRECTIVE.match(line)):
            continue
        if not line.startswith("#"):
            break
        words = split_line(line[len("#SBATCH") :], f"{name}: line {number}")
        if words in (["hetjob"], ["packjob"]):
            components.append([])
        else:
            components[-1] += words
    return components


def _count(value: str, option: str, command: str) -> int:
    if not (value.isascii() and value.isdigit() and len(value) < 10 and int(value) > 0):
        raise SubmitError(f'{command}: error: Invalid numeric value "{value}" for --{option}.')
    return int(value)


def parse_nodes(value: str, command: str = "sbatch") -> int:
    """`--nodes=2`, or the least of `2-4`."""
    low, dash, high = value.partition("-")
    if not low.isdecimal() or (dash and not high.isdecimal()) or int(low) < 1 or (high and int(high) < int(low)):
        raise SubmitError(f'{command}: error: "{value}" is not a valid node count')
    return int(low)


def parse_time_limit(value: str, command: str = "sbatch") -> float | None:
    """Seconds of `MM`, `MM:SS`, `HH:MM:SS`, `D-HH`, `D-HH:MM`, `D-HH:MM:SS`; None for 0, -1, UNLIMITED, INFINITE."""
    if value.upper() in ("UNLIMITED", "INFINITE", "-1", "0"):
        return None
    match = re.fullmatch(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", value)
    if not match:
        raise SubmitError(f"{command}: error: Invalid --time specification")
    days, *rest = match.groups()
    parts = [int(part) for part in rest if part is not None]
    if days is not None:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 1:
        hours, minutes, seconds = 0, parts[0], 0
    elif len(parts) == 2:
        hours, (minutes, seconds) = 0, parts
    else:
        hours, minutes, seconds = parts
    total = int(days or 0) * 86400 + hours * 3600 + minutes * 60 + seconds
    # Limits are kept in minutes, rounded up.
    return -(-total // 60) * 60.0 or None


def parse_array(value: str, command: str = "sbatch") -> tuple[tuple[int, ...], int]:
    """Task ids and `%N` (0: none) of `0-9`, `1,3,5-7`, `0-15:4`, each with an optional `%N`."""
    error = SubmitError(f"{command}: error: Batch job submission failed: Invalid job array specification")
    ids, percent, limit = value.partition("%")
    if percent and (not limit.isdecimal() or int(limit) < 1):
        raise error
    tasks: set[int] = set()
    for part in ids.split(","):
        match = re.fullmatch(r"(\d{1,7})(?:-(\d{1,7})(?::(\d{1,7}))?)?", part)
        if not match:
            raise error
        low, high = int(match[1]), int(match[2] or match[1])
        step = int(match[3] or 1)
        if high < low or step < 1:
            raise error
        tasks.update(range(low, high + 1, step))
    return tuple(sorted(tasks)), int(limit or 0)


def parse_licenses(value: str, command: str = "sbatch") -> dict[str, int]:
    """`name`, `name:count`, `name=count`, comma-separated. SubmitError when it is nothing of the kind."""
    result: dict[str, int] = {}
    for part in value.split(","):
        match = re.fullmatch(r"([^:=,\s]+)(?:[:=](\d{1,9}))?", part)
        if not match:
            raise SubmitError(f"{command}: error: Batch job submission failed: Invalid license specification")
        result[match[1]] = result.get(match[1], 0) + int(match[2] or 1)
    return result


def parse_begin(value: str, now: float, command: str = "sbatch") -> float:
    """Unix time of `now`, `now+60` (seconds or `minutes`, `hours`, ...), `HH:MM[:SS]`, `YYYY-MM-DD[THH:MM[:SS]]`."""
    match = re.fullmatch(r"now(?:\+(\d{1,9})(second|minute|hour|day|week)?s?)?", value)
    if match:
        return now + int(match[1] or 0) * _DURATION[match[2] or "second"]
    clock = re.fullmatch(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", value)
    try:
        if clock:
            at = datetime.fromtimestamp(now).replace(
                hour=int(clock[1]), minute=int(clock[2]), second=int(clock[3] or 0), microsecond=0
            )
            return (at if at.timestamp() > now else at + timedelta(days=1)).timestamp()
        return datetime.fromisoformat(value).timestamp()
    except ValueError:
        raise SubmitError(
            f"Invalid time specification (pos=0): {value}\n{command}: error: Invalid --begin specification"
        ) from None


def parse_dependency(value: str, command: str = "sbatch") -> tuple[tuple[str, int], ...]:
    """(kind, job id) of `afterok:1:2,afterany:3`; kinds after, afterany, afterok, afternotok."""
    found = []
    for part in value.split(","):
        kind, *ids = part.split(":")
        if kind not in ("after", "afterany", "afterok", "afternotok") or not ids or not all(x.isdecimal() for x in ids):
            raise SubmitError(f"{command}: error: Batch job submission failed: Job dependency problem")
        found += [(kind, int(job_id)) for job_id in ids]
    return tuple(found)


def _environment(value: str | None, environment: Mapping[str, str]) -> dict[str, str]:
    """What the job gets of the submitter's environment: --export=ALL (default), NONE, or a list with assignments."""
    if value is None or value == "ALL":
        return dict(environment)
    result: dict[str, str] = {}
    for part in value.split(","):
        name, equals, given = part.partition("=")
        if part == "ALL":
            result.update(environment)
        elif equals:
            result[name] = given
        elif part not in ("NONE", "NIL") and name in environment:
            result[name] = environment[name]
    # With NONE the node reads the user's login environment instead; a PATH is what a script needs of it.
    return {"PATH": environment.get("PATH", "/usr/local/bin:/usr/bin:/bin")} | result


def _component(
    sources: Sequence[Sequence[tuple[str, str]]],
    *,
    command: str,
    default_name: str,
    environment: Mapping[str, str],
    user: Mapping[str, Any],
    cwd: Path,
    now: float,
    payload: Mapping[str, Any],
) -> JobSpec:
    juice = JuiceOptions(command)
    last: dict[str, str] = {}
    requeue = True
    for given in sources:
        juice.give((name, value) for name, value in given if name in JUICE_OPTIONS)
        for name, value in given:
            last[name] = value
            if name in ("requeue", "no-requeue"):
                requeue = name == "requeue"
    spank_env = juice.settle(environment)
    batch = command == "sbatch"
    array = parse_array(last["array"], command) if batch and "array" in last else None
    directory = cwd / last.get("chdir", "")
    default_output = "slurm-%A_%a.out" if array else "slurm-%j.out"
    output = last.get("output", default_output) if batch else ""
    error_output = last.get("error", output) if batch else ""
    exported = _environment(last.get("export"), environment)
    return JobSpec(
        name=last.get("job-name", default_name),
        batch=batch,
        account=last.get("account", ""),
        work_dir=str(directory),
        stdin=last.get("input", "/dev/null"),
        stdout=str(directory / output) if output else "",
        stderr=str(directory / error_output) if error_output else "",
        comment=last.get("comment", ""),
        requeue=requeue,
        ntasks=_count(last["ntasks"], "ntasks", command) if "ntasks" in last else 1,
        cpus_per_task=_count(last["cpus-per-task"], "cpus-per-task", command) if "cpus-per-task" in last else 1,
        nodes=parse_nodes(last["nodes"], command) if "nodes" in last else 0,
        time_limit=parse_time_limit(last["time"], command) if "time" in last else None,
        licenses=parse_licenses(last["licenses"], command) if "licenses" in last else {},
        begin=parse_begin(last["begin"], now, command) if "begin" in last else None,
        dependencies=parse_dependency(last["dependency"], command) if "dependency" in last else (),
        array_tasks=array[0] if array else None,
        array_limit=array[1] if array else 0,
        spank_env=spank_env,
        payload={**payload, "environment": exported},
        **user,
    )


def read_batch_script(
    script: str | Path,
    options: Sequence[str] = (),
    *,
    environment: Mapping[str, str],
    user: Mapping[str, Any],
    cwd: Path,
    now: float | None = None,
) -> list[JobSpec]:
    """sbatch's submission of a script's text, or its file when `script` is a Path: one JobSpec per component.

    `user` holds user_id, user_name, group_id, group_name. A str that is one line without `#!` and names a file is that
    file. Options on the command line go before the script's own, for every component. SubmitError with sbatch's words.
    """
    name = "sbatch"
    if isinstance(script, str) and script and "\n" not in script and not script.startswith("#!"):
        script = Path(script)
    if isinstance(script, Path):
        name = script.name
        try:
            script = (cwd / script).read_text()
        except (OSError, UnicodeDecodeError):
            raise SubmitError(f"sbatch: error: Unable to open file {script}") from None
    line = read_options(options)
    specs: list[JobSpec] = []
    for words in script_directives(script, name):
        specs.append(
            _component(
                [read_options(words), line],
                command="sbatch",
                default_name=name,
                environment=environment,
                user=user,
                cwd=cwd,
                now=time.time() if now is None else now,
                payload={"script": script} if not specs else {},
            )
        )
    return specs


def read_srun(
    argv: Sequence[str],
    options: Sequence[str] = (),
    *,
    environment: Mapping[str, str],
    user: Mapping[str, Any],
    cwd: Path,
    now: float | None = None,
) -> list[JobSpec]:
    """srun's submission of a command; `:` among the options separates het components. SubmitError with srun's words."""
    if not argv:
        raise SubmitError("srun: fatal: No command given to execute.")
    parts: list[list[str]] = [[]]
    for word in options:
        if word == ":":
            parts.append([])
        else:
            parts[-1].append(word)
    return [
        _component(
            [read_options(part, "srun")],
            command="srun",
            default_name=Path(argv[0]).name,
            environment=environment,
            user=user,
            cwd=cwd,
            now=time.time() if now is None else now,
            payload={"argv": list(argv)},
        )
        for part in parts
    ]


def expand(
    pattern: str, *, job_id: int, array_job_id: int | None, task: int | None, name: str, node: str, user: str
) -> str:
    """A file name with %j %J %A %a %x %N %u %n %t %% (and widths as in %4j) filled in."""
    values: dict[str, str | int] = {
        "j": job_id,
        "J": job_id,
        "A": array_job_id if array_job_id is not None else job_id,
        "a": task if task is not None else 4294967294,
        "x": name,
        "N": node,
        "u": user,
        "n": 0,
        "t": 0,
        "s": "batch",
    }

    def fill(match: re.Match[str]) -> str:
        if match[2] == "%":
            return "%"
        value = values.get(match[2])
        if value is None:
            return match[0]
        return f"{value:0{min(int(match[1] or 0), 10)}d}" if isinstance(value, int) else value

    return re.sub(r"%(\d*)([a-zA-Z%])", fill, pattern)
