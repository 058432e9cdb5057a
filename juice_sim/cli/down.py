"""`juice-sim down`: stop a sandbox."""

from __future__ import annotations

import argparse
import sys
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "down",
        help="stop the sandbox",
        description="Stop everything that `juice-sim up` started, by process id and nothing else, and remove the "
        "sandbox's directory. It also cleans up after a supervisor that was killed.",
    )
    parser.add_argument("--name", default=None, help="name of the sandbox (default: the only one, or `default`)")
    parser.add_argument("--all", action="store_true", help="stop all sandboxes of this user")
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace) -> int:
    """Stop it; returns the exit code."""
    from fake_cluster.sandbox.lifecycle import stop
    from fake_cluster.sandbox.places import NoSandbox, find, known
    from fake_cluster.sandbox.spec import BadSpec

    try:
        if args.all and args.name is not None:
            raise BadSpec("--all and --name exclude each other")
        places = known() if args.all else [find(args.name)]
    except (BadSpec, NoSandbox) as error:
        print(f"juice-sim down: error: {error}", file=sys.stderr)
        return 2
    code = 0
    for place in places:
        rest = stop(place)
        if rest:
            pids = ", ".join(str(process.pid) for process in rest)
            print(f"juice-sim down: error: {place.name}: process(es) {pids} could not be ended", file=sys.stderr)
            code = 1
        else:
            print(f"sandbox {place.name!r} is down")
    return code
