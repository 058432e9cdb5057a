"""Fragmentation: idle VRAM that typical sessions could not use, after Weng et al. (USENIX ATC 2023)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from .capacity import Kind


def fragmented(gpus: Sequence[tuple[int, bool]], typical: Iterable[tuple[Kind, int]]) -> int:
    """Bytes of free VRAM of one agent that are fragments, summed over typical sessions with their counts.

    `gpus` are (bytes free, nothing runs there) of each. For a session that does not fit, all that is free is a
    fragment; for one that fits, what is free on GPUs that have too little for it: less than its slice, or for whole
    GPUs those that are in use.
    """
    total = sum(free for free, _ in gpus)
    if not total:
        return 0
    in_use = sum(free for free, idle in gpus if not idle)
    idle_count = sum(idle for _, idle in gpus)
    largest = max(free for free, _ in gpus)
    out = 0
    for (whole, vram), count in typical:
        if whole:
            out += count * (in_use if idle_count >= whole else total)
        elif largest >= vram:
            out += count * sum(free for free, _ in gpus if free < vram)
        else:
            out += count * total
    return out
