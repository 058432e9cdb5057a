"""`juice-sim licenses`: free capacity of the pools as Slurm licenses, so that jobs wait in Slurm's queue."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

RESERVATION = "juice"


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "licenses",
        help="export free capacity as Slurm licenses",
        description="Keep Slurm's licenses at what Juice has free, so that jobs wait in the queue and "
        "no prolog is started in vain. Without --controller, a sandbox's controller and Slurm are taken.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)

    sync = actions.add_parser("sync", help="keep the licenses at what is free; to be run as SlurmUser or an operator")
    _controller_options(sync)
    _slurm_options(sync)
    sync.add_argument(
        "--table",
        type=Path,
        metavar="FILE",
        help="what job_submit.lua reads (default: none is written; sandbox: its own)",
    )
    sync.add_argument(
        "--interval", type=float, default=2.0, metavar="S", help="look at least that often (default: %(default)g)"
    )
    sync.add_argument("--once", action="store_true", help="look once, tell Slurm, and end")

    conf = actions.add_parser("conf", help="print the line `Licenses=...` for slurm.conf")
    _controller_options(conf)

    lua = actions.add_parser("lua", help="print job_submit.lua, to be put beside slurm.conf")
    lua.add_argument("--table", type=Path, metavar="FILE", help="the file that `sync --table` writes")

    remove = actions.add_parser(
        "remove", help="delete the reservation: all licenses are free, the prolog decides again"
    )
    _slurm_options(remove)
    remove.add_argument("--name", default=None, help="name of a sandbox")
    parser.set_defaults(parser=parser)


def _controller_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--controller", metavar="URL", help="base URL of the controller")
    parser.add_argument("--token-file", type=Path, metavar="FILE", help="file with an admin's token")
    parser.add_argument("--ca-file", metavar="FILE", help="PEM file of the CA that signed the controller's certificate")
    parser.add_argument("--name", default=None, help="name of a sandbox, instead of --controller")


def _slurm_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--slurm-conf", metavar="FILE", help="slurm.conf (default: SLURM_CONF, or the system's)")
    parser.add_argument(
        "--reservation", default=RESERVATION, metavar="NAME", help="the reservation to resize (default: %(default)s)"
    )


class _BadInput(ValueError):
    pass


def run(args: argparse.Namespace) -> int:
    """Do it; returns the exit code."""
    from juice_sim.client import ApiError
    from juice_sim.slurm_licenses.slurm_commands import SlurmFailed

    actions = {"sync": _sync, "conf": _conf, "lua": _lua, "remove": _remove}
    try:
        return actions[args.action](args)
    except ValueError as error:
        print(f"juice-sim licenses {args.action}: error: {error}", file=sys.stderr)
        return 2
    except (ApiError, SlurmFailed, OSError) as error:
        print(f"juice-sim licenses {args.action}: error: {error}", file=sys.stderr)
        return 1


def _sandbox(name: str | None) -> Any:
    from fake_cluster.sandbox.lifecycle import running
    from fake_cluster.sandbox.places import NoSandbox

    try:
        place = running(name)
    except NoSandbox as error:
        raise _BadInput(f"{error} (or name a controller with --controller)") from None
    return place


def _target(args: argparse.Namespace) -> tuple[str, str | None, str | None, Path | None]:
    """(controller, token, slurm.conf, table)."""
    from .agent import read_token

    slurm_conf = getattr(args, "slurm_conf", None)
    table = getattr(args, "table", None)
    if args.controller is not None:
        if args.name is not None:
            raise _BadInput("--controller and --name exclude each other")
        token = read_token(args.token_file) if args.token_file is not None else None
        return args.controller, token, slurm_conf, table
    place = _sandbox(args.name)
    ready = place.ready()
    if ready["slurm"] != "real":
        raise _BadInput(f"sandbox {place.name!r} has a simulated Slurm, whose licenses are fixed; accepted: a real one")
    token = read_token(args.token_file or Path(ready["admin_token_file"]))
    return (
        ready["controller"],
        token,
        slurm_conf or ready["environment"]["SLURM_CONF"],
        table or place.directory / "juice-licenses.tsv",
    )


def _sync(args: argparse.Namespace) -> int:
    from juice_sim.client import Client
    from juice_sim.slurm_licenses.slurm_commands import SlurmCommands
    from juice_sim.slurm_licenses.sync import LicenseSync

    if not 0.2 <= args.interval <= 3600:
        raise _BadInput(f"--interval {args.interval:g}: accepted: 0.2 to 3600 seconds")
    _check_reservation(args.reservation)
    url, token, slurm_conf, table = _target(args)
    with Client(url, token, ca_file=args.ca_file, tries=1) as client:
        sync = LicenseSync(
            client,
            SlurmCommands.of_system(slurm_conf),
            reservation=args.reservation,
            table=table,
            log=_say if not args.once else _ignore,
        )
        done = sync.once()  # what cannot work at all is told at once, with an exit code
        print("\n".join(f"{name} {count}" for name, count in _shown(done.totals)), flush=True)
        if done.missing:
            print(
                f"juice-sim licenses sync: slurm.conf does not declare {len(done.missing)} license(s), "
                f"{done.missing[0]} first; to get the line for it: juice-sim licenses conf",
                file=sys.stderr,
            )
        if args.once:
            return 1 if done.missing else 0
        stop = threading.Event()
        before = {sig: signal.signal(sig, lambda *_: stop.set()) for sig in (signal.SIGTERM, signal.SIGINT)}
        try:
            with Client(url, token, ca_file=args.ca_file, tries=1) as events:
                sync.run(stop, interval_s=args.interval, events=events)
        finally:
            for sig, handler in before.items():
                signal.signal(sig, handler)
    return 0


def _conf(args: argparse.Namespace) -> int:
    from juice_sim.client import Client
    from juice_sim.slurm_licenses.capacity import shapes
    from juice_sim.slurm_licenses.names import conf_line

    url, token, _, _ = _target(args)
    with Client(url, token, ca_file=args.ca_file) as client:
        line = conf_line(shapes(client.pools(), client.agents(everything=True), {}).values())
    if not line:
        raise _BadInput("no pool of the controller has an untainted agent, so there is nothing to declare yet")
    print(line)
    return 0


def _lua(args: argparse.Namespace) -> int:
    from juice_sim.slurm_licenses.install import DEFAULT_TABLE, job_submit_lua

    sys.stdout.write(job_submit_lua(DEFAULT_TABLE if args.table is None else args.table))
    return 0


def _remove(args: argparse.Namespace) -> int:
    from juice_sim.slurm_licenses.slurm_commands import SlurmCommands

    _check_reservation(args.reservation)
    slurm_conf = args.slurm_conf
    if args.name is not None:
        slurm_conf = _sandbox(args.name).ready()["environment"].get("SLURM_CONF")
    found = SlurmCommands.of_system(slurm_conf).release(args.reservation)
    print(f"reservation {args.reservation} {'is deleted' if found else 'does not exist'}")
    return 0


def _check_reservation(name: str) -> None:
    if not name or not all(c.isalnum() or c in "_.-" for c in name) or len(name) > 64:
        raise _BadInput(f"--reservation {name!r}: accepted: 1 to 64 letters, digits, _ . -")


def _shown(totals: Any) -> list[tuple[str, int]]:
    """Those that users know; places and fits follow from them."""
    return [(name, count) for name, count in sorted(totals.items()) if "_fit_" not in name and "_x" not in name]


def _say(text: str) -> None:
    print(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {text}", flush=True)


def _ignore(text: str) -> None:
    return
