"""`juice-sim up`: start a sandbox in the background."""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "up",
        help="start a sandbox: controller, agents, Slurm",
        description="Start a controller, agents, the hooks and a Slurm of its own in the background, and return when "
        "they take jobs. `juice-sim down` stops them. Several sandboxes can be up side by side, each with its --name.",
    )
    parser.add_argument("--name", default=None, help="name of the sandbox (default: default)")
    parser.add_argument(
        "--slurm",
        choices=("real", "simulated"),
        default=None,
        help="default: real where Slurm and a compiler are installed, else simulated",
    )
    parser.add_argument(
        "--pool",
        action="append",
        default=[],
        metavar="SPEC",
        help="NAME:agents=N,gpus=N,model=MODEL[,vram=SIZE][,label.KEY=VALUE][,taint.KEY=VALUE]; may be given several "
        "times (default: test:agents=2,gpus=2,model=A10)",
    )
    parser.add_argument("--nodes", type=int, default=2, metavar="N", help="compute nodes (default: %(default)s)")
    parser.add_argument("--cpus", type=int, default=8, metavar="N", help="CPUs of each node (default: %(default)s)")
    parser.add_argument(
        "--wait", type=float, default=20.0, metavar="S", help="how long a prolog waits for GPUs (default: %(default)g)"
    )
    parser.add_argument(
        "--licenses", action="store_true", help="export free capacity as Slurm licenses (with a real Slurm)"
    )
    parser.add_argument("--directory", type=Path, metavar="DIR", help="where it lies: a new or an empty directory")
    parser.set_defaults(parser=parser)


def run(args: argparse.Namespace) -> int:
    """Start it; returns the exit code."""
    from fake_cluster.sandbox.lifecycle import CannotStart, start, why_not_real
    from fake_cluster.sandbox.places import NoSandbox
    from fake_cluster.sandbox.spec import DEFAULT_NAME, MAX_NODES, BadSpec, SandboxSpec, check_name, parse_pools

    before = signal.signal(signal.SIGTERM, _interrupt)
    try:
        name = check_name(DEFAULT_NAME if args.name is None else args.name)
        pools = parse_pools(args.pool)
        for option, value, most in (("--nodes", args.nodes, MAX_NODES), ("--cpus", args.cpus, 1024)):
            if not 1 <= value <= most:
                raise BadSpec(f"{option} {value}: accepted: 1 to {most}")
        if not 1 <= args.wait <= 3600:
            raise BadSpec(f"--wait {args.wait:g}: accepted: 1 to 3600 seconds")
        slurm = args.slurm
        problem = why_not_real() if slurm != "simulated" else None
        if slurm == "real" and problem is not None:
            raise BadSpec(f"--slurm real: {problem}")
        if slurm is None:
            slurm = "simulated" if problem is not None else "real"
        if args.licenses and slurm == "simulated":
            raise BadSpec("--licenses: they need a real Slurm; accepted: together with --slurm real")
        spec = SandboxSpec(
            name=name,
            slurm=slurm,
            pools=pools,
            nodes=args.nodes,
            cpus_per_node=args.cpus,
            wait=args.wait,
            licenses=args.licenses,
        )
        if problem is not None:
            print(f"Slurm is simulated: {problem}")
        place = start(spec, args.directory)
    except (BadSpec, NoSandbox) as error:
        return _refuse(error)
    except CannotStart as error:
        print(f"juice-sim up: error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("juice-sim up: interrupted; everything that was started is stopped", file=sys.stderr)
        return 130
    finally:
        signal.signal(signal.SIGTERM, before)
    _tell(place, spec)
    return 0


def _tell(place: Any, spec: Any) -> None:
    ready = place.ready()
    gpus = sum(pool.agents * pool.gpus for pool in spec.pools)
    agents = sum(pool.agents for pool in spec.pools)
    name = "" if spec.name == "default" else f" --name {spec.name}"
    first = next(iter(spec.pools)).name
    print(
        f"sandbox {spec.name!r} is up: Slurm {ready['version']}, {spec.nodes} node(s); "
        f"controller {ready['controller']}, {agents} agent(s), {gpus} GPU(s)\n"
        f"  juice-sim shell{name}     a shell with srun, sbatch, squeue; try: srun --juice-pool={first} hostname -A\n"
        f"  juice-sim status{name}    pools, GPUs with their slices, sessions, jobs\n"
        f"  juice-sim logs{name}      what everybody says\n"
        f"  juice-sim down{name}      stop it"
    )


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _refuse(error: object) -> int:
    print(f"juice-sim up: error: {error}", file=sys.stderr)
    return 2
