"""What a sandbox consists of, as the user says it on the command line of `juice-sim up` and as it is kept on disk."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from juice_sim.core.units import parse_vram
from juice_sim.gpu_profiles import make_gpus

from ..scenario import HooksSpec, PoolSpec, Scenario, SlurmSpec

DEFAULT_NAME = "default"
DEFAULT_POOL = "test:agents=2,gpus=2,model=A10"
POOL_FORM = "NAME[:agents=N,gpus=N,model=MODEL,vram=SIZE,label.KEY=VALUE,taint.KEY=VALUE]"
MAX_AGENTS = 500  # each is a process of its own
MAX_NODES = 200
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,31}")
_POOL_NAME = re.compile(r"[^\x00-\x1f\x7f:,=/]{1,255}")


class BadSpec(ValueError):
    """Bad input; `str(error)` is one line with the value and what is accepted."""


@dataclass(frozen=True)
class SandboxSpec:
    """`slurm` is `real` or `simulated`; `licenses`: free capacity is exported as Slurm licenses."""

    name: str = DEFAULT_NAME
    slurm: str = "simulated"
    pools: Sequence[PoolSpec] = ()
    nodes: int = 2
    cpus_per_node: int = 8
    cred_expire: int = 5
    wait: float = 20.0
    licenses: bool = False
    hook_settings: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SandboxSpec:
        return cls(**{**value, "pools": tuple(PoolSpec(**pool) for pool in value["pools"])})

    def scenario(self, licenses: str = "") -> Scenario:
        """The same, as that part of a scenario which a world is made of."""
        return Scenario(
            name=self.name,
            pools=self.pools,
            jobs=(),
            time_limit=10 * 365 * 86400.0,
            slurm=SlurmSpec(
                nodes=self.nodes, cpus_per_node=self.cpus_per_node, cred_expire=self.cred_expire, licenses=licenses
            ),
            hooks=HooksSpec(wait=self.wait, settings=self.hook_settings),
        )


def check_name(name: str) -> str:
    """A sandbox's name. Raises BadSpec."""
    if not _NAME.fullmatch(name):
        raise BadSpec(f"--name {name!r}: accepted: 1 to 32 of A-Z a-z 0-9 _ . -, the first a letter or a digit")
    return name


def parse_pool(text: str) -> PoolSpec:
    """`test:agents=2,gpus=4,model=A10,vram=24GiB,label.zone=a,taint.team=ml`. Raises BadSpec."""
    name, _, rest = text.partition(":")
    if not _POOL_NAME.fullmatch(name) or not name.strip():
        raise BadSpec(f"--pool {text!r}: {name!r} is no name of a pool; accepted: {POOL_FORM}")
    chosen: dict[str, Any] = {}
    labels: dict[str, str] = {}
    taints: dict[str, str] = {}
    for word in filter(None, (part.strip() for part in rest.split(","))):
        key, equals, value = word.partition("=")
        group, dot, member = key.partition(".")
        if dot and group in ("label", "taint") and member and equals:
            pairs = labels if group == "label" else taints
            if member in pairs:
                raise BadSpec(f"--pool {text!r}: {key} is given twice")
            pairs[member] = value
            continue
        if key in chosen:
            raise BadSpec(f"--pool {text!r}: {key} is given twice")
        if key in ("agents", "gpus") and value.isascii() and value.isdigit():
            chosen[key] = int(value)
        elif key in ("model", "vram") and value:
            chosen[key] = value
        else:
            raise BadSpec(f"--pool {text!r}: {word!r} is not understood; accepted: {POOL_FORM}")
    if not 0 <= chosen.get("agents", 1) <= MAX_AGENTS:
        raise BadSpec(f"--pool {text!r}: agents={chosen['agents']}; accepted: 0 to {MAX_AGENTS}")
    if not 1 <= chosen.get("gpus", 1) <= 64:
        raise BadSpec(f"--pool {text!r}: gpus={chosen['gpus']}; accepted: 1 to 64")
    try:
        if "vram" in chosen:
            chosen["vram"] = parse_vram(chosen["vram"])
        make_gpus(chosen.get("model", "A10"), chosen.get("gpus", 1), vram=chosen.get("vram"))
    except ValueError as error:
        raise BadSpec(f"--pool {text!r}: {error}") from None
    return PoolSpec(name, labels=labels, taints=taints, **chosen)


def parse_pools(texts: Sequence[str]) -> tuple[PoolSpec, ...]:
    """All `--pool` options; the default pool without any. Raises BadSpec."""
    pools = tuple(parse_pool(text) for text in (texts or [DEFAULT_POOL]))
    names = [pool.name for pool in pools]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise BadSpec(f"--pool: {twice!r} is given twice; a pool has one kind of agents here")
    total = sum(pool.agents for pool in pools)
    if total > MAX_AGENTS:
        raise BadSpec(f"--pool: {total} agents; accepted: {MAX_AGENTS} at most, each is a process")
    return pools
