"""`juice-sim doctor`: what this machine can run, and how to get what is missing."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict
from typing import Any

from ..machine import PROBES, probe, spank_plugins


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser("doctor", help="say what this machine can run, and how to get what is missing")
    parser.add_argument("--json", action="store_true", help="print one JSON array instead of text")
    parser.add_argument(
        "--require",
        default="python,ray,libsodium",
        metavar="NAME,..",
        help=f"exit 1 when one of these is missing (default: %(default)s; known: {', '.join(PROBES)})",
    )
    parser.add_argument(
        "--plugin",
        action="append",
        default=[],
        metavar="PATH/juice.so",
        help="a SPANK plugin: say for which Slurm it was built, and exit 1 when that is not the Slurm here; may be "
        "repeated (default: those that the plugstack.conf of this machine's Slurm loads)",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print a line per capability; 0 when all that `--require` names are there and every plugin fits the Slurm here,
    1 when one is missing or does not fit, 2 bad input."""
    wanted = [name.strip() for name in args.require.split(",") if name.strip()]
    unknown = [name for name in wanted if name not in PROBES]
    if unknown:
        print(f"juice-sim doctor: --require: unknown {unknown[0]!r}; accepted: {', '.join(PROBES)}", file=sys.stderr)
        return 2
    found = {name: probe(name) for name in PROBES}
    plugins = spank_plugins(args.plugin)
    if args.json:
        print(json.dumps([asdict(capability) for capability in (*found.values(), *plugins)], indent=2))
    else:
        for capability in found.values():
            print(f"{'ok' if capability.ok else 'missing':8}{capability.name:11}{capability.detail}")
            if not capability.ok:
                print(f"{'':19}needed for {capability.used_for}")
                print(f"{'':19}to get it: {capability.remedy}")
        for plugin in plugins:
            print(f"{'ok' if plugin.ok else 'wrong':8}{plugin.name:11}{plugin.detail}")
            if not plugin.ok:
                print(f"{'':19}needed for {plugin.used_for}")
                print(f"{'':19}to mend it: {plugin.remedy}")
    return 0 if all(found[name].ok for name in wanted) and all(plugin.ok for plugin in plugins) else 1
