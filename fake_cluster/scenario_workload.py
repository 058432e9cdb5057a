"""From the job groups of a scenario to single submissions: arrival times, run times, scripts, drawn from the seed."""

from __future__ import annotations

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .scenario import Component, JobGroup, Scenario

RUN_TIME_VARIABLE = "JUICE_SIM_RUN_TIME"
MAX_TASK_ID = 4_000_000  # the largest that any MaxArraySize of slurm.conf permits


@dataclass(frozen=True)
class Submission:
    """One sbatch or srun. `at` is in seconds from the start of the run; `tasks` is how many jobs Slurm makes of it."""

    at: float
    group: str
    index: int
    run_time: float
    script: str = ""
    command: Sequence[str] = ()
    options: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    tasks: int = 1
    interactive: bool = False


def array_size(text: str) -> int:
    """How many tasks `--array=TEXT` makes: `0-9` 10, `1,3,5` 3, `0-10:5` 3, `0-9%3` 10. Raises ValueError."""
    members: set[int] = set()
    for part in text.partition("%")[0].split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+)(?::(\d+))?)?", part)
        if not match:
            raise ValueError(f"not an array: {text!r}")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or step < 1:
            raise ValueError(f"not an array: {text!r}")
        if last > MAX_TASK_ID:
            raise ValueError(f"an array with a task id over {MAX_TASK_ID}: {text!r}")
        members.update(range(first, last + 1, step))
    return len(members)


def script_tasks(script: str, array: str) -> int:
    """How many jobs Slurm makes of a script: its array's tasks, or its het components."""
    for line in script.splitlines():
        if not line.startswith("#"):
            break
        match = re.match(r"#SBATCH\s+(?:--array[= ]\s*|-a\s*)(\S+)", line)
        if match and not array:
            array = match[1]
    if array:
        return array_size(array)
    return 1 + len(re.findall(r"^#SBATCH +(?:hetjob|packjob)\s*$", script, re.MULTILINE))


def juice_options(ask: Component) -> list[str]:
    """The options of the SPANK plugin for what is asked."""
    options = []
    if ask.pool:
        options.append(f"--juice-pool={ask.pool}")
    if ask.gpu_count is not None:
        options.append(f"--juice-gpu-count={ask.gpu_count}")
    if ask.vram:
        options.append(f"--juice-vram={ask.vram}")
    return options


def written_script(group: JobGroup) -> str:
    """The batch script of a group that has none of its own: a program that holds its GPU for the job's run time."""
    lines = ["#!/bin/sh"]
    if group.het:
        for position, component in enumerate(group.het):
            lines += ["#SBATCH hetjob"] * (position > 0)
            lines += [f"#SBATCH {option}" for option in (f"--cpus-per-task={group.cpus}", *juice_options(component))]
    else:
        lines += [f"#SBATCH {option}" for option in (f"--cpus-per-task={group.cpus}", *juice_options(group.ask))]
    lines += [
        'echo "job $SLURM_JOB_ID: session ${JUICE_SESSION_ID:-none}, GPUs ${CUDA_VISIBLE_DEVICES:-none}"',
        f'exec sleep "${RUN_TIME_VARIABLE}"',
    ]
    return "\n".join(lines) + "\n"


def submissions(scenario: Scenario, seed: int) -> list[Submission]:
    """All submissions in the order of their times. The same scenario and seed give the same list; a group's draws do
    not depend on the other groups."""
    result = []
    for group in scenario.jobs:
        source = random.Random(f"{seed}/{group.name}")
        times = group.arrival.times(group.count, source)
        for index, at in enumerate(times):
            result.append(_submission(group, index, at, group.run_time.draw(source)))
    return sorted(result, key=lambda submission: submission.at)


def _submission(group: JobGroup, index: int, at: float, run_time: float) -> Submission:
    env = {RUN_TIME_VARIABLE: f"{run_time:.3f}", **group.env}
    options = [f"--job-name={group.name}"]
    if not group.requeue:
        options.append("--no-requeue")
    if group.array:
        options.append(f"--array={group.array}")
    if group.interactive:
        if group.het:
            asked = " : ".join(" ".join(juice_options(component)) for component in group.het).split()
        else:
            asked = juice_options(group.ask)
        command = ["sleep", f"{run_time:.3f}"]
        options = [f"--job-name={group.name}", f"--cpus-per-task={group.cpus}", *group.options, *asked]
        tasks = max(1, len(group.het))
        return Submission(at, group.name, index, run_time, "", command, options, env, tasks, True)
    script = group.script
    if script:
        options += juice_options(group.ask)
    else:
        script = written_script(group)
    options += group.options
    tasks = script_tasks(script, group.array)
    return Submission(at, group.name, index, run_time, script, (), options, env, tasks)
