"""Interrupt prologs at random moments, on a real Slurm, and count what is left: `python -m benchmarks trials`.

Three kinds: scancel, slurmctld killed with signal 9, the controller killed with signal 9. A trial is an
interruption that hit a prolog. After each kind `reconcile` runs as the timer runs it; then no session may be left whose
job is gone, and no job may have run without its session. The latter is judged by what the jobs themselves wrote down,
for after a crash slurmctld's own word is up to five seconds old.
"""

from __future__ import annotations

import contextlib
import random
import re
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from fake_cluster.slurm.interface import CommandFailed, JobState
from fake_cluster.world import wait_until
from juice_sim.wire_types import FaultRule

from .slurm_site import Site

GRACE_S = 5.0
SLOW_S = 0.3
"""Half of the requests for a session take this long, so that many interruptions come before and after each."""
KILLED = re.compile(r"JobId=(\d+) (Prolog|Epilog)Slurmctld killed by signal 9")
BEATS = """#!/bin/sh
i=0
while [ $i -lt 6 ]; do
    echo "$(date +%s.%N) $SLURM_JOB_ID ${{SLURM_RESTART_COUNT:-0}} $JUICE_SESSION_ID" >>{beats}
    i=$((i + 1))
    sleep 0.15
done
"""
JOBS_A_KILL = 3
LONGEST_S = 0.6
SETTLE_S = 400.0
SAVED_S = 6.0


@dataclass
class Figures:
    """What came of one kind of trial.

    `trials`: interruptions that hit a prolog, of `interruptions`; `beats`: how often a running job was looked at;
    `left_before` and `left_after`: sessions, journals, session files whose job is gone, before and after `reconcile`;
    `without_session`: beats at which the job's session was not active; `variants`: how often each course was seen.
    """

    name: str
    trials: int = 0
    interruptions: int = 0
    jobs: int = 0
    beats: int = 0
    left_before: list[str] = field(default_factory=list)
    left_after: list[str] = field(default_factory=list)
    without_session: list[str] = field(default_factory=list)
    variants: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0

    @property
    def ok(self) -> bool:
        return not self.left_after and not self.without_session and self.beats > 0

    def saw(self, variant: str, count: int = 1) -> None:
        if count:
            self.variants[variant] = self.variants.get(variant, 0) + count


@dataclass(frozen=True)
class Found:
    """`hit`: instants at which at least one prolog ran; of those prologs `died` have no end, and `ran_on` have one."""

    hit: int
    died: int
    ran_on: int


class Trials:
    """Runs one kind of trial on a site that is up."""

    def __init__(self, site: Site, name: str, count: int, seed: int) -> None:
        self.site = site
        self.count = count
        self.figures = Figures(name)
        self.random = random.Random(seed)
        self.beats_file = site.work_dir / f"beats-{name.replace(' ', '-')}"
        self.script = BEATS.format(beats=self.beats_file)
        self.names: dict[str, int] = {}
        self.cancelled: dict[int, float] = {}  # job id -> when; from then on it may lose its session
        self._log_start = len(site.slurm.log())
        self._begun = 0

    def run(self) -> Figures:
        began = time.monotonic()
        {"scancel": self._scancel, "slurmctld killed": self._slurmctld, "controller killed": self._controller}[
            self.figures.name
        ]()
        self._settle()
        self._judge()
        self.figures.wall_s = time.monotonic() - began
        return self.figures

    # -- interruptions ------------------------------------------------------------------------------------------------

    def submit(self, *options: str) -> int:
        name = f"{self.figures.name.split()[0]}-{len(self.names)}"
        job = self.names[name] = self.site.submit(self.script, *options, name=name)
        self.figures.jobs += 1
        return job

    def moment(self, longest: float) -> None:
        """Wait until a prolog begins, then let a random time go by. A prolog takes 0.1 to 0.6 s here."""
        begun = self._begun
        wait_until(lambda: self._count_begun() > begun, 20.0, interval_s=0.003)
        time.sleep(self.random.uniform(0.0, longest))
        self._begun = self._count_begun()

    def _count_begun(self) -> int:
        return (self.site.directory / "hook-timing.log").read_text(errors="replace").count("start prolog")

    def hits(self) -> int:
        """Prologs that a signal 9 has ended so far."""
        return sum(1 for _, kind in self._kills() if kind == "Prolog")

    def _kills(self) -> list[tuple[int, str]]:
        return [(int(job), kind) for job, kind in KILLED.findall(self.site.slurm.log()[self._log_start :])]

    def _slow_requests(self) -> None:
        with self.site.client() as client:
            client.set_faults(
                FaultRule(
                    name="slow",
                    method="POST",
                    path="/v1/request/session",
                    action="delay",
                    seconds=SLOW_S,
                    probability=0.5,
                )
            )

    def _scancel(self) -> None:
        self._slow_requests()
        while (hit := self.hits()) < self.count and self.figures.interruptions < 6 * self.count:
            job = self.submit()
            self.moment(LONGEST_S)
            self._cancel(job)
            self.figures.interruptions += 1
            if hit % 10 == 0:
                self._timer()
        self.figures.trials = self.hits()
        killed = {"Prolog": 0, "Epilog": 0}
        for _, kind in self._kills():
            killed[kind] += 1
        self.figures.saw("prolog killed", killed["Prolog"])
        self.figures.saw("epilog killed before its end", killed["Epilog"])
        self.figures.saw("job cancelled before or after its prolog", self.figures.interruptions - killed["Prolog"])

    def _slurmctld(self) -> None:
        self._slow_requests()
        # slurmctld saves its state at most every five seconds, and forgets jobs that it has not saved. So most trials
        # are made with jobs that were submitted, held, well before.
        stock = [self.submit("--hold") for _ in range(2 * self.count)]
        time.sleep(SAVED_S)
        killed: list[float] = []
        while (found := self._prologs_at(killed)).hit < self.count and len(killed) < 3 * self.count:
            for _ in range(5):
                released = [stock.pop() for _ in range(min(2, len(stock)))]
                if released:
                    self._scontrol("release", released)
                self.submit()
                self.moment(LONGEST_S)
                with self._slurmctld_down():
                    self.site.slurm.kill_slurmctld(signal.SIGKILL)
                    killed.append(time.time())
            self._timer()
        self.figures.trials, self.figures.interruptions = found.hit, len(killed)
        self.figures.saw("prologs that died with slurmctld", found.died)
        self.figures.saw("prologs that ran on", found.ran_on)

    def _scontrol(self, verb: str, jobs: list[int]) -> None:
        done = self.site.shell(f"scontrol {verb} {' '.join(map(str, jobs))}")
        if done.returncode != 0:
            self.figures.saw(f"scontrol {verb} refused: {done.stdout.strip().splitlines()[-1]}")

    def _cancel(self, job_id: int) -> None:
        self.cancelled.setdefault(job_id, time.time())
        self.site.slurm.scancel(job_id)

    @contextlib.contextmanager
    def _slurmctld_down(self) -> Iterator[None]:
        self.site.slurmctld_up.clear()
        yield
        self.site.slurm.start_slurmctld()
        self.site.slurmctld_up.set()

    def _controller(self) -> None:
        self._slow_requests()
        killed: list[float] = []
        while (found := self._prologs_at(killed)).hit < self.count and len(killed) < 3 * self.count:
            for _ in range(5):
                for _ in range(JOBS_A_KILL):
                    self.submit()
                self.moment(LONGEST_S)
                self.site.service.kill_controller(signal.SIGKILL)
                killed.append(time.time())
                self.site.service.start_controller()
            self._slow_requests()  # faults are not kept
            self._timer()
        self.figures.trials, self.figures.interruptions = found.hit, len(killed)
        self.figures.saw("prologs that ran when the controller died", found.ran_on + found.died)

    def _prologs_at(self, instants: list[float]) -> Found:
        """What prologs ran at these instants. One that has no end died at the first instant after its start."""
        hit: set[float] = set()
        died = ran_on = 0
        for run in self.site.hook_runs():
            if run.hook != "prolog":
                continue
            if run.duration is None:
                hit.update(later := [at for at in instants if at >= run.at][:1])
                died += len(later)
            else:
                hit.update(within := [at for at in instants if run.at - run.duration <= at <= run.at])
                ran_on += len(within)
        return Found(len(hit), died, ran_on)

    def _timer(self) -> None:
        """What the timer does every few minutes. It fails while the controller is down; the next one mends that."""
        done = self.site.timer()
        self.figures.saw("sessions released by reconcile during the trials", _released(done.stdout))

    # -- what came of it ----------------------------------------------------------------------------------------------

    def _settle(self) -> None:
        """Wait until every job has ended, and its epilog. What slurmctld will never end by itself is cancelled, as its
        operator would: jobs that it holds (their launch failed), and ended ones that it takes for running."""
        with self.site.client() as client:
            client.clear_faults()
        held = [job.job_id for job in self.site.slurm.jobs() if "held" in job.reason.lower()]
        if held:
            self._scontrol("release", held)
        deadline = time.monotonic() + SETTLE_S
        patience = time.monotonic() + 45.0
        while True:
            waiting = [job for job in self.site.slurm.jobs() if not job.state.ended]
            if not waiting:
                break
            if time.monotonic() > deadline:
                raise TimeoutError(f"jobs that do not end within {SETTLE_S:g} s: {waiting}")
            for job in waiting:
                stuck = job.state is JobState.PENDING and "held" in job.reason
                if stuck or time.monotonic() > patience:
                    self.figures.saw(
                        "job held: its launch failed" if stuck else "job cancelled: it did not end by itself"
                    )
                    with contextlib.suppress(CommandFailed):  # it has just ended
                        self._cancel(job.job_id)
            time.sleep(0.5)
        wait_until(lambda: not self._hooks_run(), 30.0)
        known = {job.name for job in self.site.slurm.jobs()}
        lost = [name for name in self.names if name not in known]
        self.figures.saw("job forgotten by slurmctld", len(lost))
        ids = list(self.names.values())
        self.figures.saw("job id used twice", len(ids) - len(set(ids)))
        self.figures.saw("requeues", sum(job.restarts for job in self.site.slurm.jobs() if job.name in self.names))

    def _hooks_run(self) -> bool:
        return any(
            run.duration is None and time.time() - run.at < 20.0 and run.verdict != "killed"
            for run in self.site.hook_runs()
        )

    def _judge(self) -> None:
        self.figures.left_before = self.site.leftovers()
        time.sleep(GRACE_S + 1.0)
        done = self.site.timer()
        if done.returncode != 0:
            raise RuntimeError(f"reconcile failed: {done.stdout.strip()}")
        wait_until(lambda: not self.site.leftovers(), 10.0)  # agents report the end of a session a moment later
        self.figures.left_after = self.site.leftovers()
        self.figures.without_session = list(self._uncovered())

    def _uncovered(self) -> Iterator[str]:
        """Beats of jobs at which the job's session was not active, by the controller's own list.

        The epilog of a job that is cancelled starts at once, while the job's processes still get KillWait seconds to
        end. What they do without the session then is their affair.
        """
        with self.site.client() as client:
            sessions = {session.id: session for session in client.sessions(everything=True)}
        for line in self.beats_file.read_text().splitlines() if self.beats_file.exists() else ():
            at, job, restart, *session_id = line.split()
            self.figures.beats += 1
            if float(at) >= self.cancelled.get(int(job), float("inf")):
                continue
            session = sessions.get(session_id[0]) if session_id else None
            if session is None:
                yield f"job {job} start {restart}: no session"
                continue
            closed = (
                datetime.fromisoformat(session.closed_at.replace("Z", "+00:00")).timestamp()
                if session.closed_at
                else None
            )
            if closed is not None and float(at) > closed + 0.05:
                late = f"{float(at) - closed:.2f} s before ({session.close_reason})"
                yield f"job {job} start {restart}: its session was closed {late}"


def _released(text: str) -> int:
    return sum(int(number) for number in re.findall(r"reconcile: (\d+) session\(s\) released", text))


KINDS = ("scancel", "slurmctld killed", "controller killed")


def measure(
    count: int = 100, kinds: tuple[str, ...] = KINDS, seed: int = 1, tell: Callable[[str], None] = print
) -> list[Figures]:
    """Run `count` trials of each kind, each on a site of its own."""
    found = []
    for kind in kinds:
        with Site(agents=2, gpus=8, nodes=4, cpus_per_node=32, grace=GRACE_S, timed=True) as site:
            try:
                found.append(Trials(site, kind, count, seed).run())
            finally:
                directory = site.directory
        if found[-1].ok:
            site.remove()
        else:
            tell(f"{kind}: logs are in {directory}")
    return found
