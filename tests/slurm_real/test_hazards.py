"""What only a real slurmctld does, and what the hooks have to survive: docs/slurm-observed.md, "Hazards"."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from fake_cluster.slurm.interface import JobState
from fake_cluster.slurm.real import RealSlurm

from .processes import eventually

pytestmark = pytest.mark.slurm
MakeSlurm = Callable[..., RealSlurm]

TRACE = 'echo "{kind} $SLURM_JOB_ID $SLURM_JOB_RESTART_COUNT" >> {directory}/trace'


class Hooks:
    """A prolog and an epilog that write each start to one file; the prolog goes on when the file `go` is there."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.prolog = self._script("prolog", f"while [ ! -e {directory}/go ]; do /bin/sleep 0.02; done")
        self.epilog = self._script("epilog", ":")

    def _script(self, kind: str, body: str) -> Path:
        path = self.directory / kind
        path.write_text(f"#!/bin/sh\n{TRACE.format(kind=kind, directory=self.directory)}\n{body}\n")
        path.chmod(0o755)
        return path

    def go(self) -> None:
        (self.directory / "go").touch()

    def hold(self) -> None:
        (self.directory / "go").unlink()

    def seen(self) -> list[str]:
        path = self.directory / "trace"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def hooks(tmp_path: Path) -> Hooks:
    return Hooks(tmp_path)


def test_a_crash_forgets_a_new_job_and_gives_its_id_to_another(make_slurm: MakeSlurm, hooks: Hooks) -> None:
    """slurmctld saves at most every 5 s. On a machine that is slower than that, it may have saved; then again."""
    slurm = make_slurm(nodes=1, prolog=hooks.prolog, epilog=hooks.epilog)
    for _ in range(5):
        hooks.go()
        slurm.wait(slurm.sbatch("true"))  # has the state saved; the next saving is 5 s away
        hooks.hold()
        lost = slurm.sbatch("true")
        eventually(lambda job=lost: f"prolog {job} 0" in hooks.seen(), "the prolog runs")
        slurm.kill_slurmctld(signal.SIGKILL)
        slurm.start_slurmctld()
        if lost not in [job.job_id for job in slurm.jobs()]:
            break
        hooks.go()
        slurm.wait(lost)
    else:
        pytest.fail("slurmctld never forgot a job")
    hooks.go()
    other = slurm.sbatch("true", ["--job-name=other"])
    assert other == lost
    assert slurm.wait(other).name == "other"
    assert hooks.seen().count(f"prolog {lost} 0") == 2  # for two different jobs


def test_a_crash_runs_hooks_of_ended_jobs_again(make_slurm: MakeSlurm, hooks: Hooks) -> None:
    """What slurmctld had not saved has not happened: jobs that had ended are waiting or completing again."""
    slurm = make_slurm(nodes=1, prolog=hooks.prolog, epilog=hooks.epilog)
    hooks.go()
    for _ in range(8):
        for script in ("true", "sleep 1"):
            slurm.wait(slurm.sbatch(script))
        before = hooks.seen()
        slurm.kill_slurmctld(signal.SIGKILL)
        slurm.start_slurmctld()
        for job in slurm.jobs():
            slurm.wait(job.job_id)
        if [line for line in hooks.seen()[len(before) :] if line.startswith("epilog") and line in before]:
            break
    else:
        pytest.fail(f"no epilog ran twice: {hooks.seen()}")


def test_a_prolog_that_is_gone_lets_jobs_run(make_slurm: MakeSlurm, hooks: Hooks) -> None:
    slurm = make_slurm(nodes=1, prolog=hooks.prolog, epilog=hooks.epilog)
    hooks.prolog.unlink()
    job = slurm.wait(slurm.sbatch("true"))
    assert job.state is JobState.COMPLETED
    assert "PrologSlurmctld can not be executed" in slurm.log()
    eventually(lambda: hooks.seen() == [f"epilog {job.job_id} 0"], "only the epilog ran")
