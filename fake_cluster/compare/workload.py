"""Nodes and tasks of a placement study, and the arrivals of one seed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..bad_input import BadInput
from ..traces.job import Tally
from ..traces.load import open_text
from ..traces.openb import MILLI, OpenbNode, OpenbTask, WrongHeader, read_nodes, read_tasks
from .go_random import GoRandom

NODE_FILE = "openb_node_list_gpu_node.csv"
MAX_GPUS = 8  # of one node; the trace has none with more
# Between tasks and nodes the study's scheduler begins to watch ten kinds of objects, and draws a time-out for each.
WATCHES = 10

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, order=True, slots=True)
class Shape:
    """What a task asks for. CPU and GPU in thousandths (of each of `gpus`), memory in MiB; `models` () for any."""

    cpu: int
    memory: int
    gpus: int
    milli: int
    models: tuple[str, ...] = ()

    @property
    def gpu_total(self) -> int:
        """Thousandths of GPUs in all."""
        return self.gpus * self.milli

    @property
    def fractional(self) -> bool:
        """Whether it asks for a part of one GPU."""
        return self.gpus == 1 and self.milli < MILLI


@dataclass(frozen=True)
class Nodes:
    """The cluster, as arrays over nodes. `gpu` is nodes x 8: 1000 for each GPU, -1 where there is none."""

    names: tuple[str, ...]
    cpu: Ints
    memory: Ints
    gpu: Ints
    models: tuple[str, ...]

    @property
    def gpu_total(self) -> int:
        """Thousandths of all GPUs."""
        return int(self.gpu[self.gpu > 0].sum())

    def permuted(self, order: Sequence[int]) -> Nodes:
        """The same nodes in another order."""
        index = np.asarray(order, dtype=np.int64)
        return Nodes(
            tuple(self.names[at] for at in order),
            self.cpu[index],
            self.memory[index],
            self.gpu[index],
            tuple(self.models[at] for at in order),
        )


@dataclass(frozen=True)
class Workload:
    """What a study starts from: nodes, and tasks in the order of their names."""

    nodes: Nodes
    tasks: tuple[Shape, ...]
    tallies: tuple[Tally, ...] = ()


@dataclass(frozen=True)
class Arrivals:
    """One seed: the nodes in a drawn order (ties between nodes go by it) and the tasks that arrive, one by one."""

    nodes: Nodes
    tasks: tuple[Shape, ...]


def make_nodes(rows: Sequence[OpenbNode]) -> Nodes:
    """The arrays of a node list, ordered by name. Raises ValueError when a node has more than 8 GPUs."""
    rows = sorted(rows, key=lambda row: row.name)
    gpu = np.full((len(rows), MAX_GPUS), -1, dtype=np.int64)
    for at, row in enumerate(rows):
        if row.gpus > MAX_GPUS:
            raise ValueError(f"node {row.name!r} has {row.gpus} GPUs; accepted: 0 to {MAX_GPUS}")
        gpu[at, : row.gpus] = MILLI
    return Nodes(
        tuple(row.name for row in rows),
        np.array([row.cpu_milli for row in rows], dtype=np.int64),
        np.array([row.memory_mib for row in rows], dtype=np.int64),
        gpu,
        tuple(row.model for row in rows),
    )


def make_workload(nodes: Sequence[OpenbNode], tasks: Sequence[OpenbTask], tallies: Sequence[Tally] = ()) -> Workload:
    """A workload from the rows of a node list and a task list."""
    ordered = sorted(tasks, key=lambda task: task.name)
    shapes = tuple(Shape(task.cpu_milli, task.memory_mib, task.gpus, task.gpu_milli, task.models) for task in ordered)
    return Workload(make_nodes(nodes), shapes, tuple(tallies))


def load_openb(data: Path, pods: str, nodes: str = NODE_FILE) -> Workload:
    """The workload of an openb directory; `pods` and `nodes` are names in it, or paths. Raises BadInput."""
    node_path, task_path = _find(data, nodes), _find(data, pods)
    node_tally, task_tally = Tally(str(node_path), "nodes"), Tally(str(task_path), "tasks")
    try:
        with open_text(node_path) as file:
            node_rows = list(read_nodes(file, node_tally))
        with open_text(task_path) as file:
            task_rows = list(read_tasks(file, task_tally))
        workload = make_workload(node_rows, task_rows, (node_tally, task_tally))
    except (WrongHeader, ValueError) as error:
        raise BadInput(str(node_path if not node_tally.jobs else task_path), str(error)) from None
    except OSError as error:
        raise BadInput(str(error.filename), f"cannot be read: {error.strerror or error}") from None
    if not workload.nodes.gpu_total:
        raise BadInput(str(node_path), "no node has a GPU")
    if not any(task.gpu_total for task in workload.tasks):
        raise BadInput(str(task_path), "no task asks for a GPU")
    return workload


def draw_arrivals(workload: Workload, seed: int, ratio: float = 1.3) -> Arrivals:
    """The arrivals of one seed: all tasks, shuffled, then tasks drawn at random (with repetition) until their GPUs sum
    to `ratio` times those of the cluster; when all tasks are more than that, tasks drawn at random are taken out.

    The same numbers are drawn, in the same order, as by the published study.
    """
    source = GoRandom(seed)
    source.int63()  # drawn for its log
    target = ratio * workload.nodes.gpu_total
    tasks = list(workload.tasks)
    source.shuffle(tasks)
    total = sum(task.gpu_total for task in tasks)
    more = total < target
    while total > target:
        total -= tasks.pop(source.intn(len(tasks))).gpu_total
    while more:  # until one is too much: when the sum is met exactly, tasks without GPUs may still follow
        task = workload.tasks[source.intn(len(workload.tasks))]
        if total + task.milli > target:
            break
        tasks.append(task)
        total += task.gpu_total
    for _ in range(WATCHES):
        source.int63()
    rank = source.permutation(len(workload.nodes.names))
    order = sorted(range(len(rank)), key=rank.__getitem__)
    return Arrivals(workload.nodes.permuted(order), tuple(tasks))


def typical_tasks(tasks: Sequence[Shape], threshold: float = 0.95) -> dict[Shape, float]:
    """The commonest kinds of task that make up `threshold` of all, with their shares (which sum to 1).

    Memory does not tell kinds apart. Of two that are equally common the larger comes first.
    """
    kinds = Counter(Shape(task.cpu, 0, task.gpus, task.milli, task.models) for task in tasks)
    chosen: dict[Shape, int] = {}
    for kind, count in sorted(kinds.items(), key=lambda item: (item[1], _size(item[0])), reverse=True):
        if sum(chosen.values()) >= threshold * len(tasks):
            break
        chosen[kind] = count
    total = sum(chosen.values())
    return {kind: count / total for kind, count in chosen.items()}


def _size(shape: Shape) -> tuple[int, int, int, tuple[str, ...]]:
    return shape.cpu, shape.milli, shape.gpus, shape.models


def _find(data: Path, name: str) -> Path:
    for path in (data / name, Path(name)):
        if path.is_file():
            return path
    raise BadInput(str(data / name), "no such file", accepted="the name of a file in the data directory, or a path")
