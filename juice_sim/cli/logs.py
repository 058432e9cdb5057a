"""`juice-sim logs`: what controller, agents, Slurm and hooks say."""

from __future__ import annotations

import argparse
import sys
from typing import Any

SOURCES = ("controller", "agents", "hooks", "slurmctld", "slurmd", "munged", "sandbox")


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "logs",
        help="the logs of the sandbox",
        description="Show the ends of the sandbox's logs, or of the chosen ones; with --follow also what is added.",
    )
    parser.add_argument("source", nargs="*", metavar="SOURCE", help=f"{', '.join(SOURCES)} (default: all)")
    parser.add_argument("--name", default=None, help="name of the sandbox (default: the only one, or `default`)")
    parser.add_argument("-n", "--lines", type=int, default=20, metavar="N", help="lines of each (default: %(default)s)")
    parser.add_argument("-f", "--follow", action="store_true", help="go on until the sandbox is down, or Ctrl-C")
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace) -> int:
    """Print them; returns the exit code."""
    from fake_cluster.sandbox.log_files import Follower, log_files, tail
    from fake_cluster.sandbox.places import NoSandbox, find
    from fake_cluster.sandbox.spec import BadSpec

    try:
        unknown = [source for source in args.source if source not in SOURCES]
        if unknown:
            raise BadSpec(f"{unknown[0]!r} is no log; accepted: {', '.join(SOURCES)}")
        if args.lines < 0:
            raise BadSpec(f"--lines {args.lines}: accepted: 0 or more")
        place = find(args.name)
    except (BadSpec, NoSandbox) as error:
        print(f"juice-sim logs: error: {error}", file=sys.stderr)
        return 2
    chosen = tuple(args.source) or SOURCES
    follower = Follower(place.directory, chosen)
    files = log_files(place.directory, chosen)
    for label, path in files:
        text, end = tail(path, args.lines)
        follower.seen(path, end)
        for line in text.splitlines():
            print(f"{label:<12} {line}" if len(files) > 1 else line)
    sys.stdout.flush()
    if args.follow:
        follower.follow(lambda label, line: print(f"{label:<12} {line}" if len(files) > 1 else line, flush=True), place)
    return 0
