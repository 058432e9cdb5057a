"""`juice-sim status`: pools, GPUs with their slices, sessions, jobs."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "status",
        help="pools, GPUs, sessions and jobs of the sandbox",
        description="Show the pools with their agents, GPUs and slices, the open sessions and Slurm's jobs.",
    )
    parser.add_argument("--name", default=None, help="name of the sandbox (default: the only one, or `default`)")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    parser.add_argument("--all-jobs", action="store_true", help="also jobs that have ended (JSON: always)")
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace) -> int:
    """Print it; returns the exit code."""
    from fake_cluster.sandbox.lifecycle import ask, running
    from fake_cluster.sandbox.places import NoSandbox
    from fake_cluster.sandbox.spec import BadSpec
    from fake_cluster.sandbox.status_text import status_text

    try:
        state = ask(running(args.name), "status")
    except (BadSpec, NoSandbox) as error:
        print(f"juice-sim status: error: {error}", file=sys.stderr)
        return 2
    print(
        json.dumps(state, indent=2) if args.json else status_text(state, all_jobs=args.all_jobs),
        end="\n" if args.json else "",
    )
    return 0
