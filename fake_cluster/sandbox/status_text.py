"""The state of a sandbox as text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from juice_sim.core.units import format_vram

BAR = 24


def status_text(state: Mapping[str, Any], *, all_jobs: bool = False) -> str:
    """`state` is what the sandbox answers to `status`."""
    lines = [f"sandbox {state['name']}: Slurm {state['version']}, controller {state['controller']}", ""]
    lines += _pools(state["pools"])
    if state.get("controller_problem"):
        lines += [f"controller: {state['controller_problem']}", ""]
    lines += _sessions(state["sessions"])
    lines += _jobs(state, all_jobs)
    return "\n".join(lines).rstrip("\n") + "\n"


def _pools(pools: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = []
    for pool in pools:
        gpus = [gpu for agent in pool["agents"] if agent["state"] == "active" for gpu in agent["gpus"]]
        free = sum(not gpu["slices"] for gpu in gpus)
        left = format_vram(sum(gpu["free"] for gpu in gpus))
        lines.append(
            f"pool {pool['name']}: {len(pool['agents'])} agent(s), {len(gpus)} GPU(s), {free} untouched, {left} free"
        )
        for agent in pool["agents"]:
            extra = "".join(f" {key}={value}" for key, value in agent["labels"].items())
            extra += "".join(f" taint:{key}={value}" for key, value in agent["taints"].items())
            lines.append(f"  {agent['hostname']} ({agent['state']}){extra}")
            for gpu in agent["gpus"]:
                lines.append(f"    GPU {gpu['index']} {gpu['name']:<12} {_bar(gpu)} {_slices(gpu)}")
        lines.append("")
    return lines


def _bar(gpu: Mapping[str, Any]) -> str:
    """`[1112........]`: each slice with a digit of its own, in proportion, at least one column."""
    text = ""
    for position, part in enumerate(gpu["slices"], 1):
        width = max(1, round(BAR * part["vram"] / gpu["vram"]))
        text += str(position % 10) * width
    return f"[{text[:BAR]:.<{BAR}}]"


def _slices(gpu: Mapping[str, Any]) -> str:
    total = format_vram(gpu["vram"])
    if not gpu["slices"]:
        return f"{total} free"
    words = []
    for part in gpu["slices"]:
        whose = f"job {part['job']}" if part["job"] is not None else f"session {part['session'][:8]}"
        size = "whole" if part["vram"] == gpu["vram"] else format_vram(part["vram"])
        words.append(f"{whose}: {size}")
    if gpu["free"]:
        words.append(f"free: {format_vram(gpu['free'])}")
    return f"{total}, " + ", ".join(words)


def _table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in (headings, *rows)) for column in range(len(headings))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in (headings, *rows)
    ]


def _sessions(sessions: Sequence[Mapping[str, Any]]) -> list[str]:
    if not sessions:
        return ["no open sessions", ""]
    rows = []
    for session in sessions:
        size = ", ".join(f"{gpu['index']}: {format_vram(gpu['vram'])}" for gpu in session["gpus"]) or "-"
        job = "-" if session["job"] is None else str(session["job"])
        names = ", ".join(process["name"] for process in session["processes"]) or "-"
        rows.append([session["id"][:8], session["state"], session["pool"], job, session["agent"] or "-", size, names])
    return [*_table(["SESSION", "STATE", "POOL", "JOB", "AGENT", "GPUS", "PROCESSES"], rows), ""]


def _jobs(state: Mapping[str, Any], all_jobs: bool) -> list[str]:
    if state.get("slurm_problem"):
        return [f"Slurm: {state['slurm_problem']}"]
    ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "BOOT_FAIL")
    jobs = [job for job in state["jobs"] if all_jobs or job["state"] not in ended]
    hidden = len(state["jobs"]) - len(jobs)
    rest = [f"{hidden} job(s) have ended"] if hidden else []
    if not jobs:
        return ["no jobs in the queue", *rest]
    rows = [
        [
            str(job["id"]),
            job["name"][:24],
            job["state"],
            job["reason"] or "-",
            str(job["restarts"]),
            ",".join(job["nodes"]) or "-",
        ]
        for job in jobs
    ]
    return [*_table(["JOB", "NAME", "STATE", "REASON", "RESTARTS", "NODES"], rows), *rest]
