"""GPU models by name: what a simulated agent says it has. The table is data/gpu_profiles.yaml."""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import yaml

from .core.model import Gpu

DRIVER = "550.127.08"
_NAMESPACE = uuid.UUID("6f0c4f1e-58a4-4b76-8f44-2ad8e0f0c9b1")


class UnknownModel(ValueError):
    """A model that the table does not have; `str(error)` lists those that it has."""


@dataclass(frozen=True)
class GpuProfile:
    """One model: `key` as users write it, `name` as the driver reports it, `vram` in bytes, power limit in watts."""

    key: str
    name: str
    device_id: int
    vram: int
    watts: int


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


@functools.cache
def _table() -> tuple[dict[str, GpuProfile], dict[str, GpuProfile]]:
    """(by key, by plain key, alias and full name)."""
    with (Path(__file__).parent / "data" / "gpu_profiles.yaml").open(encoding="utf-8") as file:
        rows = yaml.safe_load(file)
    by_key: dict[str, GpuProfile] = {}
    by_plain: dict[str, GpuProfile] = {}
    for key, row in rows.items():
        profile = GpuProfile(key, row["name"], row["device_id"], row["vram_mib"] << 20, row["watts"])
        by_key[key] = profile
        for name in (key, row["name"], *row.get("aliases", ())):
            by_plain.setdefault(_plain(name), profile)
    return by_key, by_plain


def profiles() -> Mapping[str, GpuProfile]:
    """All models by key."""
    return _table()[0]


def profile_named(model: str) -> GpuProfile:
    """The model by key, alias or the driver's name; case, spaces, `-` and `_` do not count. Raises UnknownModel."""
    found = _table()[1].get(_plain(model))
    if found is None:
        raise UnknownModel(f"GPU model {model!r} is unknown; accepted: {', '.join(_table()[0])}")
    return found


def make_gpus(model: str, count: int, *, vram: int | None = None, identity: str = "") -> tuple[Gpu, ...]:
    """`count` GPUs of a model; `vram` (bytes) instead of the model's own. The same `identity` (say, host name) gives
    the same uuids again. Raises UnknownModel, ValueError."""
    if not 0 <= count <= 1024:
        raise ValueError(f"{count} GPUs; accepted: 0 to 1024")
    chosen = profile_named(model)
    if vram is not None and not 0 < vram < 2**63:
        raise ValueError(f"VRAM of {vram} bytes; accepted: 1 to 2^63-1")
    return tuple(
        Gpu(
            index=index,
            uuid=f"GPU-{uuid.uuid5(_NAMESPACE, f'{identity}/{index}') if identity else uuid.uuid4()}",
            name=chosen.name,
            vram=vram if vram is not None else chosen.vram,
            vendor="NVIDIA",
            model=chosen.key,
            vendor_id=0x10DE,
            device_id=chosen.device_id,
            sub_device_id=0,
            driver=DRIVER,
            pci_bus=f"{(index >> 5) & 0xFFFF:08X}:{((index & 31) << 3) | 7:02X}:00.0",
        )
        for index in range(count)
    )
