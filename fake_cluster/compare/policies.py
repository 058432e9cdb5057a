"""The policies of the study: a score of each node for a task, and the GPUs on the node that was chosen.

Scores are whole numbers from 0 to 100, higher is better; of equal nodes the first in the order of the seed is taken,
so how a policy rounds is part of what it does. The definitions are those of the published study.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod

import numpy as np

from ..traces.openb import MILLI
from .cluster import Cluster, kind_of
from .fragmentation import Floats, Fragmentation
from .workload import Ints, Shape

MAX_CPU = 128_000  # thousandths; what CPU and GPUs are scaled by
MAX_GPU = 8 * MILLI
BEST = 100


class StudyPolicy(ABC):
    """One policy with what it needs for one run."""

    name = ""

    def __init__(self, cluster: Cluster, fragmentation: Fragmentation, source: random.Random) -> None:
        self.cluster = cluster
        self.fragmentation = fragmentation
        self.source = source

    @abstractmethod
    def scores(self, shape: Shape, at: Ints) -> Ints:
        """The scores of the nodes `at`, all of which have room for the task."""

    def pick(self, scores: Ints) -> int:
        """The node to take, from the scores of all nodes (-1: no room). At least one has room."""
        return int(scores.argmax())

    def gpus(self, shape: Shape, node: int) -> list[int]:
        """The GPUs of the node that the task gets: the idle ones in order, or for a part the fullest that has room."""
        if not shape.fractional:
            return self.cluster.idle_gpus(node)[: shape.gpus]
        row = self.cluster.gpu[node]
        return [min(np.flatnonzero(row >= shape.milli).tolist(), key=lambda gpu: int(row[gpu]))]


class FirstFit(StudyPolicy):
    """The first node with room, its first GPU with room."""

    name = "FirstFit"

    def scores(self, shape: Shape, at: Ints) -> Ints:
        return np.zeros(len(at), dtype=np.int64)

    def gpus(self, shape: Shape, node: int) -> list[int]:
        return [int(gpu) for gpu in np.flatnonzero(self.cluster.gpu[node] >= shape.milli)[: shape.gpus]]


class Random(StudyPolicy):
    """Any node with room; a part of a GPU on any GPU with room."""

    name = "Random"

    def scores(self, shape: Shape, at: Ints) -> Ints:
        return np.zeros(len(at), dtype=np.int64)

    def pick(self, scores: Ints) -> int:
        return int(self.source.choice(np.flatnonzero(scores >= 0)))

    def gpus(self, shape: Shape, node: int) -> list[int]:
        if not shape.fractional:
            return super().gpus(shape, node)
        return [int(self.source.choice(np.flatnonzero(self.cluster.gpu[node] >= shape.milli)))]


class DotProd(StudyPolicy):
    """What is free and what is asked for as vectors of CPU and GPU: the smaller their dot product, the better."""

    name = "DotProd"

    def scores(self, shape: Shape, at: Ints) -> Ints:
        product = (self.cluster.cpu[at] / MAX_CPU) * (shape.cpu / MAX_CPU)
        product += (self.cluster.gpu_left[at] / MAX_GPU) * (shape.gpu_total / MAX_GPU)
        return (BEST * (1.0 - product / 2.0)).astype(np.int64)


class GpuClustering(StudyPolicy):
    """Tasks of a kind together: nodes with only that kind, with that kind among others, idle, with others only."""

    name = "GpuClustering"

    def scores(self, shape: Shape, at: Ints) -> Ints:
        if not shape.gpus:
            return np.zeros(len(at), dtype=np.int64)
        kind = kind_of(shape)
        classes = np.array([self._class(self.cluster.kinds[node], kind) for node in at.tolist()], dtype=np.int64)
        fullness: Ints = 25 * (MAX_GPU - self.cluster.gpu_left[at]) // MAX_GPU
        return fullness + 25 * classes

    @staticmethod
    def _class(kinds: set[str], kind: str) -> int:
        if kind in kinds:
            return 3 if len(kinds) == 1 else 2
        return 0 if kinds else 1


class GpuPacking(StudyPolicy):
    """A GPU that is shared already, the fuller the better; else an idle GPU on a node in use; else an idle node."""

    name = "GpuPacking"

    def scores(self, shape: Shape, at: Ints) -> Ints:
        if not shape.gpus:
            return np.zeros(len(at), dtype=np.int64)
        gpu = self.cluster.gpu[at]
        idle = (gpu == MILLI).sum(axis=1)
        scores = np.full(len(at), max(BEST // 2 - shape.gpus, BEST // 3), dtype=np.int64)
        if shape.fractional:
            left = np.where((gpu >= shape.milli) & (gpu < MILLI), gpu, MAX_GPU).min(axis=1)
            shared = left < MAX_GPU
            scores[shared] = np.maximum(BEST - (left[shared] * 100 // MILLI) // 10, BEST // 2)
        whole = idle == self.cluster.gpu_count[at]
        scores[whole] = np.maximum(BEST // 3 - idle[whole], idle[whole])
        return scores


class BestFit(StudyPolicy):
    """The least CPU and GPU left over, each weighed half."""

    name = "BestFit"

    def scores(self, shape: Shape, at: Ints) -> Ints:
        over = (self.cluster.cpu[at] - shape.cpu) / MAX_CPU * 0.5
        over += (self.cluster.gpu_left[at] - shape.gpu_total) / MAX_GPU * 0.5
        return ((1.0 - over) * BEST).astype(np.int64)


class FGD(StudyPolicy):
    """Fragmentation gradient descent: where fragmentation grows least (or shrinks most)."""

    name = "FGD"

    def scores(self, shape: Shape, at: Ints) -> Ints:
        gpu = self.cluster.gpu[at]
        before = self.fragmentation.of(at, self.cluster.cpu[at], gpu)
        cpu = self.cluster.cpu[at] - shape.cpu
        if not shape.fractional:
            after = gpu.copy()
            if shape.gpus:
                idle = gpu == MILLI
                after[idle & (np.cumsum(idle, axis=1) <= shape.gpus)] = 0
            return _gradient(before, self.fragmentation.of(at, cpu, after))
        rows, columns = _distinct(gpu, shape.milli)
        states = gpu[rows]
        states[np.arange(len(rows)), columns] -= shape.milli
        gains = _gradient(before[rows], self.fragmentation.of(at[rows], cpu[rows], states))
        best = np.full(len(at), -1, dtype=np.int64)
        np.maximum.at(best, rows, gains)
        return best

    def gpus(self, shape: Shape, node: int) -> list[int]:
        if not shape.fractional:
            return super().gpus(shape, node)
        at = np.array([node])
        gpu = self.cluster.gpu[at]
        _, columns = _distinct(gpu, shape.milli)
        states = np.repeat(gpu, len(columns), axis=0)
        states[np.arange(len(columns)), columns] -= shape.milli
        cpu = self.cluster.cpu[at] - shape.cpu
        before = self.fragmentation.of(at, self.cluster.cpu[at], gpu)
        many = np.repeat(at, len(columns))
        gains = _gradient(before, self.fragmentation.of(many, np.repeat(cpu, len(columns)), states))
        return [int(columns[gains.argmax()])]


def _distinct(gpu: Ints, milli: int) -> tuple[Ints, Ints]:
    """(row, column) of each GPU with room, but of GPUs of a node that have the same left only the first."""
    candidate = gpu >= milli
    for column in range(1, gpu.shape[1]):
        candidate[:, column] &= ~(gpu[:, :column] == gpu[:, column : column + 1]).any(axis=1)
    rows, columns = np.nonzero(candidate)
    return rows, columns


def _gradient(before: Floats, after: Floats) -> Ints:
    return (BEST / (1.0 + np.exp(-(before - after) / 1000.0))).astype(np.int64)


PUBLISHED: tuple[type[StudyPolicy], ...] = (Random, DotProd, GpuClustering, GpuPacking, BestFit, FGD)
_ALL: tuple[type[StudyPolicy], ...] = (*PUBLISHED, FirstFit)
POLICIES: dict[str, type[StudyPolicy]] = {policy.name: policy for policy in _ALL}


def policies_named(text: str) -> list[str]:
    """Names from a list with commas; `all` are those with published figures. Raises ValueError."""
    if text == "all":
        return [policy.name for policy in PUBLISHED]
    by_lower = {name.lower(): name for name in POLICIES}
    names = [by_lower.get(word.strip().lower(), "") for word in text.split(",")]
    if not all(names) or len(set(names)) < len(names):
        raise ValueError(f"policies {text!r}; accepted: all, or some of {', '.join(POLICIES)} with commas, each once")
    return names
