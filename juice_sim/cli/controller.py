"""`juice-sim controller`: serve a simulated Juice Controller in the foreground."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "controller",
        help="serve a simulated Juice Controller",
        description="Serve a simulated Juice Controller until SIGTERM or SIGINT. When it serves, one line of JSON with "
        "`url`, `pid` and `admin_token_file` is printed.",
    )
    parser.add_argument(
        "--listen", default="127.0.0.1:0", metavar="HOST:PORT", help="default: %(default)s (a free port)"
    )
    parser.add_argument("--data", type=Path, metavar="DIR", help="where state is kept; without it, in memory")
    parser.add_argument("--no-auth", action="store_true", help="let everybody do everything")
    parser.add_argument(
        "--quirks",
        default="",
        metavar="LIST",
        help="faults of the open-source controller to show: open-source, or names",
    )
    parser.add_argument("--tls-cert", type=Path, metavar="FILE", help="PEM certificate: serve https")
    parser.add_argument("--tls-key", type=Path, metavar="FILE", help="PEM key of the certificate")
    parser.add_argument("--webhook", metavar="URL", help="POST session changes here")
    parser.add_argument(
        "--policy",
        default=None,
        metavar="NAME",
        help="placement policy: first_fit (default), best_fit, random, dot_prod, gpu_packing, gpu_clustering or fgd",
    )
    parser.add_argument("--queue", default=None, metavar="NAME", help="queue policy: skip (default) or strict_fifo")
    parser.add_argument(
        "--missing-after", type=float, default=None, metavar="S", help="silence until an agent is missing"
    )
    parser.add_argument(
        "--removed-after", type=float, default=None, metavar="S", help="further silence until it is removed"
    )
    parser.add_argument("--log", type=Path, metavar="FILE", help="log file; default: standard error")
    parser.set_defaults(parser=parser)


def parse_listen(text: str) -> tuple[str, int]:
    """`HOST:PORT` or `[V6]:PORT`. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not colon or not (port.isdigit() and port.isascii() and int(port) < 65536):
        raise ValueError(f"--listen {text!r}: accepted: HOST:PORT with a port from 0 to 65535")
    return host.removeprefix("[").removesuffix("]") or "0.0.0.0", int(port)


def run(args: argparse.Namespace) -> int:
    """Serve; returns the exit code."""
    from ..core.settings import Settings
    from ..quirks import UnknownQuirk, parse
    from ..server import ServerError, ServerSettings, StoreError

    try:
        host, port = parse_listen(args.listen)
        chosen = {
            "default_policy": args.policy,
            "default_queue_policy": args.queue,
            "missing_after_s": args.missing_after,
            "removed_after_s": args.removed_after,
        }
        settings = Settings(**{name: value for name, value in chosen.items() if value is not None})
        quirks = parse(args.quirks)
        _check_policy(settings)
        _check_webhook(args.webhook)
    except (ValueError, UnknownQuirk) as error:
        return _refuse(error)
    try:
        logging.basicConfig(
            filename=args.log,
            level=logging.INFO,
            format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        )
    except OSError as error:
        return _refuse(f"--log {args.log}: {error.strerror}; give a file that can be written")
    _raise_file_limit()
    # Threads that write the log must get the interpreter lock soon, or every commit waits for a busy event loop.
    sys.setswitchinterval(0.0005)
    server_settings = ServerSettings(
        data_dir=args.data,
        listen=host,
        port=port,
        auth=not args.no_auth,
        quirks=quirks,
        tls_cert=args.tls_cert,
        tls_key=args.tls_key,
        webhook=args.webhook,
        settings=settings,
    )
    try:
        asyncio.run(_serve(server_settings))
    except (StoreError, ServerError) as error:
        return _refuse(error)
    return 0


def _check_policy(settings: Any) -> None:
    from ..core.placement import policy_named

    policy_named(settings.default_policy)


def _check_webhook(url: str | None) -> None:
    parts = urlsplit(url) if url is not None else None
    if parts is not None and (parts.scheme not in ("http", "https") or not parts.hostname):
        raise ValueError(f"--webhook {url!r}: accepted: an http:// or https:// URL")


def _refuse(error: object) -> int:
    print(f"juice-sim controller: error: {error}", file=sys.stderr)
    return 2


def _raise_file_limit() -> None:
    """Each connection is a descriptor; the soft limit of 1,024 is soon reached."""
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if hard == resource.RLIM_INFINITY else min(hard, 65536)
    if soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


async def _serve(settings: Any) -> None:
    from ..server import RunningServer

    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    server = await RunningServer.start(settings)
    try:
        line = {
            "url": server.url,
            "pid": os.getpid(),
            "admin_token_file": str(server.admin_token_file) if server.admin_token_file else None,
        }
        print(json.dumps(line), flush=True)
        await stop.wait()
    finally:
        await server.stop()
