"""VRAM quantities: the table that Python, the hook and the C plugin share, and what is Python's own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from juice_sim.core.units import ACCEPTED, MAX_VRAM, VramError, format_vram, parse_vram

CASES: list[dict[str, Any]] = json.loads((Path(__file__).parents[1] / "vram_cases.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=[ascii(case["text"])[:40] for case in CASES])
def test_shared_table(case: dict[str, Any]) -> None:
    if case.get("error"):
        with pytest.raises(VramError) as error:
            parse_vram(case["text"])
        message = str(error.value)
        assert ACCEPTED in message and ascii(case["text"])[:20] in message
        assert message.isprintable() and message.isascii() and len(message) < 300
    else:
        assert parse_vram(case["text"]) == case["bytes"]


def test_the_table_is_large_and_has_both_kinds() -> None:
    errors = sum(bool(case.get("error")) for case in CASES)
    assert errors >= 40 and len(CASES) - errors >= 40
    assert len({case["text"] for case in CASES}) == len(CASES)


@pytest.mark.parametrize("text", ["4\0", "4\0GB", "\0"])
def test_nul_is_refused(text: str) -> None:
    """Not in the shared table: a C string cannot hold it."""
    with pytest.raises(VramError):
        parse_vram(text)


@given(st.integers(1, MAX_VRAM))
def test_formatting_keeps_the_size(size: int) -> None:
    assert parse_vram(format_vram(size)) == size


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (2**30, "1GiB"),
        (2684354560, "2.5GiB"),
        (3000 * 2**20, "3000MiB"),
        (2**30 + 1, "1073741825B"),
        (2**40, "1TiB"),
        (1, "1B"),
    ],
)
def test_formatting(size: int, text: str) -> None:
    assert format_vram(size) == text


@given(st.text(max_size=80))
def test_any_text_is_a_size_or_an_error(text: str) -> None:
    try:
        size = parse_vram(text)
    except VramError:
        return
    assert 1 <= size <= MAX_VRAM


@given(st.integers(0, 10**6), st.integers(0, 10**9 - 1), st.sampled_from(["GB", "GiB", "", "MiB"]))
def test_decimals_are_exact(whole: int, billionths: int, suffix: str) -> None:
    """snakemake#2774: never converted by way of a float, never rounded to 0."""
    unit = {"GB": 10**9, "GiB": 2**30, "": 2**30, "MiB": 2**20}[suffix]
    expected = (whole * 10**9 + billionths) * unit // 10**9
    text = f"{whole}.{billionths:09d}{suffix}"
    if expected:
        assert parse_vram(text) == expected
    else:
        with pytest.raises(VramError):
            parse_vram(text)
