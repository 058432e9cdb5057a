"""Measures hooks where they run: a wrapper of a few shell builtins around each, and what its log tells.

The wrapper starts no program but the hook, passes its exit code on and dies of the signal that the hook died of, so
that slurmctld sees what it would see without it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from .history import HookRun

_WRAPPER = """#!/bin/sh
# Runs {hook} and notes when, for the report of a scenario. No program but the hook is started.
read -r began _ </proc/uptime
who="{kind} ${{SLURM_JOB_ID:-0}} ${{SLURM_JOB_RESTART_COUNT:-0}} $$ $began juice=${{SPANK_JUICE_POOL+1}}"
# In the foreground: slurmctld leaves SIGCHLD blocked, and `wait` for a background job would sleep for ever.
( read -r pid _ </proc/self/stat; echo "start $who $pid" >>'{log}'; exec '{hook}' )
code=$?
read -r ended _ </proc/uptime
echo "end $who $ended $code" >>'{log}'
[ $code -gt 128 ] && [ $code -le 192 ] && kill -s $((code - 128)) $$
exit $code
"""
_RUN = re.compile(
    r"(?P<what>start|end) (?P<hook>prolog|epilog) (?P<job>\d+) (?P<restarts>\d+) (?P<wrapper>\d+) "
    r"(?P<began>[0-9.]+) juice=(?P<juice>1?) (?P<value>[0-9.]+)(?: (?P<code>\d+))?"
)
# 2026-11-30T19:31:40Z prolog job=5 start=0[123] ERROR exit 1, Slurm will requeue ...
_LOG = re.compile(
    r"(?P<stamp>\S+) (?P<hook>prolog|epilog) job=(?P<job>\d+) start=(?P<start>\d+)\[(?P<pid>\d+)\] (?P<text>.*)"
)
_SESSION = re.compile(r"session ([0-9a-fA-F]{8})-")


def wrap_hook(directory: Path, kind: str, hook: Path, log: Path) -> Path:
    """Write the wrapper of `hook` (`kind` is prolog or epilog) into `directory`; its path. `log` is appended to."""
    for path in (hook, log):
        if "'" in str(path):
            raise ValueError(f"the path {path} has a quote in it; give another directory")
    path = directory / f"timed-{kind}.sh"
    path.write_text(_WRAPPER.format(hook=hook, kind=kind, log=log), encoding="utf-8")
    path.chmod(0o755)
    log.touch()
    return path


def boot_time() -> float:
    """Unix time at which /proc/uptime was 0, as the wrapper reads it."""
    return time.time() - float(Path("/proc/uptime").read_text().split()[0])


@dataclass(frozen=True)
class HookLine:
    """One line of the hooks' own log that belongs to a job."""

    hook: str
    job_id: int
    start: int
    pid: int
    text: str


def read_hook_log(text: str) -> list[HookLine]:
    """The lines of the hooks' log that belong to a job, in order."""
    lines = []
    for line in text.splitlines():
        match = _LOG.fullmatch(line)
        if match:
            lines.append(
                HookLine(match["hook"], int(match["job"]), int(match["start"]), int(match["pid"]), match["text"])
            )
    return lines


def _verdict(kind: str, code: int, uses_juice: bool, said: Iterable[str]) -> tuple[str, str, str]:
    """(verdict, session id's beginning, detail) of a hook that has ended."""
    texts = list(said)
    session = next((match[1] for text in reversed(texts) if (match := _SESSION.search(text))), "")
    detail = texts[-1] if texts else ""
    if not uses_juice:
        return "nothing", "", ""
    if kind == "epilog":
        return ("released" if code == 0 else "failed"), session, detail
    if code == 0:
        if any(text.startswith("denied:") for text in texts):
            return "denied", "", detail
        return "granted", session, detail
    site = any("THE SITE MUST ACT" in text for text in texts)
    return ("site fault" if site else "retry"), session, detail


def hook_runs(timing: str, lines: Iterable[HookLine], offset: float) -> list[HookRun]:
    """The hook runs in the wrappers' log `timing`, with what the hooks' own log says of them.

    `offset` is `boot_time()`. A run without an end was killed, or runs still.
    """
    said: dict[tuple[str, int, int], list[str]] = {}
    for line in lines:
        said.setdefault((line.hook, line.job_id, line.pid), []).append(line.text)
    begun: dict[tuple[str, ...], tuple[float, int, bool, int]] = {}
    runs = []
    for text in timing.splitlines():
        match = _RUN.fullmatch(text)
        if not match or (match["what"] == "end") != (match["code"] is not None):
            continue
        key = match.group("hook", "job", "wrapper", "began")
        if match["what"] == "start":
            began = float(match["began"]), int(match["restarts"]), match["juice"] == "1", int(match["value"])
            begun[key] = began
            continue
        if key not in begun:
            continue
        start, restarts, uses, pid = begun.pop(key)
        kind, job_id, ended = match["hook"], int(match["job"]), float(match["value"])
        verdict, session, detail = _verdict(kind, int(match["code"]), uses, said.get((kind, job_id, pid), ()))
        duration = max(0.0, ended - start)
        runs.append(HookRun(offset + ended, kind, job_id, verdict, duration, restarts, session, detail))
    for (kind, job, _, _), (start, restarts, uses, pid) in begun.items():
        detail = "\n".join(said.get((kind, int(job), pid), ())[-1:])
        verdict = "killed" if uses else "nothing"
        runs.append(HookRun(offset + start, kind, int(job), verdict, None, restarts, "", detail))
    return sorted(runs, key=lambda run: run.at)
