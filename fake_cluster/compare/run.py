"""One run: all arrivals of one seed under one policy."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field

import numpy as np

from .cluster import Cluster
from .fragmentation import Fragmentation
from .policies import POLICIES, StudyPolicy
from .workload import Arrivals, Ints, Shape, Workload, draw_arrivals, typical_tasks


@dataclass(frozen=True)
class Point:
    """The cluster while the GPUs of the arrived tasks are `arrived` percent (rounded) of its own.

    `allocated` is percent of all GPUs in use, the mean over the arrivals at this percent; `fragmented` percent of all
    GPUs that are idle and that the typical task cannot use; `waiting` tasks that found no room, both at its end.
    """

    arrived: int
    allocated: float
    fragmented: float
    waiting: int


@dataclass(frozen=True)
class Run:
    """The result of one run. `failed` are tasks that found no room, by kind of task."""

    policy: str
    seed: int
    cpu_s: float
    tasks: int
    placed: int
    points: tuple[Point, ...]
    failed: dict[str, int] = field(default_factory=dict)

    def allocation(self, arrived: int) -> float | None:
        """Percent of GPUs in use when the arrived tasks ask for `arrived` percent of them.

        In a small cluster one task may be more than a percent: then what is nearest, a percent off at most, counts.
        None when demand never came to it.
        """
        near = [point for point in self.points if abs(point.arrived - arrived) <= 1]
        exact = [point for point in near if point.arrived == arrived]
        chosen = exact or near
        return round(sum(point.allocated for point in chosen) / len(chosen), 2) if chosen else None


def run_policy(workload: Workload, policy: str, seed: int, ratio: float = 1.3) -> Run:
    """Let all arrivals of a seed come, one by one; nothing ever ends. Same arguments, same result (but `cpu_s`)."""
    began = time.process_time()
    arrivals = draw_arrivals(workload, seed, ratio)
    cluster = Cluster(arrivals.nodes)
    fragmentation = Fragmentation(typical_tasks(workload.tasks), arrivals.nodes.models)
    chosen = POLICIES[policy](cluster, fragmentation, random.Random(f"{seed}/{policy}"))
    points, failed = _place_all(arrivals, cluster, chosen, fragmentation)
    waiting = sum(failed.values())
    placed = len(arrivals.tasks) - waiting
    return Run(policy, seed, time.process_time() - began, len(arrivals.tasks), placed, tuple(points), failed)


class Scores:
    """The scores of all nodes for one shape of task, kept up with the changes of the cluster."""

    def __init__(self, cluster: Cluster, policy: StudyPolicy, shape: Shape) -> None:
        self._cluster, self._policy, self._shape = cluster, policy, shape
        self._seen = 0
        self.values: Ints = np.full(len(cluster.cpu), -1, dtype=np.int64)
        self._score(np.arange(len(cluster.cpu)))

    def update(self) -> Ints:
        """Score anew the nodes that changed since the last time."""
        changes = self._cluster.changes
        if self._seen < len(changes):
            changed = np.array(sorted(set(changes[self._seen :])), dtype=np.int64)
            # Nothing is ever given back: a node that had no room has none now.
            self._score(changed[self.values[changed] >= 0])
        return self.values

    def _score(self, at: Ints) -> None:
        self._seen = len(self._cluster.changes)
        fits = self._cluster.fits(self._shape, at)
        self.values[at[~fits]] = -1
        at = at[fits]
        if len(at):
            self.values[at] = self._policy.scores(self._shape, at)


def _place_all(
    arrivals: Arrivals, cluster: Cluster, policy: StudyPolicy, fragmentation: Fragmentation
) -> tuple[list[Point], dict[str, int]]:
    capacity = arrivals.nodes.gpu_total
    scores: dict[Shape, Scores] = {}
    failed: dict[str, int] = {}
    points: list[Point] = []
    arrived, percent, waiting = 0, 0, 0
    allocated: list[float] = []
    everywhere = np.arange(len(cluster.cpu))

    def close() -> None:
        if allocated:
            fragments = float(fragmentation.of(everywhere, cluster.cpu, cluster.gpu).sum())
            mean = round(sum(allocated) / len(allocated), 2)
            points.append(Point(percent, mean, round(100 * fragments / capacity, 3), waiting))

    for shape in arrivals.tasks:
        arrived += shape.gpu_total
        now = round(100 * arrived / capacity)
        if now != percent:
            close()
            percent = now
            allocated.clear()
        known = scores.get(shape)
        if known is None:
            known = scores[shape] = Scores(cluster, policy, shape)
        values = known.update()
        node = policy.pick(values) if values.max() >= 0 else -1
        if node >= 0:
            cluster.place(shape, node, policy.gpus(shape, node) if shape.gpus else [])
        else:
            waiting += 1
            failed[label(shape)] = failed.get(label(shape), 0) + 1
        allocated.append(round(100 * cluster.used_milli / capacity, 2))  # rounded as the study rounds
    close()
    return points, failed


def label(shape: Shape) -> str:
    """A kind of task for people."""
    if not shape.gpus:
        return "no GPU"
    return "part of a GPU" if shape.fractional else f"{shape.gpus} GPU" + "s" * (shape.gpus > 1)
