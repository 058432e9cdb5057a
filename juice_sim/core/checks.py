"""What values commands may carry. Each check raises Refused(INVALID) that names the JSON field and the value."""

from __future__ import annotations

from typing import Any

from .errors import Kind, Refused
from .model import Gpu, Requirements
from .selectors import ACCEPTED as SELECTOR_FORMS
from .selectors import SelectorError, parse_selector

MAX_BYTES = 2**63 - 1
MAX_GPUS = 1024
MAX_PAIRS = 256
MAX_TEXT = 1024
MAX_NAME = 255


def refuse(field: str, reason: str, value: Any, accepted: str) -> Refused:
    """An INVALID refusal to raise."""
    return Refused(Kind.INVALID, reason, field=field, value=value, accepted=accepted)


def text(field: str, value: object, *, longest: int = MAX_TEXT, empty: bool = True) -> None:
    """A string of bounded length without control characters."""
    accepted = f"{'at most' if empty else '1 to'} {longest} characters, no control characters"
    if not isinstance(value, str):
        raise refuse(field, "is not a string", value, accepted)
    if len(value) > longest or (not value and not empty):
        raise refuse(field, "is too long" if value else "is empty", value, accepted)
    if value and not value.isprintable() and any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 for letter in value):
        raise refuse(field, "contains control characters", value, accepted)
    if any(0xD800 <= ord(letter) < 0xE000 for letter in value):
        raise refuse(field, "is not valid Unicode", value, accepted)


def whole_number(field: str, value: object, lowest: int, highest: int, accepted: str) -> None:
    """An int (a bool or a float is none) within bounds."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise refuse(field, "is not a whole number", value, accepted)
    if not lowest <= value <= highest:
        raise refuse(field, "is out of range", value, accepted)


def seconds(field: str, value: object, highest: float, accepted: str) -> None:
    """A positive, finite number of seconds."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise refuse(field, "is not a number", value, accepted)
    if not 0 < value <= highest:  # false for NaN too
        raise refuse(field, "is out of range", value, accepted)


def string_pairs(field: str, value: object) -> None:
    """A dict of strings to strings, not too large."""
    accepted = f"an object of at most {MAX_PAIRS} strings"
    if not isinstance(value, dict):
        raise refuse(field, "is not an object", value, accepted)
    if len(value) > MAX_PAIRS:
        raise refuse(field, "has too many entries", len(value), accepted)
    for key, entry in value.items():
        text(f"{field} key", key, empty=False)
        text(f"{field}.{key}", entry)


def gpus(field: str, value: object) -> None:
    """The GPUs of an agent or a node type: at least one, indexes and buses distinct, VRAM positive."""
    accepted = f"1 to {MAX_GPUS} GPUs"
    if not isinstance(value, tuple) or not 0 < len(value) <= MAX_GPUS:
        raise refuse(field, "has no GPU or too many", len(value) if isinstance(value, tuple) else value, accepted)
    seen: dict[str, set[object]] = {"index": set(), "pciBus": set(), "uuid": set()}
    for at, gpu in enumerate(value):
        here = f"{field}[{at}]"
        if not isinstance(gpu, Gpu):
            raise refuse(here, "is not a GPU", gpu, "an object with index, uuid, name, vram, ...")
        whole_number(f"{here}.index", gpu.index, 0, 2**31 - 1, "0 to 2147483647")
        whole_number(f"{here}.vram", gpu.vram, 1, MAX_BYTES, "1 to 2^63-1 bytes")
        for name in ("vendor_id", "device_id", "sub_device_id"):
            whole_number(f"{here}.{_camel(name)}", getattr(gpu, name), 0, 2**32 - 1, "0 to 2^32-1")
        for name in ("uuid", "name", "vendor", "model", "driver", "pci_bus"):
            text(f"{here}.{_camel(name)}", getattr(gpu, name))
        for name, one in (("index", gpu.index), ("pciBus", gpu.pci_bus), ("uuid", gpu.uuid)):
            if one != "" and one in seen[name]:
                raise refuse(f"{here}.{name}", "is the same as that of an earlier GPU", one, "a different one per GPU")
            seen[name].add(one)


def requirements(value: Requirements) -> None:
    """What a session may require: at least one GPU, a slice only when it is the only GPU."""
    wanted = value.gpus
    if not isinstance(wanted, tuple) or not 0 < len(wanted) <= MAX_GPUS:
        count = len(wanted) if isinstance(wanted, tuple) else wanted
        raise refuse("gpus", "has no GPU or too many", count, f"1 to {MAX_GPUS} GPUs")
    for at, gpu in enumerate(wanted):
        whole_number(
            f"gpus[{at}].vramRequired", gpu.vram_required, 0, MAX_BYTES, "1 to 2^63-1 bytes; 0 or absent: the whole GPU"
        )
        if gpu.vram_required and len(wanted) > 1:
            raise refuse(
                f"gpus[{at}].vramRequired",
                f"a slice in a session of {len(wanted)} GPUs",
                gpu.vram_required,
                "slices are for sessions with one GPU; leave it out to get whole GPUs",
            )
        if gpu.pci_bus:
            text(f"gpus[{at}].pciBus", gpu.pci_bus)
        elif gpu.pci_bus != "":
            raise refuse(f"gpus[{at}].pciBus", "is not a string", gpu.pci_bus, "a PCI bus id, or nothing")
    if not isinstance(value.pool_id, str):
        raise refuse("poolId", "is not a string", value.pool_id, "the id of a pool; empty: any pool")
    if value.version:
        text("version", value.version)
    if value.match_labels:
        string_pairs("matchLabels", value.match_labels)
    if value.tolerates:
        string_pairs("tolerates", value.tolerates)
    if value.label_selector:
        text("labelSelector", value.label_selector, longest=4096)
        try:
            parse_selector(value.label_selector)
        except SelectorError as error:
            raise refuse("labelSelector", str(error), value.label_selector, SELECTOR_FORMS) from None


def _camel(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(part.capitalize() for part in others)
