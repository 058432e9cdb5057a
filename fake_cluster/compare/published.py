"""The figures of the published study that ours are compared with: Weng et al., "Beware of Fragmentation", USENIX ATC
2023, and the results that its simulator's repository (hkust-adsl/kubernetes-scheduler-simulator) holds."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_SEED, SEEDS, RATIO = 42, 10, 1.3
LEVELS = (100, 130)  # percent of the GPUs' capacity that arrived tasks ask for


@dataclass(frozen=True)
class Spread:
    """Percent of GPUs in use over the seeds: median, least, most."""

    median: float
    least: float
    most: float

    def holds(self, value: float) -> bool:
        """Whether a median lies within."""
        return self.least <= value <= self.most


# task list -> policy -> (at 100 % arrived, at 130 %)
PUBLISHED: dict[str, dict[str, tuple[Spread, Spread]]] = {
    "openb_pod_list_default": {
        "Random": (Spread(86.25, 85.87, 86.79), Spread(87.38, 87.07, 88.03)),
        "DotProd": (Spread(90.56, 90.34, 91.00), Spread(90.80, 90.54, 91.28)),
        "GpuClustering": (Spread(91.58, 90.62, 92.75), Spread(91.79, 90.81, 92.96)),
        "GpuPacking": (Spread(91.81, 91.07, 92.58), Spread(92.06, 91.29, 92.79)),
        "BestFit": (Spread(92.91, 92.64, 93.04), Spread(93.11, 92.87, 93.25)),
        "FGD": (Spread(95.23, 95.06, 95.38), Spread(95.40, 95.27, 95.49)),
    },
    "openb_pod_list_cpu050": {
        "Random": (Spread(88.98, 88.69, 89.49), Spread(91.16, 90.97, 91.58)),
        "DotProd": (Spread(93.06, 92.64, 93.24), Spread(93.29, 92.85, 93.50)),
        "GpuClustering": (Spread(93.48, 93.02, 94.06), Spread(93.79, 93.33, 94.32)),
        "GpuPacking": (Spread(93.53, 92.86, 93.99), Spread(93.79, 93.17, 94.21)),
        "BestFit": (Spread(93.58, 93.31, 93.73), Spread(93.82, 93.52, 93.97)),
        "FGD": (Spread(95.00, 94.85, 95.17), Spread(95.20, 95.06, 95.34)),
    },
}
# The published order at 100 % arrived: each group is above the next.
ORDER: tuple[tuple[str, ...], ...] = (
    ("FGD",),
    ("BestFit",),
    ("GpuPacking", "GpuClustering"),
    ("DotProd",),
    ("Random",),
)


def published_for(pods: str, ratio: float = RATIO) -> dict[str, tuple[Spread, Spread]]:
    """The published figures for a task list, by the name of its file; empty when there are none."""
    if ratio != RATIO:
        return {}
    name = pods.replace("\\", "/").rpartition("/")[2].partition(".")[0]
    return PUBLISHED.get(name, {})
