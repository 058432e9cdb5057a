"""All runs of a study, in several processes, and what they sum up to."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from .published import LEVELS, ORDER, Spread, published_for
from .run import Run, run_policy
from .workload import Workload


@dataclass(frozen=True)
class Summary:
    """One policy over all seeds. `levels` maps percent arrived to percent in use, where demand came to it."""

    policy: str
    levels: dict[int, Spread]
    cpu_s: float  # of one run, the mean
    cpu_s_most: float
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Study:
    """What was asked and what came out, policies in the order asked for."""

    pods: str
    seeds: tuple[int, ...]
    ratio: float
    nodes: int
    gpus: int
    tasks: int
    summaries: tuple[Summary, ...]

    def of(self, policy: str) -> Summary | None:
        """The summary of a policy, None when it was not asked for."""
        return next((summary for summary in self.summaries if summary.policy == policy), None)


@dataclass(frozen=True)
class Finding:
    """One comparison with the published figures."""

    text: str
    ok: bool


_workload: Workload | None = None  # of a worker process


def _start(workload: Workload) -> None:
    global _workload
    _workload = workload


def _one(policy: str, seed: int, ratio: float) -> Run:
    assert _workload is not None, "set when the worker started"
    return run_policy(_workload, policy, seed, ratio)


def run_study(
    workload: Workload,
    pods: str,
    policies: Sequence[str],
    seeds: Sequence[int],
    ratio: float,
    jobs: int = 1,
    tell: Callable[[Run, int, int], None] = lambda run, done, total: None,
) -> Study:
    """Run every policy with every seed; `tell` is called after each run with it, how many are done, and of how many."""
    asked = [(policy, seed) for policy in policies for seed in seeds]
    done: dict[tuple[str, int], Run] = {}
    for run in _runs(workload, asked, ratio, jobs):
        done[run.policy, run.seed] = run
        tell(run, len(done), len(asked))
    summaries = tuple(summarize(policy, [done[policy, seed] for seed in seeds]) for policy in policies)
    gpus = workload.nodes.gpu_total // 1000
    return Study(pods, tuple(seeds), ratio, len(workload.nodes.names), gpus, len(workload.tasks), summaries)


def _runs(workload: Workload, asked: Sequence[tuple[str, int]], ratio: float, jobs: int) -> Iterator[Run]:
    if jobs == 1:
        for policy, seed in asked:
            yield run_policy(workload, policy, seed, ratio)
        return
    # Started anew, not forked: the caller may have threads (a progress display).
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(jobs, len(asked)), context, _start, (workload,)) as pool:
        futures = [pool.submit(_one, policy, seed, ratio) for policy, seed in asked]
        try:
            for future in as_completed(futures):
                yield future.result()
        finally:
            for future in futures:
                future.cancel()


def summarize(policy: str, runs: Sequence[Run]) -> Summary:
    """Medians and spread of the runs of one policy."""
    levels = {}
    for level in LEVELS:
        values = [value for run in runs if (value := run.allocation(level)) is not None]
        if len(values) == len(runs):
            levels[level] = Spread(round(median(values), 2), min(values), max(values))
    seconds = [run.cpu_s for run in runs]
    return Summary(policy, levels, sum(seconds) / len(seconds), max(seconds), tuple(runs))


def findings(study: Study) -> list[Finding]:
    """Where the study agrees with the published one: each median inside its spread, and the order of the policies.

    Empty when nothing is published for this task list.
    """
    published = published_for(study.pods, study.ratio)
    found = []
    for summary in study.summaries:
        for level, spread in zip(LEVELS, published.get(summary.policy, ()), strict=False):
            ours = summary.levels.get(level)
            if ours is not None:
                text = f"{summary.policy} at {level} %: {ours.median:.2f} in {spread.least:.2f} to {spread.most:.2f}"
                found.append(Finding(text, spread.holds(ours.median)))
    if not published:
        return found
    for above, below in pairwise(ORDER):
        for better in above:
            for worse in below:
                first, second = study.of(better), study.of(worse)
                if first is not None and second is not None and 100 in first.levels and 100 in second.levels:
                    one, other = first.levels[100].median, second.levels[100].median
                    found.append(Finding(f"{better} {one:.2f} above {worse} {other:.2f}", one > other))
    return found


def as_json(study: Study) -> dict[str, object]:
    """For --json: policy -> `allocation_100_median`, `_min`, `_max`, the same for 130, `cpu_s` of one run."""
    out: dict[str, object] = {}
    for summary in study.summaries:
        row: dict[str, object] = {}
        for level, spread in summary.levels.items():
            row[f"allocation_{level}_median"] = spread.median
            row[f"allocation_{level}_min"] = spread.least
            row[f"allocation_{level}_max"] = spread.most
        row["cpu_s"] = round(summary.cpu_s, 3)
        row["cpu_s_max"] = round(summary.cpu_s_most, 3)
        row["runs"] = [
            {
                "seed": run.seed,
                "cpu_s": round(run.cpu_s, 3),
                "tasks": run.tasks,
                "placed": run.placed,
                **{f"allocation_{level}": run.allocation(level) for level in LEVELS},
            }
            for run in summary.runs
        ]
        out[summary.policy] = row
    return out
