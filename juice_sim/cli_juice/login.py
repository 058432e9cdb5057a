"""`juice login`, `juice logout`."""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

from .account import Account, Failure, active_session, find_account, read_file, remove_file, write_file


def add_parser(subparsers: Any) -> None:
    """Add the subcommands."""
    login = subparsers.add_parser("login", help="log in to a controller")
    login.add_argument("url", nargs="?", metavar="CONTROLLER", help="http or https URL of the controller")
    login.add_argument(
        "-t", "--token", help='token to use for authentication (starts with "m2m"); - reads it from standard input'
    )
    login.set_defaults(run=log_in)
    subparsers.add_parser("logout", help="log the current user out of the controller").set_defaults(run=log_out)


def log_in(args: argparse.Namespace) -> int:
    """Check the token at the controller, then keep both."""
    from ..client import ApiError

    known = read_file("login.json")
    url = args.url or args.controller or os.environ.get("JUICE_CONTROLLER") or known.get("controller")
    if not url:
        raise Failure("login: which controller? accepted: its http or https URL, or JUICE_CONTROLLER", 2)
    if args.token is None:
        raise Failure("login: logging in by a browser is not simulated; give -t TOKEN (see `juice m2m create`)", 2)
    token = sys.stdin.readline().strip() if args.token == "-" else args.token.strip()
    if token and not (token.startswith("m2m") and token.isascii() and token.isprintable() and " " not in token):
        raise Failure('login: the token is not an M2M token; accepted: one that starts with "m2m"', 2)
    account = Account(str(url).rstrip("/"), token or None)
    with account.client() as client:
        try:
            who = client.whoami()
        except ApiError as error:
            if error.status == 401:
                raise Failure(
                    "login: the controller does not accept the token; was it revoked, has it expired?"
                ) from None
            raise
    write_file("login.json", {"controller": account.controller, "token": token})
    until = f", token valid until {who.expires_at}" if who.expires_at else ""
    print(f"Logged in to {account.controller} as {who.user_id or 'anybody'}{until}")
    return 0


def log_out(args: argparse.Namespace) -> int:
    """Forget the token. Not while there is an active session, which nobody could release afterwards."""
    login = read_file("login.json")
    if not login:
        print("Not logged in")
        return 0
    if active_session(find_account(login.get("controller"))):
        raise Failure("logout: there is an active session; release it first: juice session release")
    remove_file("login.json")
    print("Logged out")
    return 0
