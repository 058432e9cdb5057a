"""The wrapper around a hook: slurmctld sees what it would see without it, and each run is told."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import pytest

from fake_cluster.hook_timing import boot_time, hook_runs, read_hook_log, wrap_hook


def run_hook(tmp_path: Path, body: str, kind: str = "prolog", **env: str) -> subprocess.CompletedProcess[bytes]:
    hook = tmp_path / "hook.sh"
    hook.write_text(f"#!/bin/sh\n{body}\n")
    hook.chmod(0o755)
    wrapper = wrap_hook(tmp_path, kind, hook, tmp_path / "timing.log")
    return subprocess.run(
        [wrapper], env={"SLURM_JOB_ID": "7", **env}, capture_output=True, stdin=subprocess.DEVNULL, timeout=30
    )


@pytest.mark.parametrize("code", [0, 1, 7, 127])
def test_exit_codes_and_output_are_passed_on(tmp_path: Path, code: int) -> None:
    done = run_hook(tmp_path, f"echo out; echo err >&2; exit {code}")
    assert (done.returncode, done.stdout, done.stderr) == (code, b"out\n", b"err\n")


@pytest.mark.parametrize("name", ["KILL", "TERM"])
def test_a_signal_is_passed_on(tmp_path: Path, name: str) -> None:
    assert run_hook(tmp_path, f"kill -s {name} $$").returncode == -getattr(signal, f"SIG{name}")


def test_blocked_signals_do_not_hang_it(tmp_path: Path) -> None:
    """slurmctld blocks SIGCHLD, and its hooks inherit that."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM})
    try:
        assert run_hook(tmp_path, "/bin/true; exit 3").returncode == 3
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def test_the_environment_is_untouched(tmp_path: Path) -> None:
    plain = subprocess.run(["/usr/bin/env"], env={"SLURM_JOB_ID": "7", "A": "x y"}, capture_output=True).stdout
    seen = run_hook(tmp_path, "exec /usr/bin/env", A="x y").stdout
    extra = set(seen.splitlines()) - set(plain.splitlines())
    assert {line.split(b"=")[0] for line in extra} <= {b"PWD", b"OLDPWD", b"_", b"SHLVL"}


def test_what_the_logs_tell_of_each_run(tmp_path: Path) -> None:
    said = [
        ("prolog job=7 start=0", "granted 1 GPU(s) of pool 'test', session 0123abcd-..."),
        ("prolog job=8 start=2", "ERROR exit 1, Slurm will requeue the job: no GPU within 2 s"),
        ("prolog job=9 start=0", "denied: unknown pool"),
        ("epilog job=7 start=0", "released session 0123abcd-..."),
    ]
    timing, log = [], []
    for number, (label, text) in enumerate(said):
        pid, kind, job = 100 + number, label.split()[0], label.split("job=")[1].split()[0]
        restarts = label.split("start=")[1]
        code = 1 if "exit 1" in text else 0
        timing.append(f"start {kind} {job} {restarts} {pid - 1} 50.00 juice=1 {pid}")
        timing.append(f"end {kind} {job} {restarts} {pid - 1} 50.00 juice=1 50.25 {code}")
        log.append(f"2026-01-01T00:00:00Z {label}[{pid}] {text}")
    timing += ["start prolog 10 0 200 60.00 juice=1 300", "start prolog 11 0 201 61.00 juice= 301", "torn line"]
    timing += ["end prolog 11 0 201 61.00 juice= 61.01 0", "end prolog 12 0 202 61.00 juice= 61.01 0"]
    runs = hook_runs("\n".join(timing), read_hook_log("\n".join([*log, "something else"])), 1000.0)
    told = [(run.hook, run.job_id, run.verdict, run.restarts) for run in runs]
    assert told == [
        ("prolog", 7, "granted", 0),
        ("prolog", 8, "retry", 2),
        ("prolog", 9, "denied", 0),
        ("epilog", 7, "released", 0),
        ("prolog", 10, "killed", 0),
        ("prolog", 11, "nothing", 0),
    ]
    assert runs[0].session_id == "0123abcd" and runs[0].duration == pytest.approx(0.25)
    assert runs[0].at == pytest.approx(1050.25) and runs[4].duration is None
    assert "no GPU within 2 s" in runs[1].detail


def test_a_real_run_is_found_in_its_log(tmp_path: Path) -> None:
    run_hook(tmp_path, "exit 1", SPANK_JUICE_POOL="", SLURM_JOB_RESTART_COUNT="3")
    (run,) = hook_runs((tmp_path / "timing.log").read_text(), [], boot_time())
    assert (run.job_id, run.restarts, run.verdict) == (7, 3, "retry")


def test_a_path_that_cannot_be_quoted(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="quote"):
        wrap_hook(tmp_path, "prolog", tmp_path / "it's.sh", tmp_path / "log")
