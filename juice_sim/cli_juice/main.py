"""The `juice` command: a stand-in for that of Juice's client, against a simulated controller or a real one."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from collections.abc import Sequence

from .. import __version__
from .account import Failure

MODULES = ("login", "lists", "m2m", "session", "run")


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="juice",
        description="Use remote GPUs. A stand-in of juice-sim for the command of Juice's client.",
        epilog="The controller is --controller, else JUICE_CONTROLLER, else that of `juice login`; the token is that "
        "of JUICE_TOKEN_FILE or JUICE_TOKEN, else that of `juice login`.",
    )
    top.add_argument("--version", action="version", version=f"juice {__version__} (juice-sim)")
    top.add_argument("--controller", metavar="URL", help="http or https URL of the controller")
    top.add_argument("--quiet", action="store_true", help="suppress what is not asked for")
    top.add_argument("--no-banner", action="store_true", help="accepted; there is no banner")
    subparsers = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in MODULES:
        importlib.import_module(f"{__package__}.{name}").add_parser(subparsers)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; the exit code: 0 fine, 1 failed, 2 bad input, 130 interrupted; of `run` the application's."""
    args = parser().parse_args(argv)
    from ..client import ApiError

    try:
        if args.quiet and args.command in ("login", "logout"):
            with open(os.devnull, "w", encoding="utf-8") as nowhere:
                sys.stdout = nowhere
                return int(args.run(args))
        return int(args.run(args))
    except Failure as error:
        print(f"juice: error: {error}", file=sys.stderr)
        return error.code
    except ApiError as error:
        print(f"juice: error: {_explained(error)}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; the interpreter must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    finally:
        sys.stdout = sys.__stdout__


def _explained(error: Exception) -> str:
    status = getattr(error, "status", None)
    if status == 401:
        return f"{error}; log in: juice login CONTROLLER -t TOKEN"
    return str(error)


if __name__ == "__main__":
    sys.exit(main())
