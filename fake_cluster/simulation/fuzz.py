"""Many seeds: run, check, cut a failing run down, tell its story. On all cores, or as Ray tasks.

A verdict is plain data, so that it can come from another process or machine.
"""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..checks import Violation
from .checks import check
from .plan import Plan, draw
from .world import World

SHRINK_S = 60.0


@dataclass(frozen=True)
class Cut:
    """What is left out of a seed's plan: numbers of jobs and faults, names of mishaps."""

    jobs: tuple[int, ...] = ()
    faults: tuple[int, ...] = ()
    chances: tuple[str, ...] = ()

    def options(self) -> str:
        """The options that leave it out."""
        words = []
        for option, values in (("jobs", self.jobs), ("faults", self.faults), ("mishaps", self.chances)):
            if values:
                words.append(f"--without-{option} {','.join(str(value) for value in values)}")
        return " ".join(words)


@dataclass(frozen=True)
class Verdict:
    """What came of one seed. `violations` are (check, subject, message, story); empty: the seed is fine."""

    seed: int
    violations: tuple[tuple[str, str, str, tuple[str, ...]], ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    cut: Cut = field(default_factory=Cut)
    plan: str = ""

    @property
    def ok(self) -> bool:
        return not self.violations


def planned(seed: int, jobs: int | None = None, cut: Cut | None = None) -> Plan:
    """The plan of a seed, less what the cut leaves out."""
    plan = draw(seed, jobs)
    return plan if cut is None else plan.without(cut.jobs, cut.faults, cut.chances)


def run_plan(plan: Plan, trace: Callable[[str], None] | None = None) -> tuple[list[Violation], dict[str, int]]:
    """Run a plan and check it: (violations, what happened in figures)."""
    world = World(plan, trace)
    try:
        record = world.run()
    except Exception as error:  # a fault of ours is a finding too, with the seed that shows it
        where = "".join(traceback.format_exception(type(error), error, error.__traceback__)[-4:])
        return [Violation("simulator", "run", f"{type(error).__name__}: {error}", None, tuple(where.splitlines()))], {}
    violations = check(plan, record)
    counts = {
        "jobs": len(record.asked),
        "hooks": len(record.hooks),
        "sessions": sum(type(event).__name__ == "SessionQueued" for _, event in record.events),
        "faults": len(plan.faults),
        "events": world.kernel.events,
        "killed hooks": sum(end.killed for end in record.hooks),
    }
    return violations, counts


def run_seed(seed: int, jobs: int | None = None, cut: Cut | None = None) -> Verdict:
    """Run one seed and check it."""
    cut = cut or Cut()
    violations, counts = run_plan(planned(seed, jobs, cut))
    return Verdict(seed, plain(violations), counts, cut)


def plain(violations: Iterable[Violation]) -> tuple[tuple[str, str, str, tuple[str, ...]], ...]:
    return tuple((v.check, v.subject, v.message, v.story) for v in violations)


def run_seeds(
    seeds: Iterable[int], jobs: int | None = None, workers: int = 0, ray_address: str = ""
) -> Iterator[Verdict]:
    """Verdicts in the order of the seeds, as they come. `workers` 0: one per core. `ray_address`: as tasks there."""
    if ray_address:
        yield from _on_ray(seeds, jobs, ray_address)
        return
    workers = workers or multiprocessing.cpu_count()
    if workers == 1:
        for seed in seeds:
            yield run_seed(seed, jobs)
        return
    # Spawned, not forked: nothing of this process (threads of a console, an open trace) may leak into a run.
    with multiprocessing.get_context("spawn").Pool(workers, maxtasksperchild=200) as pool:
        under_way: list[Any] = []
        for seed in seeds:  # taken only as there is room, since what a time limit allows is not known before
            under_way.append(pool.apply_async(run_seed, (seed, jobs)))
            if len(under_way) >= 4 * workers:
                yield under_way.pop(0).get()
        for result in under_way:
            yield result.get()


def _on_ray(seeds: Iterable[int], jobs: int | None, address: str) -> Iterator[Verdict]:
    import ray

    ray.init(address=address, log_to_driver=False)
    try:
        remote = ray.remote(run_seed)
        source = iter(seeds)
        room = int(ray.cluster_resources().get("CPU", 1)) * 2
        under_way: list[Any] = []
        for seed in source:
            under_way.append(remote.remote(seed, jobs))
            if len(under_way) >= room:
                yield ray.get(under_way.pop(0))
        for reference in under_way:
            yield ray.get(reference)
    finally:
        ray.shutdown()


def shrink(verdict: Verdict, jobs: int | None = None, limit_s: float = SHRINK_S) -> Verdict:
    """A smaller run that violates the same check: mishaps, faults and jobs are left out, by halves and then one by one,
    as long as the violation stays. Takes `limit_s` seconds at most."""
    wanted = verdict.violations[0][0]
    deadline = time.monotonic() + limit_s
    best = verdict
    plan = planned(verdict.seed, jobs, verdict.cut)

    def still_fails(cut: Cut) -> bool:
        nonlocal best
        violations, counts = run_plan(planned(verdict.seed, jobs, cut))
        same = [violation for violation in violations if violation.check == wanted]
        if same:
            best = Verdict(verdict.seed, plain(same), counts, cut)
        return bool(same)

    for what, things in (
        ("chances", plan.mishaps),
        ("faults", [fault.number for fault in plan.faults]),
        ("jobs", [job.number for job in plan.jobs]),
    ):
        _drop(what, list(things), lambda: best.cut, still_fails, deadline)
    return best


def _drop(
    what: str,
    things: list[Any],
    current: Callable[[], Cut],
    still_fails: Callable[[Cut], bool],
    deadline: float,
) -> None:
    """Leave out as many of the things as the violation survives."""
    size = len(things)
    while size and time.monotonic() < deadline:
        position = 0
        while position < len(things) and time.monotonic() < deadline:
            part = things[position : position + size]
            cut = current()
            fewer = Cut(**{**cut.__dict__, what: (*getattr(cut, what), *part)})
            if still_fails(fewer):
                del things[position : position + size]
            else:
                position += size
        size //= 2


def trace_lines(plan: Plan, sink: Callable[[str], None]) -> list[Violation]:
    """Run a plan and give each line of its trace to `sink`; its violations."""
    violations, _ = run_plan(plan, sink)
    return violations


def described(plan: Plan) -> list[str]:
    """A plan in a few lines, for people."""
    pools = "; ".join(f"{p.name}: {p.agents} agents with {p.gpus} GPUs of {p.vram} bytes" for p in plan.pools)
    lines = [
        f"pools     {pools}",
        f"slurm     {plan.nodes} nodes of {plan.cpus_per_node} CPUs, cred_expire {plan.cred_expire} s"
        + (f", PrologEpilogTimeout {plan.prolog_epilog_timeout:g} s" if plan.prolog_epilog_timeout else "")
        + (", forgets up to 5 s when killed" if plan.forgetful else ""),
        f"hooks     JUICE_WAIT {plan.wait:g} s, reconcile every {plan.reconcile_every:g} s",
        f"jobs      {len(plan.jobs)}: " + ", ".join(f"#{job.number}" for job in plan.jobs[:40]),
    ]
    lines += [f"fault     {fault}" for fault in plan.faults]
    mishaps = ", ".join(f"{name} {getattr(plan.chances, name):g}" for name in plan.mishaps)
    return [*lines, f"mishaps   {mishaps or 'none'}"]


def chosen(first: int, count: int | None, until: float | None) -> Iterator[int]:
    """The seeds to run: `count` from `first`, or as many as begin before `until` (monotonic clock of the caller)."""
    number = first
    while (count is None or number < first + count) and (until is None or time.monotonic() < until):
        yield number
        number += 1
