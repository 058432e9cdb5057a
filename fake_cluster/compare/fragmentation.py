"""Fragmentation of GPUs: how much of what is idle the typical task could not use (Weng et al., USENIX ATC'23).

F(node) = sum over typical tasks m of p_m times: all idle thousandths of the node when m does not fit on it, needs no
GPU, or needs another model; else the idle thousandths on GPUs that have less than m needs of each.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt

from .workload import Ints, Shape

Floats = npt.NDArray[np.float64]


class Fragmentation:
    """F for many states of nodes at once.

    Typical tasks that need the same number and part of GPUs (and models) form a class: within it, which of them fit
    depends only on the CPU that is left, so that one look-up in a table gives the share of those that do.
    """

    def __init__(self, typical: Mapping[Shape, float], models: tuple[str, ...]) -> None:
        """`models` is the model of each node, in the order in which nodes are numbered."""
        self._cpu_steps: Ints = np.array(sorted({task.cpu for task in typical}), dtype=np.int64)
        gpu_tasks = {task: share for task, share in typical.items() if task.gpu_total}
        classes = sorted({(task.milli, task.gpus, task.models) for task in gpu_tasks})
        self._millis: Ints = np.array(sorted({milli for milli, _, _ in classes}), dtype=np.int64)
        self._of_milli: Ints = np.searchsorted(self._millis, [milli for milli, _, _ in classes])
        self._gpus: Ints = np.array([gpus for _, gpus, _ in classes], dtype=np.int64)
        # share[i, c]: of the tasks of class c that fit when i steps of CPU are not above what is left
        self._share: Floats = np.zeros((len(self._cpu_steps) + 1, len(classes)))
        for task, share in gpu_tasks.items():
            step = int(np.searchsorted(self._cpu_steps, task.cpu))
            self._share[step + 1 :, classes.index((task.milli, task.gpus, task.models))] += share
        self._total_share = sum(typical.values())
        self._allowed: npt.NDArray[np.bool_] | None = None
        if any(wanted for _, _, wanted in classes):
            self._allowed = np.array([[not wanted or model in wanted for _, _, wanted in classes] for model in models])

    def of(self, nodes: Ints, cpu: Ints, gpu: Ints) -> Floats:
        """F of states: `nodes` are the numbers of the nodes (B), `cpu` what is left (B), `gpu` B x 8 (-1: no GPU)."""
        left = np.maximum(gpu, 0)
        total = left.sum(axis=1)
        enough = left[:, None, :] >= self._millis[None, :, None]  # B x thresholds x GPUs
        usable = np.einsum("btg,bg->bt", enough, left)[:, self._of_milli]
        fits = enough.sum(axis=2)[:, self._of_milli] >= self._gpus
        if self._allowed is not None:
            fits &= self._allowed[nodes]
        share = self._share[np.searchsorted(self._cpu_steps, cpu, side="right")]
        served: Floats = (share * fits * usable).sum(axis=1)
        fragments: Floats = self._total_share * total - served
        return fragments
