"""`juice session request|list|release`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from typing import Any

from . import listing
from .account import Failure, active_session, find_account, read_file, remove_file, write_file
from .requirements import add_options, configuration, obtain

FIELDS = ("state", "id", "expiresAt", "latencyMs", "uploadMbps", "downloadMbps")
KNOWN = (
    *FIELDS,
    "name",
    "pool.name",
    "numgpus",
    "vram-h",
    "address",
    "agentId",
    "owner",
    "requestedAt",
    "closedAt",
    "closeReason",
)


def add_parser(subparsers: Any) -> None:
    """Add the subcommands."""
    parser = subparsers.add_parser("session", help="sessions")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    ask = actions.add_parser("request", help="request a new session")
    add_options(ask)
    ask.add_argument(
        "--watch-pid",
        type=int,
        default=-1,
        metavar="PID",
        help="stop the session when this process exits (default: -1, none)",
    )
    ask.add_argument("--dump-config", action="store_true", help="print the client configuration as JSON")
    ask.set_defaults(run=request)
    show = actions.add_parser("list", aliases=["ls"], help="list the user's sessions")
    show.add_argument("--all", action="store_true", help="all sessions of the last 7 days, not only active ones")
    listing.add_options(show, FIELDS)
    show.set_defaults(run=show_all)
    drop = actions.add_parser("release", help="release the active session")
    drop.add_argument("id", nargs="*", metavar="ID", help="these sessions instead")
    drop.set_defaults(run=release)


def request(args: argparse.Namespace) -> int:
    """Request a session and keep it as the active one."""
    import msgspec

    account = find_account(args.controller)
    known = active_session(account)
    if known:
        raise Failure(f"session {known} is active already; release it first: juice session release")
    if args.watch_pid != -1 and not os.path.exists(f"/proc/{args.watch_pid}"):
        raise Failure(f"--watch-pid {args.watch_pid}: there is no such process", 2)
    with account.client() as client:
        session, requirements = obtain(args, client, "juice session request")
        config = configuration(session, requirements)
        kept = {
            "id": session.id,
            "controller": account.controller,
            "config": config,
            "gpus": msgspec.to_builtins(session.gpus or []),
        }
        try:
            write_file("session.json", kept)
        except BaseException:
            client.release_session(session.id)
            raise
    if args.watch_pid != -1:
        # The token is where this command found it: in the login's file or in the environment, never among arguments.
        subprocess.Popen(
            [sys.executable, "-m", "juice_sim.cli_juice.watch", account.controller, session.id, str(args.watch_pid)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
    if args.dump_config:
        print(config)
    else:
        count = len(session.gpus or ())
        print(f"Session {session.id} is active: {count} GPU{'s' if count != 1 else ''} on {session.address}")
    return 0


def show_all(args: argparse.Namespace) -> int:
    """List sessions. Speeds and latency are not simulated."""
    import msgspec

    from .lists import size_text

    with find_account(args.controller).client() as client:
        names = {pool.id: pool.name for pool in client.pools()}
        found = client.sessions(everything=args.all)
    rows = []
    for session in found:
        row: dict[str, Any] = dict.fromkeys(KNOWN, "")
        row |= {
            "state": session.state,
            "id": session.id,
            "name": session.name,
            "pool.name": names.get(session.pool_id, ""),
            "numgpus": len(session.gpus or ()),
            "vram-h": ",".join(size_text(gpu.vram_required) for gpu in session.gpus or ()),
            "address": session.address,
            "agentId": session.agent_id,
            "owner": session.owner,
            "requestedAt": session.requested_at,
            "closedAt": session.closed_at,
            "closeReason": session.close_reason,
        }
        rows.append(row)
    listing.show(args, rows, KNOWN, [msgspec.to_builtins(session) for session in found])
    return 0


def release(args: argparse.Namespace) -> int:
    """Release the active session, or those that are named."""
    account = find_account(args.controller)
    active = active_session(account)
    ids = args.id or ([active] if active else [])
    if not ids:
        raise Failure("there is no active session; `juice session list` shows those that are open")
    with account.client() as client:
        for session_id in ids:
            client.session(session_id)  # an id that nobody knows is an error here
            client.release_session(session_id)
            if read_file("session.json").get("id") == session_id:
                remove_file("session.json")
            print(f"Session {session_id} released")
    return 0
