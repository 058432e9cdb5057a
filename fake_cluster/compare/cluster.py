"""What is free on the nodes of a study."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ..traces.openb import MILLI
from .workload import Ints, Nodes, Shape


class Cluster:
    """Free CPU, memory and GPUs of each node, in the order of `nodes`; changed by `place` only."""

    def __init__(self, nodes: Nodes) -> None:
        self.nodes = nodes
        self.cpu: Ints = nodes.cpu.copy()
        self.memory: Ints = nodes.memory.copy()
        self.gpu: Ints = nodes.gpu.copy()
        self.gpu_count: Ints = (nodes.gpu >= 0).sum(axis=1)
        self.gpu_left: Ints = np.maximum(nodes.gpu, 0).sum(axis=1)
        self.used_milli = 0
        self.kinds: list[set[str]] = [set() for _ in nodes.names]  # kinds of GPU tasks on each node
        self.changes: list[int] = []  # nodes that were changed, in order
        self._of_model: dict[tuple[str, ...], npt.NDArray[np.bool_]] = {}

    def fits(self, shape: Shape, at: Ints) -> npt.NDArray[np.bool_]:
        """Which of the nodes `at` have room for a task by CPU, memory, GPUs and model."""
        fits: npt.NDArray[np.bool_] = (self.cpu[at] >= shape.cpu) & (self.memory[at] >= shape.memory)
        if shape.gpus:
            fits &= (self.gpu[at] >= shape.milli).sum(axis=1) >= shape.gpus
            if shape.models:
                fits &= self._with_model(shape.models)[at]
        return fits

    def place(self, shape: Shape, node: int, gpus: list[int]) -> None:
        """Book a task on the node's GPUs. Raises ValueError when it does not fit there: a policy is wrong."""
        if self.cpu[node] < shape.cpu or self.memory[node] < shape.memory:
            raise ValueError(f"a task of {shape.cpu} CPU, {shape.memory} MiB does not fit on {self.nodes.names[node]}")
        if len(set(gpus)) != shape.gpus or any(self.gpu[node, gpu] < shape.milli for gpu in gpus):
            raise ValueError(f"{shape.gpus} x {shape.milli} do not fit on GPUs {gpus} of {self.nodes.names[node]}")
        self.cpu[node] -= shape.cpu
        self.memory[node] -= shape.memory
        for gpu in gpus:
            self.gpu[node, gpu] -= shape.milli
        if gpus:
            self.gpu_left[node] -= shape.gpu_total
            self.used_milli += shape.gpu_total
            self.kinds[node].add(kind_of(shape))
        self.changes.append(node)

    def idle_gpus(self, node: int) -> list[int]:
        """The GPUs of a node of which nothing is used."""
        return [int(gpu) for gpu in np.flatnonzero(self.gpu[node] == MILLI)]

    def _with_model(self, models: tuple[str, ...]) -> npt.NDArray[np.bool_]:
        if models not in self._of_model:
            self._of_model[models] = np.array([model in models for model in self.nodes.models])
        return self._of_model[models]


def kind_of(shape: Shape) -> str:
    """Tasks of a kind cluster together: parts of a GPU, or the same number of whole ones."""
    return "shared" if shape.fractional else f"{shape.gpus}-gpu"
