"""The `juice-sim` command. Each subcommand is a module beside this one, imported only when it is asked for."""

from __future__ import annotations

import argparse
import errno
import importlib
import importlib.util
import os
import sys
import tempfile
import traceback
from collections.abc import Sequence
from typing import NoReturn

from .. import __version__

COMMANDS = {
    "controller": "serve a simulated Juice Controller",
    "agent": "run one simulated agent in the foreground",
    "run": "run a scenario, check it, write a report",
    "doctor": "say what this machine can run, and how to get what is missing",
    "up": "start a sandbox: controller, agents, Slurm",
    "down": "stop the sandbox",
    "shell": "a shell in the sandbox",
    "status": "pools, GPUs, sessions and jobs of the sandbox",
    "logs": "the logs of the sandbox",
    "hooks": "install and try the Slurm hooks",
    "attach": "put controller and agents onto a running Ray cluster",
    "detach": "take them off again",
    "licenses": "export free capacity as Slurm licenses",
    "image": "build the image of a Docker node",
    "fuzz": "deterministic simulation with injected faults, many seeds",
    "simulate": "run a scenario or a trace in virtual time",
    "compare": "compare placement policies on a trace",
    "plan": "how many agents a workload needs",
}


def available() -> dict[str, str]:
    """Subcommand -> one line, for those whose module is here."""
    return {
        name: text for name, text in COMMANDS.items() if importlib.util.find_spec(f"{__package__}.{name}") is not None
    }


class _Parser(argparse.ArgumentParser):
    """Tells bad input on one line, as everything else here does, instead of after the usage."""

    def error(self, message: str) -> NoReturn:
        text = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in message)
        self.exit(2, f"{self.prog}: error: {text}; see {self.prog} --help\n")


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    parser = _Parser(
        prog="juice-sim",
        description="A simulated Juice (GPU-over-IP) service, and the fake clusters to test its Slurm hooks in.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="commands:\n" + "\n".join(f"  {name:<12}{text}" for name, text in available().items()),
    )
    parser.add_argument("--version", action="version", version=f"juice-sim {__version__}")
    subparsers = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in names:
        importlib.import_module(f"{__package__}.{name}").add_parser(subparsers)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run a subcommand; returns the exit code (0 fine, 1 a check failed, 2 bad input, 130 interrupted)."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in arguments if not word.startswith("-")), None)
    if chosen is not None and chosen not in available():
        print(f"juice-sim: error: command {chosen!r} is unknown; accepted: {', '.join(available())}", file=sys.stderr)
        return 2
    parser = _parser([chosen] if chosen else [])
    if chosen is None and not arguments:
        parser.print_help(sys.stderr)
        return 2
    args = parser.parse_args(arguments)
    try:
        module = importlib.import_module(f"{__package__}.{args.command}")
        return int(module.run(args))
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        # Whoever read our output has gone; the interpreter must not complain about it at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            where = f" ({error.filename})" if error.filename else ""
            print(
                f"juice-sim {args.command}: error: {error.strerror}{where}; make room, or set TMPDIR", file=sys.stderr
            )
            return 1
        return _internal_error(args.command, error)


def _internal_error(command: str, error: Exception) -> int:
    """Our own mistake: one line for the user, the traceback in a file that a report of it can quote."""
    try:
        handle, path = tempfile.mkstemp(prefix=f"juice-sim-{command}-", suffix=".traceback")
        with open(handle, "w", encoding="utf-8") as file:
            traceback.print_exception(error, file=file)
    except OSError as unwritten:
        path = f"its traceback, which could not be written ({unwritten.strerror})"
    text = " ".join(f"{type(error).__name__}: {error}".split())[:300]
    print(f"juice-sim {command}: internal error: {text}; please report it with {path}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
