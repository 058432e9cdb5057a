"""Labels, taints, label selectors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from juice_sim.core.model import Requirements
from juice_sim.core.selectors import SelectorError, accepts, match_labels, parse_selector, tolerates

LABELS = {"zone": "a", "gpu": "A10", "example.com/rack": "r-1", "empty": ""}


@pytest.mark.parametrize(
    ("selector", "holds"),
    [
        ("", True),
        ("  ", True),
        ("zone=a", True),
        ("zone==a", True),
        ("zone = a", True),
        ("zone=b", False),
        ("zone!=b", True),
        ("zone!=a", False),
        ("other!=a", True),
        ("other=a", False),
        ("zone in (a)", True),
        ("zone in (b,a)", True),
        ("zone in ( b , a )", True),
        ("zone in(b)", False),
        ("zone notin (b,c)", True),
        ("zone notin (a)", False),
        ("other notin (a)", True),
        ("zone", True),
        ("other", False),
        ("!other", True),
        ("!zone", False),
        ("zone=a,gpu=A10", True),
        ("zone=a,gpu=H100", False),
        ("gpu in (A10,H100),zone!=b,!other", True),
        ("example.com/rack=r-1", True),
        ("empty=", True),
        ("zone=", False),
        ("in=1", False),
        ("in in (in)", False),
    ],
)
def test_selectors(selector: str, holds: bool) -> None:
    assert all(term.matches(LABELS) for term in parse_selector(selector)) is holds


@pytest.mark.parametrize(
    "selector",
    [
        ",",
        "zone=a,",
        ",zone=a",
        "zone=a,,gpu=b",
        "=a",
        "zone in a",
        "zone in ()",
        "zone in (a",
        "zone in (a,)",
        "zone in (a b)",
        "zone>1",
        "zone=a b",
        "zone=a;gpu=b",
        "zone=$(id)",
        "zone=a\ngpu=b",
        "zönë=a",
        "zone=(a)",
        "zone in ((a))",
        "!",
        "!!zone",
    ],
)
def test_malformed_selectors(selector: str) -> None:
    with pytest.raises(SelectorError) as error:
        parse_selector(selector)
    assert "\n" not in str(error.value)


@given(st.text(max_size=60))
def test_any_text_is_a_selector_or_an_error(text: str) -> None:
    try:
        terms = parse_selector(text)
    except SelectorError:
        return
    assert all(term.matches({}) in (True, False) for term in terms)


def test_very_long_selectors_are_read_in_linear_time() -> None:
    assert len(parse_selector(",".join(["zone=a"] * 5000))) == 5000
    with pytest.raises(SelectorError):
        parse_selector("a" * 50_000 + " in " + " " * 50_000)


def test_match_labels_and_tolerates() -> None:
    assert match_labels({}, {}) and match_labels({"zone": "a"}, LABELS)
    assert not match_labels({"zone": "a", "x": "y"}, LABELS) and not match_labels({"zone": "b"}, LABELS)
    assert tolerates({}, {}) and tolerates({"a": "1", "b": "2"}, {"a": "1"})
    assert not tolerates({}, {"a": "1"}) and not tolerates({"a": "2"}, {"a": "1"})


def test_accepts_combines_all_three() -> None:
    test = accepts(Requirements((), match_labels={"zone": "a"}, tolerates={"t": "1"}, label_selector="gpu!=H100"))
    assert test(LABELS, {"t": "1"})
    assert not test(LABELS, {"t": "2"}) and not test({}, {}) and not test({"zone": "a", "gpu": "H100"}, {})
