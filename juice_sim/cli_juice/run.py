"""`juice run`: a program with a session's GPUs."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .account import TOKEN_VARIABLES, Account, Failure, active_session, find_account, read_file
from .requirements import NoGpu, add_options, any_given, configuration, obtain

DIRECTORY_VARIABLE = "JUICE_CLIENT_DIR"
"""Set by the `juice` that juice_sim.client_build.install_client() makes: the folder in which it lies."""

LOOK_EVERY_S = 10.0
CONNECT_S = 5.0
FORWARDED = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
_IGNORED = ("--disable-compression", "--disable-cache", "--relaxed-api", "--disable-uvm-kernel-synchronization")


def add_parser(subparsers: Any) -> None:
    """Add the subcommand."""
    parser = subparsers.add_parser(
        "run",
        help="start an application with remote GPUs",
        description="Start an application with the active session, or with one of its own that ends with it. "
        "The exit code is the application's.",
    )
    add_options(parser)
    parser.add_argument("--ephemeral", action="store_true", help="always request a new session for the application")
    parser.add_argument(
        "--on-queue-timeout",
        choices=("fail", "continue"),
        default="fail",
        help="when no GPU is free in time (default: %(default)s)",
    )
    parser.add_argument(
        "--on-connection-error",
        choices=("fail", "continue"),
        default="fail",
        help="when controller or agent cannot be reached (default: %(default)s)",
    )
    for name in _IGNORED:
        parser.add_argument(name, action="store_true", help="accepted; nothing of it is simulated")
    parser.add_argument("--listen-ip", metavar="IP", help="accepted; nothing of it is simulated")
    parser.add_argument("application", help="the application to run")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="its arguments")
    parser.set_defaults(run=run)


@dataclass
class _Session:
    """A session that the application may use; `own`: it ends with the application."""

    id: str
    address: str
    config: str
    vram: list[int]
    own: bool


class _Unreachable(Failure):
    """Controller or agent cannot be reached."""


def run(args: argparse.Namespace) -> int:
    """Get a session, run the application, give the session back; the application's exit code."""
    from ..client import ApiError

    account = find_account(args.controller)
    session: _Session | None = None
    try:
        session = _session_for(args, account)
    except NoGpu as error:
        _fail_or_say(args.on_queue_timeout, error)
    except _Unreachable as error:
        _fail_or_say(args.on_connection_error, error)
    except ApiError as error:
        if error.status is not None:
            raise
        _fail_or_say(args.on_connection_error, Failure(str(error)))
    try:
        return _run(args, account, session)
    finally:
        if session is not None and session.own:
            _release(account, session.id)


def _fail_or_say(choice: str, error: Failure) -> None:
    if choice == "fail":
        raise error
    print(f"juice: {error}; going on without a GPU", file=sys.stderr)


def _release(account: Account, session_id: str) -> None:
    from ..client import ApiError

    try:
        with account.client() as client:
            client.release_session(session_id)
    except ApiError as error:
        print(f"juice: session {session_id} is not released: {error}", file=sys.stderr)


def _session_for(args: argparse.Namespace, account: Account) -> _Session:
    if not args.ephemeral and not any_given(args):
        active = active_session(account)
        if active:
            known = read_file("session.json")
            config = json.loads(known["config"])
            vram = [int(gpu["vramRequired"]) for gpu in known.get("gpus", [])]
            return _reachable(_Session(active, config["servers"][0], known["config"], vram, own=False))
    with account.client() as client:
        got, requirements = obtain(args, client, f"juice run {Path(args.application).name}")
    vram = [gpu.vram_required for gpu in got.gpus or ()]
    session = _Session(got.id, got.address, configuration(got, requirements), vram, own=True)
    try:
        return _reachable(session)
    except BaseException:
        _release(account, session.id)
        raise


def _reachable(session: _Session) -> _Session:
    """The session, once its agent has answered the phone."""
    host, _, port = session.address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise _Unreachable(f"the agent at {session.address} cannot be reached: {error}") from None
    return session


def client_library() -> Path:
    """libjuicejuda.so beside this command; else it is built, once. Failure when it cannot be."""
    from ..client_build import LIBRARY, ClientBuildError, cached_client

    beside = Path(os.environ.get(DIRECTORY_VARIABLE) or Path(sys.argv[0]).resolve().parent) / LIBRARY
    if beside.is_file():
        return beside
    try:
        return cached_client()
    except ClientBuildError as error:
        raise Failure(str(error)) from None


def environment_for(session: _Session | None) -> dict[str, str]:
    """The application's environment: the session in, the token out."""
    own = (*TOKEN_VARIABLES, DIRECTORY_VARIABLE)
    environment = {name: value for name, value in os.environ.items() if name not in own}
    if session is None:
        return environment
    library = str(client_library())
    others = [item for item in environment.get("LD_PRELOAD", "").replace(":", " ").split() if item != library]
    return environment | {
        "JUICE_CFG_OVERRIDE": session.config,
        "JUICE_SESSION_ID": session.id,
        "JUICE_SESSION_ADDRESS": session.address,
        "JUICE_SESSION_GPUS": str(len(session.vram)),
        "JUICE_SESSION_VRAM": ",".join(map(str, session.vram)),
        "CUDA_VISIBLE_DEVICES": ",".join(str(at) for at in range(len(session.vram))),
        "LD_PRELOAD": ":".join([library, *others]),
    }


@contextlib.contextmanager
def _forwarding(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Signals to this command go to the application; it decides what they mean."""

    def forward(number: int, frame: object) -> None:
        process.send_signal(number)

    before = {number: signal.signal(number, forward) for number in FORWARDED}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _run(args: argparse.Namespace, account: Account, session: _Session | None) -> int:
    environment = environment_for(session)
    try:
        process = subprocess.Popen([args.application, *args.arguments], env=environment)
    except OSError as error:
        raise Failure(f"{args.application}: {error.strerror}", 127 if error.errno == 2 else 126) from None
    with _forwarding(process):
        while True:
            try:
                code = process.wait(None if session is None else LOOK_EVERY_S)
                break
            except subprocess.TimeoutExpired:
                if session is not None and _is_over(account, session.id):
                    print(f"juice: session {session.id} is closed; ending {args.application}", file=sys.stderr)
                    process.kill()
    return code if code >= 0 else 128 - code


def _is_over(account: Account, session_id: str) -> bool:
    """Whether the controller says so; one that does not answer now says nothing."""
    from ..client import ApiError

    try:
        with account.client() as client:
            return client.session(session_id).state in ("closed", "canceling")
    except ApiError as error:
        return error.status == 404
