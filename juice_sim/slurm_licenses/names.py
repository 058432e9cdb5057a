"""The licenses of a pool: their names, what a job takes of them, and the table that job_submit.lua reads.

Of pool `test`: `juice_test` counts GPUs; `juice_test_x4` places for four GPUs of one agent; `juice_test_vram_gib` GiB
of VRAM; `juice_test_fit_12` places for a slice of 12 GiB on one GPU. A sum alone does not tell whether something fits.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

GIB = 2**30
PREFIX = "juice_"
DECLARED = 1_000_000
"""How many of each license slurm.conf declares; the reservation keeps back all but what is free."""


@dataclass(frozen=True)
class PoolShape:
    """What a pool's agents can give when empty. `most_gpus`: of one agent; `whole_gib` and `largest_gib`: VRAM of the
    smallest and of the largest GPU; `most_gib`: the largest slice, somewhat more than the largest GPU has."""

    pool_id: str
    name: str
    license: str
    most_gpus: int = 0
    whole_gib: int = 0
    largest_gib: int = 0
    most_gib: int = 0

    def names(self) -> list[str]:
        """All licenses of the pool."""
        if not self.most_gpus:
            return []
        places = [self.places(count) for count in range(2, self.most_gpus + 1)]
        return [self.license, *places, self.vram, *(self.fit(gib) for gib in range(1, self.most_gib + 1))]

    def places(self, gpus: int) -> str:
        """The license of a place for that many GPUs (2 or more) of one agent."""
        return f"{self.license}_x{gpus}"

    @property
    def vram(self) -> str:
        return f"{self.license}_vram_gib"

    def fit(self, gib: int) -> str:
        """The license of a place for a slice of that many GiB."""
        return f"{self.license}_fit_{gib}"


def license_names(pools: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Pool id -> its license, of (id, name) pairs: `juice_` and the name, with `_` for what Slurm would not take.
    Names that become the same are told apart by the beginning of the pool's id."""
    plain = {pool_id: PREFIX + re.sub(r"[^A-Za-z0-9.-]", "_", name) for pool_id, name in pools}
    taken = list(plain.values())
    return {
        pool_id: name if taken.count(name) == 1 else f"{name}_{re.sub('[^0-9a-f]', '', pool_id)[:8]}"
        for pool_id, name in plain.items()
    }


def conf_line(shapes: Iterable[PoolShape]) -> str:
    """slurm.conf's `Licenses=` with all licenses of the pools; empty when there are none."""
    names = [name for shape in shapes for name in shape.names()]
    return "Licenses=" + ",".join(f"{name}:{DECLARED}" for name in names) if names else ""


def parse_licenses(text: str) -> dict[str, int]:
    """`a:2,b`, `a@server:2` or `(null)`, as squeue and scontrol print it."""
    found: dict[str, int] = {}
    for word in text.split(","):
        name, _, count = word.strip().rpartition(":") if ":" in word else (word.strip(), "", "1")
        if name and name != "(null)" and count.isdigit():
            found[name] = found.get(name, 0) + int(count)
    return found


def table_text(shapes: Iterable[PoolShape], declared: Mapping[str, int]) -> str:
    """What job_submit.lua reads: one line a pool, fields separated by tabs: name, id, license, then the numbers of
    `PoolShape` in their order. Only licenses that Slurm knows are promised there: it refuses a job that names
    another."""
    lines = ["# pool\tid\tlicense\tmost_gpus\twhole_gib\tlargest_gib\tmost_gib"]
    for shape in shapes:
        if shape.license not in declared or shape.vram not in declared:
            continue
        gpus = 1
        while gpus < shape.most_gpus and shape.places(gpus + 1) in declared:
            gpus += 1
        gib = 0
        while gib < shape.most_gib and shape.fit(gib + 1) in declared:
            gib += 1
        numbers = (gpus, shape.whole_gib, shape.largest_gib, gib)
        lines.append("\t".join([shape.name, shape.pool_id, shape.license, *map(str, numbers)]))
    return "\n".join(lines) + "\n"
