"""How many of each license there should be. Pure: what controller and Slurm said goes in, numbers come out.

Slurm subtracts what the jobs hold. A job that has its session holds the license and the GPU, so its licenses are added
to what is free; a job whose prolog is still asking holds the license only, and what is free is promised to it. So
Slurm always has left: what is free at Juice, less what is promised. Whatever else takes or loses GPUs (other clusters,
sessions without a license, agents that go and come) shows up in what is free.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ..wire_types import Agent, Pool
from .names import GIB, PoolShape, license_names

LENIENCE = 0.93  # a slice may be granted down to 93 % of what was asked


@dataclass(frozen=True)
class HeldJob:
    """One job that holds licenses now: name -> count."""

    job_id: int
    licenses: Mapping[str, int]


def shapes(pools: Sequence[Pool], agents: Iterable[Agent], known: Mapping[str, PoolShape]) -> dict[str, PoolShape]:
    """Pool id -> shape, from all agents, missing and disabled ones included. What was `known` before still counts: a
    pool whose agents are all away for a while keeps its licenses, none of them free. Tainted agents do not count."""
    licenses = license_names([(pool.id, pool.name) for pool in pools])
    found = {}
    for pool in pools:
        shape = known.get(pool.id) or PoolShape(pool.id, pool.name, licenses[pool.id])
        found[pool.id] = replace(shape, name=pool.name, license=licenses[pool.id])
    for agent in agents:
        if agent.pool_id not in found or agent.taints or not agent.gpus:
            continue
        shape = found[agent.pool_id]
        sizes = [gpu.vram for gpu in agent.gpus]
        smallest = min(sizes) // GIB
        found[agent.pool_id] = replace(
            shape,
            most_gpus=max(shape.most_gpus, len(sizes)),
            whole_gib=min(shape.whole_gib, smallest) if shape.most_gpus else smallest,
            largest_gib=max(shape.largest_gib, max(sizes) // GIB),
            most_gib=max(shape.most_gib, int(max(sizes) / LENIENCE) // GIB),
        )
    return found


def free(shape: PoolShape, agents: Iterable[Agent]) -> dict[str, int]:
    """License -> how many of it the pool's active, untainted agents could serve at this moment."""
    counts = dict.fromkeys(shape.names(), 0)
    for agent in agents:
        if agent.pool_id != shape.pool_id or agent.state != "active" or agent.taints:
            continue
        left = {gpu.index: gpu.vram for gpu in agent.gpus}
        untouched = set(left)
        for session in agent.sessions:
            for gpu in session.gpus or ():
                if gpu.index in left:
                    left[gpu.index] -= gpu.vram_required
                    untouched.discard(gpu.index)
        counts[shape.license] += len(untouched)
        for gpus in range(2, shape.most_gpus + 1):
            counts[shape.places(gpus)] += len(untouched) // gpus
        for size in left.values():
            counts[shape.vram] += max(0, size) // GIB
            for gib in range(1, shape.most_gib + 1):
                fits = size // (gib * GIB)
                counts[shape.fit(gib)] += max(0, fits) if fits > 0 else int(size >= LENIENCE * gib * GIB)
    return counts


def jobs_with_sessions(agents: Iterable[Agent], names: Mapping[str, str], cluster: str) -> set[int]:
    """Ids of the cluster's jobs that have a session on an agent. `names` maps a session's id to the name that the hooks
    gave it, `cluster/job/restarts`. From the same answer as `free`, or a session that closes in between would count in
    neither."""
    found = set()
    for agent in agents:
        for session in agent.sessions:
            where, _, job = names.get(session.id, "").rpartition("/")[0].rpartition("/")
            if where == cluster and job.isdigit():
                found.add(int(job))
    return found


def targets(pool_shapes: Iterable[PoolShape], agents: Sequence[Agent], served: Iterable[HeldJob]) -> dict[str, int]:
    """License -> how many there should be in all. `served` are the jobs that hold both license and session."""
    totals: dict[str, int] = {}
    for shape in pool_shapes:
        totals.update(free(shape, agents))
    for job in served:
        for name, count in job.licenses.items():
            if name in totals:
                totals[name] += count
    return totals
