"""The environment in which slurmctld runs PrologSlurmctld and EpilogSlurmctld.

What was seen on 22.05.8 and 24.11.5: no PATH, no HOME, nothing of the user's; the SLURM_* variables below; what the
plugin passed with `spank_job_control_setenv` under a forced `SPANK_` prefix, and the raw plugin options as
`SPANK__SLURM_SPANK_OPTION_<plugin>_<option>`. Differences between releases are data (`ADDED_IN`).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable
from itertools import pairwise

from fake_cluster.slurm.rules_jobs import ClusterConfig, Hook, JobRecord

# Variables that only later releases set, with the release that began to.
ADDED_IN = {
    "SLURM_JOB_START_TIME": "24.11",
    "SLURM_JOB_END_TIME": "24.11",
    "SLURM_JOB_OVERSUBSCRIBE": "24.11",
    "SLURM_JOB_SLUID": "25.11",
}

ONLY_EPILOG = frozenset({"SLURM_JOB_DERIVED_EC", "SLURM_JOB_EXIT_CODE", "SLURM_JOB_EXIT_CODE2"})

_UNLIMITED = 365 * 86400  # slurmctld reckons a job without a limit to last a year


def release_number(release: str) -> tuple[int, int]:
    """`"22.05"` or `"22.05.8"` as (22, 5). ValueError for anything else."""
    major, _, rest = release.partition(".")
    minor = rest.partition(".")[0]
    if not (major.isdigit() and minor.isdigit()):
        raise ValueError(f"Slurm release {release!r}: accepted are forms like 22.05 or 24.11.5")
    return int(major), int(minor)


@functools.cache
def _added(release: str) -> frozenset[str]:
    """Names of ADDED_IN that this release sets."""
    have = release_number(release)
    return frozenset(name for name, since in ADDED_IN.items() if have >= release_number(since))


def host_list(given: Iterable[str]) -> str:
    """Names as Slurm writes a list of nodes: `node[1-3,5]`; names without a trailing number stand alone."""
    names = list(given)
    if len(names) == 1:
        return names[0]
    ranges: dict[tuple[str, int], list[int]] = {}
    alone: list[str] = []
    for name in names:
        stem = name.rstrip("0123456789")
        digits = name[len(stem) :]
        if digits:
            # Numbers with leading zeros form lists of their own, since node01 is not node1.
            width = len(digits) if digits[0] == "0" and len(digits) > 1 else 0
            ranges.setdefault((stem, width), []).append(int(digits))
        else:
            alone.append(name)
    parts = []
    for (stem, width), numbers in ranges.items():
        numbers.sort()
        runs: list[list[int]] = []
        for number in numbers:
            if runs and number == runs[-1][1] + 1:
                runs[-1][1] = number
            else:
                runs.append([number, number])
        texts = [f"{low:0{width}d}" if low == high else f"{low:0{width}d}-{high:0{width}d}" for low, high in runs]
        bare = len(texts) == 1 and "-" not in texts[0]
        parts.append(stem + (texts[0] if bare else f"[{','.join(texts)}]"))
    return ",".join(parts + alone)


def cpus_per_node(counts: Iterable[int]) -> str:
    """CPU counts as Slurm writes them: `4(x2),1`."""
    runs: list[list[int]] = []
    for count in counts:
        if runs and runs[-1][0] == count:
            runs[-1][1] += 1
        else:
            runs.append([count, 1])
    return ",".join(str(count) if times == 1 else f"{count}(x{times})" for count, times in runs)


def hook_environment(
    job: JobRecord, hook: Hook, config: ClusterConfig, het_nodes: Iterable[str] = ()
) -> dict[str, str]:
    """All variables of one run of a hook, and no others. `job` must have nodes; `het_nodes`: all components' nodes."""
    spec = job.spec
    env = {
        "SLURM_CLUSTER_NAME": config.cluster_name,
        "SLURM_JOBID": str(job.job_id),
        "SLURM_JOB_ACCOUNT": spec.account or "(null)",
        "SLURM_JOB_CPUS_PER_NODE": cpus_per_node(job.cpus.values()),
        "SLURM_JOB_GID": str(spec.group_id),
        "SLURM_JOB_GROUP": spec.group_name,
        "SLURM_JOB_ID": str(job.job_id),
        "SLURM_JOB_NAME": spec.name,
        "SLURM_JOB_NODELIST": host_list(job.nodes),
        "SLURM_JOB_NUM_NODES": str(len(job.nodes)),
        "SLURM_JOB_PARTITION": config.partition,
        "SLURM_JOB_RESTART_COUNT": str(job.restarts),
        "SLURM_JOB_UID": str(spec.user_id),
        "SLURM_JOB_USER": spec.user_name,
        "SLURM_JOB_WORK_DIR": spec.work_dir,
        "SLURM_SCRIPT_CONTEXT": hook.value,
    }
    if spec.batch:
        env["SLURM_JOB_STDIN"] = spec.stdin
        env["SLURM_JOB_STDOUT"] = spec.stdout
    if spec.comment:
        env["SLURM_JOB_COMMENT"] = spec.comment
    if spec.licenses:
        env["SLURM_JOB_LICENSES"] = ",".join(f"{name}:{count}" for name, count in spec.licenses.items())
    if job.array_job_id is not None and spec.array_tasks is not None:
        env["SLURM_ARRAY_JOB_ID"] = str(job.array_job_id)
        env["SLURM_ARRAY_TASK_ID"] = str(job.array_task_id)
        env["SLURM_ARRAY_TASK_COUNT"] = str(len(spec.array_tasks))
        env["SLURM_ARRAY_TASK_MAX"] = str(max(spec.array_tasks))
        env["SLURM_ARRAY_TASK_MIN"] = str(min(spec.array_tasks))
        env["SLURM_ARRAY_TASK_STEP"] = str(_step(spec.array_tasks))
    if job.het_job_id is not None:
        # SLURM_PACK_* are the names of old, which 22.05 still sets beside the new ones.
        for prefix in ("SLURM_HET_JOB", "SLURM_PACK_JOB"):
            env[f"{prefix}_ID"] = str(job.het_job_id)
            env[f"{prefix}_OFFSET"] = str(job.het_offset)
            if job.het_offset == 0:
                env[f"{prefix}_NODELIST"] = host_list(sorted(het_nodes))
    if hook is Hook.EPILOG:
        env["SLURM_JOB_DERIVED_EC"] = str(job.derived_code)
        # The wait status, and the same as "code:signal".
        env["SLURM_JOB_EXIT_CODE"] = str((job.exit_code << 8) | job.signal)
        env["SLURM_JOB_EXIT_CODE2"] = f"{job.exit_code}:{job.signal}"
    added = _added(config.release)
    if added:
        start = job.start_time or 0.0
        end = job.end_time if job.end_time is not None else start + (spec.time_limit or _UNLIMITED)
        newer = {
            "SLURM_JOB_START_TIME": str(int(start)),
            "SLURM_JOB_END_TIME": str(int(end)),
            "SLURM_JOB_OVERSUBSCRIBE": "OK",
            "SLURM_JOB_SLUID": f"s{job.sequence:013X}",
        }
        env.update({name: newer[name] for name in ADDED_IN if name in added})
    # The prefix is always forced: a value set as PATH arrives as SPANK_PATH.
    env.update({f"SPANK_{name}": value for name, value in spec.spank_env.items()})
    env.update({f"SPANK__SLURM_SPANK_OPTION_{name}": value for name, value in spec.spank_options.items()})
    return env


def _step(tasks: tuple[int, ...]) -> int:
    """The step of `--array=0-8:2`; 1 for lists that are not evenly spaced."""
    ordered = sorted(tasks)
    gaps = {b - a for a, b in pairwise(ordered)}
    return gaps.pop() if len(gaps) == 1 else 1
