"""`juice m2m create|list|remove`: tokens for machines."""

from __future__ import annotations

import argparse
import json
from typing import Any

from . import listing
from .account import Failure, find_account

FIELDS = ("description", "token", "id", "expiresAt")
KNOWN = (*FIELDS, "createdAt", "userId", "admin")
LONGEST_DAYS = 365
PERMISSIONS = ("create_session", "register_agent", "admin")


def add_parser(subparsers: Any) -> None:
    """Add the subcommands."""
    parser = subparsers.add_parser("m2m", help="machine-to-machine tokens")
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    make = actions.add_parser("create", help="create a token", description="Create a token. It is shown only once.")
    make.add_argument("-d", "--description", required=True, help="description for this token")
    make.add_argument(
        "-e",
        "--expire-days",
        type=int,
        default=30,
        metavar="N",
        help=f"days the token will be valid for (default: %(default)s, at most {LONGEST_DAYS})",
    )
    make.add_argument(
        "--permissions",
        default="",
        metavar="PERMISSION:POOL,..",
        help="the token's only permissions, e.g. create_session:test; it then acts as a user of its own",
    )
    make.add_argument("--json", action="store_true", help="output in JSON format")
    make.set_defaults(run=create)
    show = actions.add_parser("list", aliases=["ls"], help="list all tokens")
    show.add_argument("id", nargs="?", metavar="ID", help="only this token")
    listing.add_options(show, FIELDS)
    show.set_defaults(run=show_all)
    drop = actions.add_parser("remove", help="remove a token")
    drop.add_argument("id", metavar="ID", help="id of the token (see `juice m2m list`)")
    drop.set_defaults(run=remove)


def create(args: argparse.Namespace) -> int:
    """Create a token and print it."""
    import msgspec

    if not 1 <= args.expire_days <= LONGEST_DAYS:
        raise Failure(f"m2m create: --expire-days {args.expire_days}: accepted: 1 to {LONGEST_DAYS}", 2)
    if not args.description.strip():
        raise Failure("m2m create: --description is empty; accepted: a name for what the token is used for", 2)
    with find_account(args.controller).client() as client:
        wanted = []
        if args.permissions:
            ids = {name: pool.id for pool in client.pools() for name in (pool.name, pool.id)}
            for word in args.permissions.split(","):
                permission, _, pool = word.strip().partition(":")
                if permission not in PERMISSIONS or pool not in ids:
                    raise Failure(
                        f"m2m create: --permissions {word.strip()!r}: accepted: PERMISSION:POOL with PERMISSION one of "
                        f"{', '.join(PERMISSIONS)} and POOL the name or id of a pool",
                        2,
                    )
                wanted.append((permission, ids[pool]))
        # Without permissions of its own a token acts as the user who makes it.
        user_id = "" if wanted else client.whoami().user_id
        made = client.create_token(args.description, expire_days=args.expire_days, user_id=user_id, permissions=wanted)
    if args.json:
        print(json.dumps(msgspec.to_builtins(made), indent=2))
    else:
        print(f"Token:      {made.token}\nId:         {made.id}\nExpires at: {made.expires_at}")
        print("Keep the token in a safe place: it cannot be shown again.")
    return 0


def show_all(args: argparse.Namespace) -> int:
    """List tokens, without their secrets."""
    import msgspec

    with find_account(args.controller).client() as client:
        found = [token for token in client.tokens() if args.id in (None, token.id)]
    if args.id and not found:
        raise Failure(f"m2m list: there is no token {args.id!r}")
    rows = [
        {
            "description": token.description,
            "token": "m2m***",
            "id": token.id,
            "expiresAt": token.expires_at,
            "createdAt": token.created_at,
            "userId": token.user_id,
            "admin": token.admin,
        }
        for token in found
    ]
    listing.show(args, rows, KNOWN, [msgspec.to_builtins(token) for token in found])
    return 0


def remove(args: argparse.Namespace) -> int:
    """Remove a token: it is refused from now on."""
    with find_account(args.controller).client() as client:
        client.revoke_token(args.id)
    print(f"Token {args.id} removed")
    return 0
