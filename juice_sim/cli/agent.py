"""`juice-sim agent`: one simulated agent in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import stat
import sys
from pathlib import Path
from typing import Any


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "agent",
        help="run one simulated agent in the foreground",
        description="Run one simulated agent until SIGTERM or SIGINT. When it is registered, one line of JSON with "
        "`id`, `address` and `pool_id` is printed. A pool that does not exist is made when the token permits it.",
    )
    parser.add_argument("--controller", required=True, metavar="URL", help="base URL of the controller")
    parser.add_argument("--pool", required=True, metavar="NAME", help="name or id of the pool")
    parser.add_argument("--gpus", type=int, default=1, metavar="N", help="number of GPUs (default: %(default)s)")
    parser.add_argument("--model", default="A10", help="GPU model (default: %(default)s)")
    parser.add_argument("--vram", metavar="SIZE", help="VRAM of each GPU instead of the model's: 24, 24GiB, 512MB, ...")
    parser.add_argument("--labels", default="", metavar="K=V,..", help="labels of the agent")
    parser.add_argument("--taints", default="", metavar="K=V,..", help="taints of the agent")
    parser.add_argument(
        "--token-file", type=Path, metavar="FILE", help="file that holds the token; others may not read it"
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="default: %(default)s (a free port)"
    )
    parser.add_argument("--hostname", default="", help="host name to register (default: this machine's)")
    parser.add_argument("--poll", action="store_true", help="poll each second, as the real agent does")
    parser.add_argument("--ca-file", metavar="FILE", help="PEM file of the CA that signed the controller's certificate")
    parser.set_defaults(parser=parser)


def parse_pairs(text: str, option: str) -> dict[str, str]:
    """`k=v,k2=v2`. Raises ValueError."""
    pairs: dict[str, str] = {}
    for word in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = word.partition("=")
        if not equals or not key.strip():
            raise ValueError(f"{option} {word!r}: accepted: key=value, separated by commas")
        if key.strip() in pairs:
            raise ValueError(f"{option}: {key.strip()!r} is given twice")
        pairs[key.strip()] = value.strip()
    return pairs


def read_token(path: Path) -> str:
    """The token in a file that only its owner (and group) can read. Raises ValueError."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & stat.S_IROTH:
                raise ValueError(f"token file {path} can be read by everybody; run: chmod o-rwx {path}")
            token = file.read(65537).decode("ascii").strip()
    except OSError as error:
        raise ValueError(f"token file {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ValueError(f"token file {path} does not hold a token") from None
    if not token or len(token) > 65536 or any(c.isspace() for c in token):
        raise ValueError(f"token file {path} does not hold a token; accepted: one line")
    return token


def run(args: argparse.Namespace) -> int:
    """Run the agent; returns the exit code."""
    from ..agent_process import AgentFailed, AgentSpec
    from ..client import ApiError, Client
    from ..core.units import parse_vram
    from ..gpu_profiles import make_gpus
    from .controller import parse_listen

    try:
        host, port = parse_listen(args.listen)
        labels, taints = parse_pairs(args.labels, "--labels"), parse_pairs(args.taints, "--taints")
        vram = parse_vram(args.vram) if args.vram is not None else None
        hostname = args.hostname or os.uname().nodename
        gpus = make_gpus(args.model, args.gpus, vram=vram, identity=f"{hostname}/{args.listen}" if port else "")
        token = read_token(args.token_file) if args.token_file else None
        _check_ca(args.ca_file)
        client = Client(args.controller, token, ca_file=args.ca_file)
        pool_id, pool_name, created = client.find_or_create_pool(args.pool)
    except (ValueError, ApiError) as error:
        return _refuse(error)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    spec = AgentSpec(
        pool_id=pool_id,
        pool_name=pool_name,
        gpus=gpus,
        labels=labels,
        taints=taints,
        hostname=hostname,
        host=host,
        port=port,
    )
    try:
        asyncio.run(_run(args, spec, token, created))
    except AgentFailed as error:
        return _refuse(error)
    except OSError as error:
        return _refuse(f"cannot listen on {args.listen}: {error.strerror or error}; give another address, or port 0")
    return 0


def _check_ca(path: str | None) -> None:
    import ssl

    try:
        if path is not None:
            ssl.create_default_context(cafile=path)
    except OSError as error:
        raise ValueError(f"--ca-file {path}: {error.strerror or error}; give a PEM file of certificates") from None


def _refuse(error: object) -> int:
    print(f"juice-sim agent: error: {error}", file=sys.stderr)
    return 2


async def _run(args: argparse.Namespace, spec: Any, token: str | None, created: bool) -> None:
    from ..agent_process import AgentHost

    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    async with AgentHost(args.controller, token, may_wait=not args.poll, ca_file=args.ca_file) as host:
        adding = asyncio.create_task(host.add(spec, timeout_s=30.0))
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait({adding, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if not adding.done():
            adding.cancel()
            await asyncio.gather(adding, return_exceptions=True)
            return
        agent = adding.result()
        line = {
            "id": agent.id,
            "address": agent.address,
            "pool_id": spec.pool_id,
            "pool_created": created,
            "gpus": len(spec.gpus),
            "pid": os.getpid(),
        }
        print(json.dumps(line), flush=True)
        ending = asyncio.create_task(agent.finished())
        await asyncio.wait({ending, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if ending.done():
            ending.result()
        stopping.cancel()
        ending.cancel()
        await asyncio.gather(stopping, ending, return_exceptions=True)
