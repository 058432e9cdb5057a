"""`juice-sim doctor`: what there is, what is missing, and how to get it."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from juice_sim.machine import PROBES


def doctor(*arguments, **environment):
    command = [sys.executable, "-m", "juice_sim.cli.main", "doctor", *arguments]
    env = {**os.environ, **environment}
    return subprocess.run(command, capture_output=True, text=True, timeout=100, env=env)


def told(finished):
    return {capability["name"]: capability for capability in json.loads(finished.stdout)}


def test_every_capability_is_told_and_what_is_missing_comes_with_its_remedy():
    finished = doctor("--json")
    found = told(finished)
    assert list(found)[: len(PROBES)] == list(PROBES)  # a plugin that this machine's Slurm loads may follow
    assert finished.returncode == 0  # these tests run, so Python, Ray and libsodium are there
    for capability in found.values():
        assert capability["detail"] and not capability["detail"].endswith(":"), capability
        assert bool(capability["remedy"]) is not capability["ok"], capability
        assert "\n" not in capability["detail"] + capability["remedy"], capability


def test_on_a_bare_path_tools_are_missing_and_the_text_says_how_to_get_them(tmp_path):
    environment = {"PATH": str(tmp_path), "DOCKER_HOST": f"unix://{tmp_path}/none.sock", "JUICE_SIM_SLURM_TREE": ""}
    found = told(doctor("--json", **environment))
    for name in ("docker", "compiler", "slurm-tree", "clang", "valgrind"):
        assert not found[name]["ok"], name
    assert "cc, make" in found["compiler"]["detail"]
    assert "gcc make libslurm-dev libsodium-dev" in found["compiler"]["remedy"]
    lines = doctor(**environment).stdout.splitlines()
    at = lines.index(next(line for line in lines if line.startswith("missing compiler")))
    assert lines[at + 1].strip() == "needed for building the SPANK plugin"
    assert lines[at + 2].strip() == f"to get it: {found['compiler']['remedy']}"


@pytest.mark.parametrize(("required", "code"), [("python", 0), ("python,valgrind", 1), ("", 0)])
def test_exit_code_says_whether_all_that_is_required_is_there(required, code, tmp_path):
    assert doctor("--require", required, PATH=str(tmp_path)).returncode == code


def test_a_capability_that_is_none_is_bad_input():
    finished = doctor("--require", "python,gpu")
    assert (finished.returncode, finished.stdout) == (2, "")
    assert "'gpu'; accepted: python, ray" in finished.stderr
    assert len(finished.stderr.splitlines()) == 1
