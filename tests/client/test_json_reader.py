"""The library's JSON reader, built with AddressSanitizer and UBSan, on whole, cut off and mangled text."""

from __future__ import annotations

import json
import random
import subprocess
from pathlib import Path

import pytest

from juice_sim.client_build import source_dir

pytestmark = pytest.mark.compiler

WHOLE = {"number": -42, "text": 'a "b" \\ c', "yes": True, "list": [1, {"x": [2, 3]}, "]"], "other": {"text": "no"}}


@pytest.fixture(scope="module")
def read(tmp_path_factory):
    program = tmp_path_factory.mktemp("json") / "read_json"
    sources = [Path(__file__).with_name("read_json.c"), source_dir() / "json.c", source_dir() / "settings.c"]
    sanitize = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    command = ["cc", "-std=c11", "-D_GNU_SOURCE", "-g", *sanitize, f"-I{source_dir()}", "-o", program, *sources]
    subprocess.run(command, check=True)

    def run(text: bytes) -> list[str]:
        done = subprocess.run([program], input=text, capture_output=True, timeout=60)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode("latin-1").splitlines()

    return run


def test_what_is_there_is_found(read):
    lines = ['text=a "b" \\ c', "number=-42", "yes=1"]
    assert read(json.dumps(WHOLE).encode()) == [*lines, "item=1", 'item={"x": [2, 3]}', 'item="]"']
    assert read(json.dumps(WHOLE, indent=3, separators=(" ,", " : ")).encode())[:4] == [*lines, "item=1"]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", ["invalid"]),
        ("{", ["invalid"]),
        ('"', ["invalid"]),
        ('{"text"', ["invalid"]),
        ('{"text":"\\', ["invalid"]),
        ("[]", []),
        ('{"text":1,"number":"1","yes":"true"}', ["yes=0"]),
        ('{"number":99999999999999999999}', []),
        ('{"number":9223372036854775807}', []),
        ('{"number":1e3}', []),
        ('{"text":"\\u00e9\\n"}', ["text=?"]),
        ('{"text":"' + "x" * 64 + '"}', []),
        ('{"x":{"text":"inner"},"text":"outer"}', ["text=outer"]),
        ('{"list":[' + "[" * 2000 + "]" * 2000 + "]}", ["item=" + "[" * 2000 + "]" * 2000]),
    ],
)
def test_what_is_wrong_is_not_taken(read, text, lines):
    assert [line for line in read(text.encode()) if line] == lines


def test_mangled_text_harms_nothing(read):
    draw = random.Random(7)
    config = {"id": "s-1", "servers": ["127.0.0.1:80", "[::1]:80"], "requirements": {"gpus": [{"vramRequired": 0}]}}
    texts = [json.dumps(value).encode() for value in (WHOLE, config)]
    for _ in range(60):
        text = bytearray(draw.choice(texts))
        for _ in range(draw.randint(1, 8)):
            text[draw.randrange(len(text))] = draw.choice(b'{}[]",:\\\x00\xff 0-"')
        read(bytes(text))
