"""`juice-sim run` from the outside: exit codes, what is printed, what is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

SMALL = """
name: small
seed: 5
time_limit: 60
pools:
- {name: test, agents: 1, gpus: 2, model: A10}
slurm: {nodes: 1}
hooks: {wait: 3}
jobs:
- {name: whole, count: 2, pool: test, run_time: 0.3, expect: COMPLETED}
- {name: slice, count: 3, pool: test, vram: 2, run_time: 0.2, expect: COMPLETED}
checks: {all_completed: true}
"""


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "juice_sim.cli.main", "run", *map(str, arguments)]


def environment(tmp_path: Path) -> dict[str, str]:
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": root, "TMPDIR": str(tmp_path / "tmp"), "COLUMNS": "120"}


@pytest.fixture
def run(tmp_path: Path):  # type: ignore[no-untyped-def]
    (tmp_path / "tmp").mkdir()

    def go(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command(*arguments), env=environment(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=120
        )

    return go


def test_a_run_that_holds(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "small.yaml").write_text(SMALL)
    done = run("small.yaml", "--cluster", "none", "--seed", "9")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "5 of 5 completed" in done.stdout and "0 leaked" in done.stdout
    assert "No GPU is over-committed" in done.stdout and "FAIL" not in done.stdout
    assert "running" in done.stderr and "\x1b" not in done.stderr + done.stdout  # plain lines: not a terminal
    report = tmp_path / "juice-sim-report" / "small"
    results = json.loads((report / "results.json").read_text())
    assert (results["scenario"], results["seed"]) == ("small", 9)
    keys = {
        "jobs": "submitted completed failed cancelled requeues",
        "sessions": "requested granted denied closed leaked",
        "gpus": "count vram_bytes peak_vram_bytes overcommitted_bytes",
        "waits": "queue_p50_s queue_p99_s prolog_p50_s prolog_p99_s",
        "invariants": "checked violations",
    }
    for section, names in keys.items():
        assert set(names.split()) <= set(results[section])
    assert results["wall_s"] > 0 and results["gpus"]["count"] == 2
    assert (report / "history.jsonl").stat().st_mode & 0o077 == 0
    assert list((tmp_path / "tmp").iterdir()) == []


def test_a_check_that_fails(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    text = SMALL.replace("checks: {all_completed: true}", "checks: {max_prolog: 0.0001}")
    (tmp_path / "small.yaml").write_text(text)
    done = run("small.yaml", "--cluster", "none", "--report", "out", "--quiet")
    assert done.returncode == 1, done.stderr + done.stdout
    assert "FAIL  No granted prolog takes longer than 0.0001 s: 5 violation(s)" in done.stdout
    assert "session" in done.stdout and "active" in done.stdout  # the story
    assert "out/report.html" in done.stdout
    kept = done.stdout.split("logs      ")[1].strip()
    assert (Path(kept) / "state" / "hooks.log").is_file()  # what is needed to find out why
    assert json.loads((tmp_path / "out" / "results.json").read_text())["invariants"]["violations"]


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["nosuch.yaml"], "no such file"),
        (["bad.yaml"], "bad.yaml:2: pools: not a list"),
        (["small.yaml", "--seed", "-1"], "--seed -1"),
        (["small.yaml", "--report", "small.yaml"], "--report small.yaml"),
        (["small.yaml", "--slurm", "fast"], "invalid choice"),
    ],
)
def test_bad_input(run, tmp_path: Path, arguments: list[str], words: str) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "small.yaml").write_text(SMALL)
    (tmp_path / "bad.yaml").write_text("name: x\npools: 3\njobs: [{name: j}]\n")
    done = run(*arguments)
    assert done.returncode == 2
    assert words in done.stderr and "Traceback" not in done.stderr
    assert done.stdout == ""


def test_a_name_that_could_steer_the_terminal_is_escaped(run, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    (tmp_path / "bad.yaml").write_text('name: x\n"\\e[2J\\n\\u202Ekey": 1\n')
    done = run("bad.yaml")
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert r"\x1b[2J\n\u202ekey: unknown key" in done.stderr


def test_a_reader_that_goes_away_changes_no_exit_code(tmp_path: Path) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "small.yaml").write_text(SMALL)
    end, gone = os.pipe()
    os.close(end)
    with os.fdopen(gone, "wb") as pipe:
        done = subprocess.run(
            command("small.yaml", "--cluster", "none", "--quiet"),
            env=environment(tmp_path),
            cwd=tmp_path,
            stdout=pipe,
            stderr=subprocess.PIPE,
            text=True,
            timeout=120,
        )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_temporary_directory_that_no_script_can_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "it's").mkdir()
    (tmp_path / "small.yaml").write_text(SMALL)
    done = subprocess.run(
        command("small.yaml", "--cluster", "none", "--quiet"),
        env={**environment(tmp_path), "TMPDIR": str(tmp_path / "it's")},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 1 and done.stderr.count("\n") == 1
    assert "has a quote in it" in done.stderr and "set TMPDIR; its logs are in" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_leaves_nothing_running(tmp_path: Path, number: signal.Signals) -> None:
    (tmp_path / "tmp").mkdir()
    (tmp_path / "small.yaml").write_text(SMALL.replace("run_time: 0.3", "run_time: 50"))
    with subprocess.Popen(
        command("small.yaml", "--cluster", "none"),
        env=environment(tmp_path),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        me = psutil.Process(process.pid)
        deadline = time.monotonic() + 60
        children: list[psutil.Process] = []
        assert process.stderr is not None
        while "running" not in process.stderr.readline():
            assert time.monotonic() < deadline
        while "sleep" not in {child.info["name"] for child in children}:
            assert time.monotonic() < deadline, children
            below = {child.pid for child in me.children(recursive=True)}
            children = [child for child in psutil.process_iter(["name"]) if child.pid in below]
        process.send_signal(number)
        process.send_signal(number)  # the impatient press twice; what was started is stopped all the same
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in err and "Traceback" not in err
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert alive == [] and len(gone) >= 4  # supervisor, controller, agent, job
    assert list((tmp_path / "tmp").iterdir()) == []
