"""VRAM quantities as users write them.

A bare number is GiB, as in Juice's own command. Suffixes: B, KB, MB, GB, TB (powers of 1000) and KiB, MiB, GiB, TiB
(powers of 1024), in any case, after at most one space. What could be meant in two ways (`4G`, `16Gi`) is refused. The
same rules are written again in the hook and in the C plugin; `tests/vram_cases.json` holds all three together.
"""

from __future__ import annotations

import re

MAX_VRAM = 2**63 - 1
MAX_LENGTH = 64
ACCEPTED = "a number with an optional suffix B, KB, MB, GB, TB, KiB, MiB, GiB or TiB, e.g. 2.5, 2560MiB; bare: GiB"

_UNITS = {"b": 1} | {
    letter + suffix: base**power
    for power, letter in enumerate("kmgt", start=1)
    for suffix, base in (("b", 1000), ("ib", 1024))
}
_FORM = re.compile(r"([0-9]+)(?:\.([0-9]+))?(?: ?([A-Za-z]+))?")


class VramError(ValueError):
    """A size of VRAM that cannot be read; one line with the value, the reason and the accepted forms."""

    def __init__(self, value: str, reason: str) -> None:
        self.value = value
        self.reason = reason
        shown = ascii(value)
        super().__init__(
            f"VRAM size {shown if len(shown) <= 60 else shown[:57] + '...'} {reason}; accepted: {ACCEPTED}"
        )


def parse_vram(text: str) -> int:
    """The size in bytes, 1 to 2^63-1. Fractions of a byte are dropped, but never down to 0. Raises VramError."""
    if not text.strip():
        raise VramError(text, "is empty")
    if len(text) > MAX_LENGTH:
        raise VramError(text, f"is longer than {MAX_LENGTH} characters")
    form = _FORM.fullmatch(text)
    if form is None:
        raise VramError(text, "is not a size")
    whole, fraction, suffix = form[1], form[2] or "", (form[3] or "GiB").lower()
    unit = _UNITS.get(suffix)
    if unit is None:
        raise VramError(text, f"has the unknown suffix {form[3]!r}")
    size: int = int(whole + fraction) * unit // 10 ** len(fraction)  # integers: floats would round
    if size > MAX_VRAM:
        raise VramError(text, "is more than 2^63-1 bytes")
    if size < 1:
        raise VramError(text, "is less than one byte")
    return size


def format_vram(size: int) -> str:
    """The size in the largest binary unit of which it is a multiple of a quarter; parse_vram reads it back."""
    for suffix in ("TiB", "GiB", "MiB", "KiB"):
        unit = _UNITS[suffix.lower()]
        if size >= unit and size % (unit // 4) == 0:
            return f"{size / unit:.2f}".rstrip("0").rstrip(".") + suffix
    return f"{size}B"
