"""`juice-sim fuzz`: deterministic simulation with injected faults, many seeds."""

from __future__ import annotations

import argparse
import sys
import time
from typing import Any

STORIES = 3  # failing seeds whose story is told
STORY_LINES = 60


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "fuzz",
        help="deterministic simulation with injected faults, many seeds",
        description="Run the real hooks, controller, agents and Slurm rules in virtual time, with faults drawn from "
        "each seed, and check that no GPU is lost or handed out twice. The same seed gives the same run, byte for "
        "byte. A failing run is cut down, its story told, and the command shown that replays it. Exit code: 0 when all "
        "seeds are fine, 1 when one fails, 2 for bad input.",
    )
    parser.add_argument("--seeds", type=int, metavar="N", help="how many seeds (default: 100, or no limit with --time)")
    parser.add_argument("--first-seed", type=int, default=1, metavar="K", help="default: %(default)s")
    parser.add_argument("--time", type=float, metavar="S", help="begin no further seed after so many seconds")
    parser.add_argument("--jobs", type=int, metavar="N", help="Slurm jobs in each run (default: drawn from the seed)")
    parser.add_argument("--workers", type=int, default=0, metavar="N", help="processes (default: one per core)")
    parser.add_argument("--ray", default="", metavar="ADDRESS", help="run the seeds as tasks of this Ray cluster")
    parser.add_argument("--trace", action="store_true", help="one line per event of one seed, then its violations")
    parser.add_argument("--json", action="store_true", help="one JSON object per failing seed, and one as summary")
    parser.add_argument("--no-shrink", action="store_true", help="do not cut failing runs down")
    parser.add_argument("--fail-fast", action="store_true", help="stop at the first failing seed")
    parser.add_argument(
        "--keep-going", action="store_true", help=f"go on to the last seed, also after more than {STORIES} failing ones"
    )
    for name, what in (("jobs", "jobs (numbers)"), ("faults", "faults (numbers)"), ("mishaps", "mishaps (names)")):
        parser.add_argument(
            f"--without-{name}", default="", metavar="LIST", help=f"leave out these {what}, separated by commas"
        )
    parser.set_defaults(parser=parser)


def _refuse(text: str) -> int:
    print(f"juice-sim fuzz: error: {text}", file=sys.stderr)
    return 2


def run(args: argparse.Namespace) -> int:
    """Run the seeds; returns the exit code."""
    from fake_cluster.simulation import fuzz
    from fake_cluster.simulation.plan import Chances

    if args.seeds is not None and args.seeds < 1:
        return _refuse(f"--seeds {args.seeds}: accepted: a whole number from 1")
    if args.time is not None and args.time <= 0:
        return _refuse(f"--time {args.time:g}: accepted: more than 0 seconds")
    if args.jobs is not None and not 1 <= args.jobs <= 500:
        return _refuse(f"--jobs {args.jobs}: accepted: a whole number from 1 to 500; for more, use juice-sim simulate")
    if args.workers < 0:
        return _refuse(f"--workers {args.workers}: accepted: a whole number from 0 (one per core)")
    try:
        cut = fuzz.Cut(_numbers(args.without_jobs), _numbers(args.without_faults), _names(args.without_mishaps))
    except ValueError as error:
        return _refuse(f"--without-jobs, --without-faults: {error}; accepted: numbers separated by commas")
    known = set(Chances.__dataclass_fields__)
    unknown = [name for name in cut.chances if name not in known]
    if unknown:
        return _refuse(f"--without-mishaps {unknown[0]}: accepted: {', '.join(sorted(known))}")
    count = args.seeds
    if count is None and args.time is None:
        count = 1 if args.trace else 100
    if args.trace or cut != fuzz.Cut():
        if count not in (None, 1):
            return _refuse(
                f"--trace and --without-... are for one seed, and --seeds is {count}; give --first-seed K alone"
            )
        return _one(args, fuzz, cut)
    return _many(args, fuzz, count)


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word.strip())


def _names(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(",") if word.strip())


def _one(args: argparse.Namespace, fuzz: Any, cut: Any) -> int:
    plan = fuzz.planned(args.first_seed, args.jobs, cut)
    sink = (lambda line: print(line)) if args.trace else None
    violations, counts = fuzz.run_plan(plan, sink)
    verdict = fuzz.Verdict(args.first_seed, fuzz.plain(violations), counts, cut)
    if not verdict.ok:
        _tell(args, fuzz, verdict)
    _summary(args, 1, [] if verdict.ok else [args.first_seed], counts, None)
    return 0 if verdict.ok else 1


def _many(args: argparse.Namespace, fuzz: Any, count: int | None) -> int:
    began = time.monotonic()
    until = began + args.time if args.time is not None else None
    seeds = fuzz.chosen(args.first_seed, count, until)
    totals: dict[str, int] = {}
    failed = []
    done = 0
    shown = time.monotonic()
    for verdict in fuzz.run_seeds(seeds, args.jobs, args.workers, args.ray):
        done += 1
        for name, value in verdict.counts.items():
            totals[name] = totals.get(name, 0) + value
        if not verdict.ok:
            failed.append(verdict.seed)
            if len(failed) <= STORIES:
                _tell(args, fuzz, verdict if args.no_shrink else fuzz.shrink(verdict, args.jobs))
            if args.fail_fast or (len(failed) > STORIES and not args.keep_going):
                break
        if sys.stderr.isatty() and time.monotonic() - shown > 0.5:
            shown = time.monotonic()
            of = f" of {count}" if count is not None else ""
            print(f"\r{done}{of} seeds, {len(failed)} failed ", end="", file=sys.stderr, flush=True)
    if sys.stderr.isatty():
        print("\r" + " " * 40 + "\r", end="", file=sys.stderr)
    _summary(args, done, failed, totals, time.monotonic() - began)
    return 1 if failed else 0


def _tell(args: argparse.Namespace, fuzz: Any, verdict: Any) -> None:
    """The story of a failing seed."""
    options = [f"--first-seed {verdict.seed}"]
    if args.jobs is not None:
        options.append(f"--jobs {args.jobs}")
    if verdict.cut.options():
        options.append(verdict.cut.options())
    replay = f"juice-sim fuzz {' '.join(options)} --trace"
    check, subject, message, story = verdict.violations[0]
    if args.json:
        import json

        value = {
            "seed": verdict.seed, "check": check, "subject": subject, "message": message, "story": list(story),
            "violations": len(verdict.violations),
            "checks": sorted({v[0] for v in verdict.violations}), "replay": replay,
        }  # fmt: skip
        print(json.dumps(value), flush=True)
        return
    print(f"seed {verdict.seed} FAILS: {check}: {subject}: {message}")
    others = sorted({violation[0] for violation in verdict.violations[1:]} - {check})
    if others:
        print(f"  also violated: {', '.join(others)}")
    for line in fuzz.described(fuzz.planned(verdict.seed, args.jobs, verdict.cut)):
        print(f"  {line}")
    for line in story[:STORY_LINES]:
        print(f"  {line[:200]}")
    if len(story) > STORY_LINES:
        print(f"  ... {len(story) - STORY_LINES} more lines; see the trace")
    print(f"  replay: {replay}\n", flush=True)


def _summary(
    args: argparse.Namespace, done: int, failed: list[int], totals: dict[str, int], seconds: float | None
) -> None:
    if args.json:
        import json

        value: dict[str, Any] = {"seeds": done, "failed": failed, **totals}
        if seconds is not None:
            value["seconds"] = round(seconds, 1)
        print(json.dumps(value), flush=True)
        return
    took = f" in {seconds:.0f} s" if seconds is not None else ""
    what = ", ".join(f"{value} {name}" for name, value in totals.items())
    verdict = f"{len(failed)} FAILED ({', '.join(str(seed) for seed in failed[:20])})" if failed else "no violation"
    print(f"{done} seed{'s' if done != 1 else ''}{took}: {verdict}" + (f"; {what}" if what else ""), flush=True)
