"""One suite for both back ends: hooks that write down what they see, and a Slurm of either kind around them."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from fake_cluster.slurm.interface import CommandFailed, JobState, Slurm, SlurmSettings
from fake_cluster.slurm.real import RealSlurm
from fake_cluster.slurm.simulated import SimulatedSlurm
from fake_cluster.slurm.trixie_tree import TREE_VARIABLE, tree_missing
from juice_sim.machine import REQUIRE_VARIABLE

LIMIT_S = 90.0

_HOOK = """#!/bin/sh
record={directory}/{kind}.$SLURM_JOB_ID.$SLURM_JOB_RESTART_COUNT.$$
/usr/bin/env -0 > $record.part
echo "$(/bin/date +%s.%N) {kind} begins $SLURM_JOB_ID $SLURM_JOB_RESTART_COUNT $$" >> {directory}/journal
/bin/mv $record.part $record
{body}
echo "$(/bin/date +%s.%N) {kind} ends $SLURM_JOB_ID $SLURM_JOB_RESTART_COUNT $$" >> {directory}/journal
exit ${{RC:-0}}
"""

# To be used as a hook's body: wait, without using the CPU, until the test lets it go on.
UNTIL_GO = "while [ ! -e {directory}/go ]; do /bin/sleep 0.05; done"


class Bench:
    """A Slurm with recording hooks. `prolog` and `epilog` are shell lines; `RC=1` in them sets the exit code."""

    def __init__(self, kind: str, directory: Path) -> None:
        self.kind = kind
        self.directory = directory
        self.records = directory / "records"
        self.records.mkdir()
        self.records.chmod(0o777)
        self._stack = contextlib.ExitStack()
        self.slurm: Slurm

    def start(
        self, prolog: str = "", epilog: str = "", simulated: dict[str, Any] | None = None, **settings: Any
    ) -> Slurm:
        """`simulated`: further arguments of SimulatedSlurm, ignored by the real one."""
        paths = {}
        for kind, body in (("prolog", prolog), ("epilog", epilog)):
            path = self.directory / f"{kind}.sh"
            body = body.replace("{directory}", str(self.records))
            path.write_text(_HOOK.format(directory=self.records, kind=kind, body=body))
            path.chmod(0o755)
            paths[kind] = path
        given = SlurmSettings(**{"extra_conf": ["KillWait=2"], **paths, **settings})
        if self.kind == "simulated":
            slurm: Slurm = SimulatedSlurm(given, **{"kill_wait": 2.0, **(simulated or {})})
        else:
            slurm = RealSlurm(given, prefix=Path(os.environ[TREE_VARIABLE]) if self.kind == "real-24.11" else None)
        self.slurm = self._stack.enter_context(slurm)
        return slurm

    def close(self) -> None:
        self._stack.close()

    def go(self) -> None:
        """Let hooks that wait with UNTIL_GO go on."""
        (self.records / "go").touch()

    def environments(self, kind: str, job_id: int) -> list[dict[str, str]]:
        """The environment of each run of that hook for that job, in the order of their restart counts."""
        found = []
        for path in self.records.glob(f"{kind}.{job_id}.*"):
            if path.suffix == ".part":
                continue
            pairs = [line.partition("=") for line in path.read_text(errors="surrogateescape").split("\0") if line]
            found.append((int(path.name.split(".")[2]), path.stat().st_mtime_ns, {k: v for k, _, v in pairs}))
        return [env for _, _, env in sorted(found, key=lambda item: item[:2])]

    def journal(self, job_id: int | None = None) -> list[str]:
        """`prolog begins 0` lines, in order of time: hook, what, restart count. With `job_id` None: of all jobs."""
        path = self.records / "journal"
        lines = sorted(path.read_text().splitlines()) if path.exists() else []
        words = [line.split() for line in lines]
        return [f"{w[1]} {w[2]} {w[4]}" for w in words if job_id is None or w[3] == str(job_id)]

    def until(self, what: str, holds: Callable[[], Any]) -> Any:
        """Wait until `holds()` is true; fail with slurmctld's log."""
        deadline = time.monotonic() + LIMIT_S
        pause = threading.Event()
        while True:
            with contextlib.suppress(CommandFailed):  # slurmctld may be down for a while
                found = holds()
                if found:
                    return found
            if time.monotonic() > deadline:
                pytest.fail(f"waited in vain until {what}; hooks: {self.journal()}\n{self.slurm.log()[-4000:]}")
            pause.wait(0.05)

    def until_journal(self, job_id: int, line: str, count: int = 1) -> None:
        self.until(f"{count} x {line!r} of job {job_id}", lambda: self.journal(job_id).count(line) >= count)

    def until_epilog(self, job_id: int, restarts: int) -> None:
        """Wait until the epilog has ended. A kill of a job in its prolog kills whatever script of that job runs; now
        and then that is the epilog already, before its first line: 5 of 40 scancels on 22.05, 1 of 40 on 24.11."""
        stillborn = f"JobId={job_id} EpilogSlurmctld killed by signal 9"
        self.until(
            f"the epilog of job {job_id} has ended",
            lambda: (
                f"epilog ends {restarts}" in self.journal(job_id)
                or (self.kind != "simulated" and stillborn in self.slurm.log())
            ),
        )

    def until_state(self, job_id: int, *states: JobState) -> None:
        self.slurm.wait(job_id, lambda job: job.state in states, timeout_s=LIMIT_S)

    def submit(self, body: str = "true", *options: str, **more: Any) -> int:
        """sbatch of a one-line script whose output goes to `out.JOBID` in the test's directory."""
        script = f"#!/bin/sh\n#SBATCH --output={self.directory}/out.%j\n{body}\n"
        return self.slurm.sbatch(script, options, cwd=self.directory, **more)

    def output(self, job_id: int) -> str:
        return (self.directory / f"out.{job_id}").read_text()

    def ended(self, job_id: int) -> Any:
        """The job when it has ended and its epilog with it."""
        return self.slurm.wait(job_id, timeout_s=LIMIT_S)


@pytest.fixture(
    params=[
        "simulated",
        pytest.param("real", marks=pytest.mark.slurm),
        "real-24.11",
    ]
)
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """Each back end in turn: simulated, the Slurm on PATH, and that of the tree in $JUICE_SIM_SLURM_TREE."""
    if request.param == "real-24.11" and (reason := tree_missing()) is not None:
        if "slurm-tree" in os.environ.get(REQUIRE_VARIABLE, ""):
            pytest.fail(f"{REQUIRE_VARIABLE} demands slurm-tree: {reason}", pytrace=False)
        pytest.skip(reason)
    tmp_path.chmod(0o755)
    made = Bench(request.param, tmp_path)
    yield made
    made.close()


@pytest.fixture
def simulated(tmp_path: Path) -> Iterator[Bench]:
    """The simulated back end only: for what it offers beyond the interface."""
    made = Bench("simulated", tmp_path)
    yield made
    made.close()
