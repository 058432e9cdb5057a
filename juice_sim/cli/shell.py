"""`juice-sim shell`: a shell in which Slurm's commands reach the sandbox."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "shell",
        help="a shell in the sandbox",
        description="Open a shell in which srun, sbatch, squeue, scancel, sinfo and scontrol reach its Slurm. "
        "When standard input is no terminal, the commands on it are run, and the exit code is that of the last one.",
    )
    parser.add_argument("--name", default=None, help="name of the sandbox (default: the only one, or `default`)")
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace) -> int:
    """Become the shell; returns only when that cannot be."""
    from fake_cluster.sandbox.lifecycle import running
    from fake_cluster.sandbox.places import NAME_VARIABLE, NoSandbox
    from fake_cluster.sandbox.spec import BadSpec

    try:
        place = running(args.name)
        ready = place.ready()
    except (BadSpec, NoSandbox) as error:
        print(f"juice-sim shell: error: {error}", file=sys.stderr)
        return 2
    environment = shell_environment(ready["environment"])
    environment[NAME_VARIABLE] = place.name
    # For nvidia-smi and juice: srun looks for its program before the client library can. Last, so that real ones win.
    environment["PATH"] += f":{place.directory / 'juice-client'}"
    sys.stdout.flush()
    if sys.stdin.isatty():
        return _interactive(place, environment)
    text = sys.stdin.buffer.read()
    # srun reads standard input, and would eat the commands after it: so the shell gets them from elsewhere.
    script = os.memfd_create("commands")
    with os.fdopen(os.dup(script), "wb") as file:
        file.write(text)
    os.lseek(script, 0, os.SEEK_SET)
    os.set_inheritable(script, True)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    shell = "/bin/bash" if os.access("/bin/bash", os.X_OK) else "/bin/sh"
    return _become(shell, [shell, f"/proc/self/fd/{script}"], environment)


def shell_environment(given: dict[str, str]) -> dict[str, str]:
    """This process's environment, with the sandbox's commands in front of PATH and nothing of another Slurm's job."""
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SLURMD_", "SPANK_"))
    }
    own = [folder for folder in given["PATH"].split(":") if folder]
    users = [folder for folder in environment.get("PATH", os.defpath).split(":") if folder]
    # Only the first folder of a real Slurm's PATH is its own; the user's programs come before the system's.
    path = [*own[:1], *(folder for folder in users if folder not in own[:1])]
    path += [folder for folder in own if folder not in path]
    return {**environment, **given, "PATH": ":".join(path)}


def _interactive(place: Any, environment: dict[str, str]) -> int:
    shell = os.environ.get("SHELL") or "/bin/sh"
    name = place.name
    print(f"sandbox {name!r}: srun, sbatch, squeue, scancel, sinfo, scontrol; `exit` leaves, and the sandbox stays up")
    argv = [shell]
    if Path(shell).name == "bash":
        # The user's own file may set PATH and prompt anew.
        rc = place.directory / "shellrc"
        rc.write_text(
            f'[ -f ~/.bashrc ] && . ~/.bashrc\nPATH={_quoted(environment["PATH"])}\nPS1="(juice {name}) $PS1"\n',
            encoding="utf-8",
        )
        rc.chmod(0o600)
        argv += ["--rcfile", str(rc)]
    else:
        environment["PS1"] = f"(juice {name}) $ "
    return _become(shell, argv, environment)


def _become(shell: str, argv: list[str], environment: dict[str, str]) -> int:
    try:
        os.execve(shell, argv, environment)
    except OSError as error:
        print(f"juice-sim shell: error: SHELL={shell!r}: {error.strerror}", file=sys.stderr)
    return 2


def _quoted(text: str) -> str:
    from juice_sim.hooks_install import shell_quoted

    return shell_quoted(text)
