"""Records of runs made by hand: tests plant in them what a correct run never has."""

from __future__ import annotations

import heapq
import random
from typing import Any

from fake_cluster.history import (
    ControllerEvent,
    Entry,
    FaultEnded,
    FaultInjected,
    History,
    HookRun,
    JobObserved,
    JobSubmitted,
    RunEnded,
    RunStarted,
)
from fake_cluster.slurm.interface import JobState
from juice_sim.core import events as e
from juice_sim.core.model import AgentState, Gpu, GpuGrant, GpuRequirement, Requirements

GIB = 1024**3
START = 1_700_000_000.0


class Made:
    """Adds entries at times counted from the start of the run, and gives the `History`."""

    def __init__(self, pool: str = "test") -> None:
        self.entries: list[Entry] = [RunStarted(START, "made", 1, "none", "simulated", "0")]
        self.held_until: dict[int, float] = {}
        self.event(e.PoolCreated(START, f"pool-{pool}", pool))

    def event(self, event: e.Event) -> None:
        self.entries.append(ControllerEvent(0, event))  # numbered by time in `history`

    def agent(self, name: str = "a1", gpus: int = 1, vram: int = 24 * GIB, at: float = 0.0, pool: str = "test") -> str:
        cards = tuple(Gpu(index, f"{name}-{index}", "A10", vram) for index in range(gpus))
        self.event(
            e.AgentRegistered(START + at, f"id-{name}", name, "127.0.0.1:1", "1", f"pool-{pool}", cards, {}, {}, "u")
        )
        return f"id-{name}"

    def agent_state(self, name: str, state: AgentState, at: float, reason: str = "") -> None:
        self.event(e.AgentStateChanged(START + at, f"id-{name}", state, reason))

    def request(
        self, session: str, job: int, at: float, vram: int = 0, count: int = 1, restarts: int = 0, key: str = ""
    ) -> None:
        wanted = Requirements(tuple(GpuRequirement(vram) for _ in range(count)), "pool-test")
        key = key or f"key-{session}"
        self.event(e.SessionQueued(START + at, session, wanted, "hooks", key, f"juicesim/{job}/{restarts}", None))

    def assign(self, session: str, at: float, grants: list[tuple[int, int, bool]], agent: str = "a1") -> None:
        self.event(e.SessionAssigned(START + at, session, f"id-{agent}", tuple(GpuGrant(*grant) for grant in grants)))

    def activate(self, session: str, at: float, agent: str = "a1") -> None:
        self.event(e.SessionActivated(START + at, session, f"id-{agent}"))

    def close(self, session: str, at: float, reason: str = "deleted by its owner") -> None:
        self.event(e.SessionClosed(START + at, session, reason))

    def session(
        self, session: str, job: int, start: float, end: float | None, vram: int = 0, index: int = 0, **more: Any
    ) -> None:
        """A session that is granted at once: one GPU of agent a1, whole (24 GiB) or a slice."""
        self.request(session, job, start, vram, **more)
        self.assign(session, start + 0.01, [(index, vram or 24 * GIB, vram == 0)])
        self.activate(session, start + 0.02)
        if end is not None:
            self.close(session, end)

    def submitted(self, job: int, at: float, group: str = "g", tasks: int = 1, error: str = "") -> None:
        self.entries.append(JobSubmitted(START + at, group, 0, job, 1.0, error, tasks))

    def job(self, job: int, at: float, state: JobState, group: str = "g", **more: Any) -> None:
        more.setdefault("juice", {"JUICE_POOL": "test"})
        held = self.held_until.get(job, 0.0)
        self.held_until[job] = START + at
        for name in ("submit_time", "start_time", "end_time"):
            if name in more:
                more[name] = START + more[name]
        self.entries.append(
            JobObserved(START + at, START + at - 0.01, held and START + at - 0.05, job, group, state, group, **more)
        )

    def ran(
        self,
        job: int,
        start: float,
        end: float,
        state: JobState = JobState.COMPLETED,
        group: str = "g",
        restarts: int = 0,
        submit: float = 0.0,
    ) -> None:
        """A job that runs once, with its states as a poll sees them."""
        times = {"submit_time": submit, "restarts": restarts}
        if not restarts:
            self.submitted(job, submit, group)
            self.job(job, submit + 0.01, JobState.PENDING, group, submit_time=submit)
        self.job(job, start, JobState.RUNNING, group, start_time=start, **times)
        self.job(job, end, state, group, start_time=start, end_time=end, **times)

    def prolog(self, job: int, at: float, verdict: str = "granted", duration: float = 0.1, session: str = "") -> None:
        self.entries.append(HookRun(START + at, "prolog", job, verdict, duration, 0, session))

    def fault(
        self, at: float, position: int = 0, kind: str = "agent_dies", target: str = "", until: float | None = None
    ) -> None:
        self.entries.append(FaultInjected(START + at, position, kind, kind.replace("_", " "), target))
        if until is not None:
            self.entries.append(FaultEnded(START + until, position, kind, target))

    def history(self, end: float = 100.0, reason: str = "all jobs ended") -> History:
        events = sorted(
            (entry.event for entry in self.entries if isinstance(entry, ControllerEvent)), key=lambda event: event.at
        )
        numbered = [ControllerEvent(number, event) for number, event in enumerate(events, 1)]
        others = [entry for entry in self.entries if not isinstance(entry, ControllerEvent)]
        return History(entries=[*others, *numbered, RunEnded(START + end, reason)])


def large(jobs: int = 300, gpus: int = 8, seed: int = 1, load: float = 1.0) -> History:
    """A correct run of many jobs: slices and whole GPUs, requeues, faults; first fit, drawn from the seed."""
    source = random.Random(seed)
    made = Made()
    hosts = [f"gpu{number}" for number in range(1, -(-gpus // 4) + 1)]
    for host in hosts:
        made.agent(host, 4)
    free = {(host, index): 24 * GIB for host in hosts for index in range(4)}
    submit: dict[int, float] = {}
    begun: dict[int, tuple[float, str, tuple[str, int], int]] = {}
    agenda: list[tuple[float, int, str, int]] = []  # time, job, what, restarts
    now = 0.0
    for job in range(1, jobs + 1):
        now += source.expovariate(load * gpus / 2.2)
        submit[job] = now
        heapq.heappush(agenda, (now, job, "submit", 0))
    sizes = {job: source.choice([0, 4, 8, 12]) * GIB for job in submit}
    last = 0.0
    while agenda:
        at, job, what, restarts = heapq.heappop(agenda)
        last = max(last, at)
        vram, need = sizes[job], sizes[job] or 24 * GIB
        group = "whole" if vram == 0 else f"slice{vram // GIB}"
        if what == "end":
            start, session, place, held = begun.pop(job)
            made.close(session, at)
            free[place] += held
            made.job(job, at, JobState.COMPLETED, group, start_time=start, end_time=at, restarts=restarts)
            continue
        if what == "submit":
            made.submitted(job, at, group)
            made.job(job, at + 0.01, JobState.PENDING, group, submit_time=at)
        room = next((key for key, rest in free.items() if rest >= need), None)
        took = source.uniform(0.1, 0.6)
        if room is None:
            made.job(job, at + took, JobState.PENDING, group, submit_time=at, restarts=restarts + 1)
            made.prolog(job, at + took, "retry", took)
            heapq.heappush(agenda, (at + 6.0, job, "again", restarts + 1))
            continue
        session = f"s{job:05d}-0000"
        made.request(session, job, at, vram, restarts=restarts)
        made.assign(session, at + 0.01, [(room[1], need, vram == 0)], room[0])
        made.activate(session, at + 0.02, room[0])
        made.prolog(job, at + took, "granted", took, session)
        made.job(job, at + took, JobState.RUNNING, group, start_time=at + took, submit_time=at, restarts=restarts)
        free[room] -= need
        begun[job] = (at + took, session, room, need)
        heapq.heappush(agenda, (at + took + source.lognormvariate(1.0, 0.6), job, "end", restarts))
    kinds = ["agent_dies", "controller_killed", "replies"]
    for number in range(5):
        at = last * (number + 1) / 7
        made.fault(at, number, kinds[number % 3], f"gpu{number}", at + 3)
    return made.history(last + 1)
