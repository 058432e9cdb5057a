"""slurmctld's saved state: the rules' memory as JSON, and back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

from fake_cluster.slurm.interface import JobState
from fake_cluster.slurm.rules import SlurmRules
from fake_cluster.slurm.rules_jobs import ClusterConfig, JobRecord, JobSpec

_FORMAT = 1


def dump(rules: SlurmRules) -> dict[str, Any]:
    """All that survives slurmctld: jobs, ids, which nodes are down. Hooks do not survive; `slurmctld_started` runs
    them again."""
    return {
        "format": _FORMAT,
        "jobs": [
            {item.name: getattr(job, item.name) for item in fields(JobRecord) if item.name != "spec"}
            | {"spec": {item.name: getattr(job.spec, item.name) for item in fields(JobSpec)}}
            for job in rules.jobs.values()
        ],
        "down": sorted(rules.nodes.down),
        "counters": rules.counters(),
        "stories": {str(job_id): story for job_id, story in rules.stories.items()},
    }


def load(config: ClusterConfig, state: dict[str, Any], random: Callable[[], float] | None = None) -> SlurmRules:
    """Rules as they were when `dump` was called; `slurmctld_started` is to follow. ValueError: not such a state."""
    if state.get("format") != _FORMAT:
        raise ValueError(f"saved state has format {state.get('format')!r}; this version reads {_FORMAT}")
    rules = SlurmRules(config, random)
    for entry in state["jobs"]:
        spec_entry = dict(entry.pop("spec"))
        spec_entry["dependencies"] = tuple((kind, other) for kind, other in spec_entry["dependencies"])
        if spec_entry["array_tasks"] is not None:
            spec_entry["array_tasks"] = tuple(spec_entry["array_tasks"])
        entry["unmet"] = tuple((kind, other) for kind, other in entry["unmet"])
        entry["state"] = JobState(entry["state"])
        entry["final"] = JobState(entry["final"]) if entry["final"] is not None else None
        entry["lingering_prologs"] = 0  # no process of a hook is known to a slurmctld that has just started
        rules.restore(JobRecord(spec=JobSpec(**spec_entry), **entry))
    for name in state["down"]:
        rules.nodes.set_down(name, True)
    rules.set_counters(state["counters"])
    rules.stories = {
        int(job_id): [(at, text) for at, text in story] for job_id, story in state.get("stories", {}).items()
    }
    rules.up = False
    return rules


def save(path: Path, state: dict[str, Any]) -> None:
    """Write the state durably: on return the new one is on the disk, before that the old one is."""
    temporary = path.with_suffix(".new")
    with open(temporary, "w", encoding="utf-8") as file:
        json.dump(state, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read(path: Path) -> dict[str, Any]:
    """What `save` wrote."""
    with open(path, encoding="utf-8") as file:
        state: dict[str, Any] = json.load(file)
    return state
