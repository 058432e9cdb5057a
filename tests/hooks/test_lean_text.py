"""What the hook does without re and json, so as to start fast, is what re and json would do."""

from __future__ import annotations

import json
import re
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .conftest import HOOKS, PYTHON

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)
MASKED = re.compile(r"([0-9a-fA-F]{8})-[0-9a-fA-F]{4}-[0-9a-fA-F-]{22,}")
UUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\Z")
LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/-]*\Z")
ID = "0a1B2c3d-1111-2222-3333-444455556666"


@given(value=VALUES)
def test_json_is_written_and_read_as_by_json(hook, value):
    compact = json.dumps(value, sort_keys=True, separators=(",", ":"))
    assert hook.json_text(value) == compact
    assert hook.json_text(value, compact=False, sort=False) == json.dumps(value)
    assert hook.parse_json(f" \n{compact}\t") == json.loads(compact)


@pytest.mark.parametrize(
    "text", ["", " ", "{", "[1,]", "{'a':1}", "1 2", "nul", '"a', '{"a":1}x', '"\n"', "\ufeff1", "-"]
)
def test_what_json_refuses_is_refused(hook, text):
    with pytest.raises(ValueError):
        json.loads(text)
    with pytest.raises(ValueError):
        hook.parse_json(text)


@pytest.mark.parametrize(
    "text", ["NaN", "-Infinity", "Infinity", "1e5", "-0.5", "12345678901234567890", '"\\u00e9\\ud83d\\ude00"']
)
def test_numbers_and_escapes(hook, text):
    assert repr(hook.parse_json(text)) == repr(json.loads(text))


def test_what_is_nested_too_deeply_is_an_error(hook):
    with pytest.raises((RecursionError, ValueError)):
        hook.parse_json("[" * 200_000)


@given(
    text=st.text("0aF-gZ ", max_size=60) | st.lists(st.sampled_from([ID, "-", ID[:8], ID[9:], "a", " x"])).map("".join)
)
def test_ids_are_masked_as_by_the_expression(hook, text):
    assert hook.without_ids(text) == MASKED.sub(r"\1-...", text)


@given(text=st.from_regex(UUID) | st.text("0aF-g\n", max_size=40))
def test_uuids(hook, text):
    assert hook.is_uuid(text) == bool(UUID.match(text))


@given(text=st.from_regex(LABEL) | st.text("0a._/-\né ", max_size=5))
def test_labels(hook, text):
    assert hook.is_label(text) == bool(LABEL.match(text))


def test_neither_is_loaded():
    """re, enum and json double the start of a hook, which every job with Juice pays twice."""
    script = "import sys; sys.path.append(sys.argv[1]); import juice_hook; print(' '.join(sys.modules))"
    done = subprocess.run([PYTHON, "-I", "-S", "-B", "-c", script, HOOKS], capture_output=True, text=True, check=True)
    assert not {"re", "enum", "json", "socket", "functools", "ctypes", "ssl"} & set(done.stdout.split())
