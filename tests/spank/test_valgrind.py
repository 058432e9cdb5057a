"""No invalid access and no leak of the plugin's in a real srun: neither in the client nor in slurmstepd."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import SOURCE, Build, JuiceSlurm, make_slurm

pytestmark = [
    pytest.mark.slurm,
    pytest.mark.compiler,
    pytest.mark.slow,
    pytest.mark.valgrind,
    # The programs of a relocated tree have a loader of their own, which valgrind knows nothing of.
    pytest.mark.parametrize("build", ["installed"], indirect=True),
]
SOURCES = {path.name for path in SOURCE.glob("*.c")}
LEAKS = "--leak-check=full --show-leak-kinds=definite,indirect"
VALGRIND = f"valgrind {LEAKS} --keep-debuginfo=yes --num-callers=30"


def is_ours(record: str) -> bool:
    """Slurm's own faults are none of our business, nor what it loses of the copies that it makes for a plugin: of what
    is lost, only what the plugin itself allocated counts (first malloc, then perhaps strdup, then the allocator)."""
    frames = re.findall(r"^==\d+==    (?:at|by) .*\((?:in )?(\S+?)(?::\d+)?\)$", record, re.MULTILINE)
    return bool(SOURCES.intersection(frames[1:3] if "lost in loss record" in record else frames))


def complaints(text: str) -> list[str]:
    """The records of a valgrind log that are about the plugin."""
    return [record for record in re.split(r"\n==\d+== \n", text) if is_ours(record)]


def test_srun(juice_slurm: JuiceSlurm) -> None:
    log = juice_slurm.slurm.layout.work / "valgrind-srun.log"
    options = "--juice-pool=test --juice-vram=1 --juice-vram-strict --juice-match-labels=a=b --juice-tolerates=k=v"
    done = juice_slurm.shell(f'{VALGRIND} --log-file="$1" srun {options} true', str(log))
    assert done.returncode == 0, done.stderr
    text = log.read_text()
    assert "ERROR SUMMARY" in text
    assert complaints(text) == []


def test_refusing_srun(juice_slurm: JuiceSlurm) -> None:
    log = juice_slurm.slurm.layout.work / "valgrind-refused.log"
    done = juice_slurm.shell(f'{VALGRIND} --log-file="$1" srun --juice-pool=a --juice-vram=16Gi true', str(log))
    assert "unknown suffix" in done.stderr
    text = log.read_text()
    assert "ERROR SUMMARY" in text
    assert complaints(text) == []


def test_slurmstepd(open_directory: Callable[[str], Path], build: Build) -> None:
    running = make_slurm(open_directory("state"), build, ["wait=2"])
    logs = running.directory / "valgrind"
    logs.mkdir()
    logs.chmod(0o1777)  # tasks that are forked, and not executed yet, write as their user
    with running.slurm:
        # slurmd starts slurmstepd by this link.
        link = running.slurm.layout.bin / "slurmstepd"
        stepd = link.resolve()
        link.unlink()
        link.write_text(f'#!/bin/sh\nexec {VALGRIND} --trace-children=no --log-file={logs}/%p.log {stepd} "$@"\n')
        link.chmod(0o755)
        script = "echo $JUICE_SESSION_ID; srun true"
        job, output, errors = running.batch(script, "--juice-pool=test", env={"LD_PRELOAD": ""})
        assert (job.state.value, output) == ("COMPLETED", f"session-{job.job_id}\n"), errors
        for pool in ("deny", "nofile", "wrongkey"):
            job, _, errors = running.batch("true", f"--juice-pool={pool}")
            assert job.state.value == "FAILED"
            assert "gets no GPU session" in errors
        running.slurm.wait(running.sbatch("true"))
    texts = [path.read_text() for path in logs.glob("*.log")]
    assert len([text for text in texts if "ERROR SUMMARY" in text]) >= 6
    assert [record for text in texts for record in complaints(text)] == []
