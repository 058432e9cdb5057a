"""One controller that serves HTTP: `serve` inside a running event loop, `ControllerServer` in a thread of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import ssl
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from . import quirks as quirks_of
from . import rest
from .core.commands import CreateToken
from .core.controller import ADMIN, Controller
from .core.errors import Refused
from .core.settings import Settings
from .faults import Faults
from .quirks import Quirks
from .rest_base import Api
from .rest_quirks import SlowTick
from .rest_tokens import new_secret, sha256_hex
from .service import Service
from .store import EventStore, StoreError
from .webhooks import Webhooks

log = logging.getLogger("juice_sim.server")

http_log = logging.getLogger("juice_sim.http")

ADMIN_TOKEN_FILE = "admin.token"
ADMIN_TOKEN_LIFETIME_S = 365 * 86400.0


def _spare_the_log(record: logging.LogRecord) -> bool:
    """A request that is no HTTP becomes one line: aiohttp's traceback would quote it, the token included."""
    error = record.exc_info[1] if record.exc_info else None
    if isinstance(error, HttpProcessingError):
        record.msg, record.args = f"{record.getMessage()}: {type(error).__name__}, answered {error.code}", ()
        record.exc_info = record.exc_text = None
        record.levelno, record.levelname = logging.WARNING, "WARNING"
    return True


http_log.addFilter(_spare_the_log)


class ServerError(Exception):
    """The server cannot start; one line that says why and what to do."""


@dataclass(frozen=True)
class ServerSettings:
    """What one server is started with. `data_dir` None keeps everything in memory; `port` 0 takes a free one."""

    data_dir: Path | None = None
    listen: str = "127.0.0.1"
    port: int = 0
    auth: bool = True
    quirks: Quirks = field(default_factory=Quirks)
    tls_cert: Path | None = None
    tls_key: Path | None = None
    webhook: str | None = None
    settings: Settings = field(default_factory=Settings)
    fault_seed: int | None = None
    clock: Callable[[], float] = time.time


class RunningServer:
    """A server inside the running event loop. `await RunningServer.start(settings)`, in the end `await stop()`."""

    def __init__(self, settings: ServerSettings) -> None:
        self.settings = settings
        self.url = ""
        self.admin_token: str | None = None
        self.admin_token_file: Path | None = None
        self._runner: web.AppRunner | None = None
        self._webhooks: Webhooks | None = None
        self._slow_tick: asyncio.Task[None] | None = None
        self.service: Service
        self.api: Api

    @classmethod
    async def start(cls, settings: ServerSettings) -> RunningServer:
        """Open the log, listen, serve. Raises StoreError or ServerError, with everything closed again."""
        server = cls(settings)
        try:
            await server._start()
        except BaseException:
            await server.stop()
            raise
        return server

    async def _start(self) -> None:
        settings = self.settings
        tls = _tls(settings)
        held: list[SlowTick] = []

        def new_id() -> str:
            return (held[0].next_id() if held else None) or str(uuid.uuid4())

        store = EventStore(settings.data_dir)
        try:
            self.service = Service(store, settings.settings, new_id, settings.clock)
        except BaseException:
            store.close()
            raise
        self.api = Api(
            service=self.service,
            auth=settings.auth,
            quirks=settings.quirks,
            faults=Faults(seed=settings.fault_seed),
            hostname=socket.gethostname(),
        )
        if "slow-tick" in settings.quirks:
            held.append(SlowTick(self.service, lambda: str(uuid.uuid4())))
            self.api.held = held[0]
            self._slow_tick = asyncio.create_task(held[0].run(), name="juice-sim slow tick")
        if settings.auth:
            await self._admin_token()
        if settings.webhook:
            self._webhooks = Webhooks(settings.webhook, self.service.agent_of)
            self.service.listen(self._webhooks.on_event)
            await self._webhooks.start()
        await self.service.start()
        self._runner = web.AppRunner(rest.build_app(self.api), access_log=None, logger=http_log, shutdown_timeout=2.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, settings.listen, settings.port, ssl_context=tls, backlog=4096)
        try:
            await site.start()
        except OSError as error:
            reason = os.strerror(error.errno) if error.errno else str(error)
            raise ServerError(
                f"cannot listen on {settings.listen}:{settings.port}: {reason}; give another address, or port 0"
            ) from None
        host, port = self._runner.addresses[0][:2]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if tls else 'http'}://{shown}:{port}"

    async def _admin_token(self) -> None:
        """Read the admin token of the data directory, or make one: at the first start, and when it is worth nothing."""
        directory = self.settings.data_dir
        path = directory / ADMIN_TOKEN_FILE if directory is not None else None
        secret = ""
        if path is not None:
            with contextlib.suppress(FileNotFoundError):
                secret = path.read_text("ascii").strip()
        reader, now = self.service.reader, self.service.now()
        if not secret or not _is_valid(reader, secret, now):
            secret = new_secret()
            self.service.command(
                CreateToken(
                    "admin token made by the controller",
                    sha256_hex(secret),
                    user_id="admin",
                    lifetime_s=ADMIN_TOKEN_LIFETIME_S,
                    is_admin=True,
                ),
                ADMIN,
            )
            await self.service.settled()
            if path is not None:
                _write_secret(path, secret)
        self.admin_token, self.admin_token_file = secret, path

    async def stop(self) -> None:
        """Stop serving, finish what is pending, close the log. May be called twice."""
        if hasattr(self, "service"):
            self.service.stopping = True
            self.service.wake_all()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        if self._slow_tick is not None:
            self._slow_tick.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._slow_tick
            self._slow_tick = None
        if self._webhooks is not None:
            await self._webhooks.stop()
            self._webhooks = None
        if hasattr(self, "service"):
            await self.service.stop()


def _is_valid(reader: Controller, secret: str, now: float) -> bool:
    try:
        return reader.authenticate(sha256_hex(secret), now).is_admin
    except Refused:
        return False


def _write_secret(path: Path, secret: str) -> None:
    """Write mode 0600 from the first byte on, and whole or not at all."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        os.fchmod(handle, 0o600)
        os.write(handle, f"{secret}\n".encode())
        os.fsync(handle)
    finally:
        os.close(handle)
    os.replace(temporary, path)


def _tls(settings: ServerSettings) -> ssl.SSLContext | None:
    if settings.tls_cert is None and settings.tls_key is None:
        return None
    if settings.tls_cert is None:
        raise ServerError("a TLS key without a certificate; give both")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)
    except (OSError, ssl.SSLError) as error:
        raise ServerError(f"TLS certificate {settings.tls_cert}: {error}; give a PEM certificate and its key") from None
    return context


class ControllerServer:
    """A server in a thread with an event loop of its own; for tests and for programs that are not asynchronous.

    `with ControllerServer(None) as server: requests.get(server.url + "/health")`. Raises from `start()` what the server
    itself raised.
    """

    def __init__(
        self,
        data_dir: Path | None = None,
        *,
        listen: str = "127.0.0.1",
        port: int = 0,
        auth: bool = True,
        quirks: str | Quirks = "",
        tls_cert: Path | None = None,
        tls_key: Path | None = None,
        webhook: str | None = None,
        settings: Settings | None = None,
        fault_seed: int | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.settings = ServerSettings(
            data_dir=Path(data_dir) if data_dir is not None else None,
            listen=listen,
            port=port,
            auth=auth,
            quirks=quirks_of.parse(quirks) if isinstance(quirks, str) else quirks,
            tls_cert=tls_cert,
            tls_key=tls_key,
            webhook=webhook,
            settings=settings or Settings(),
            fault_seed=fault_seed,
            clock=clock,
        )
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running: RunningServer | None = None
        self._failure: BaseException | None = None
        self._stop: asyncio.Event | None = None

    def start(self, timeout_s: float = 30.0) -> ControllerServer:
        """Start and return when it serves."""
        if self._thread is not None:
            raise ServerError("the server runs already")
        started = threading.Event()
        self._failure = None
        self._thread = threading.Thread(target=self._run, args=(started,), name="juice-sim controller", daemon=True)
        self._thread.start()
        if not started.wait(timeout_s):
            raise ServerError(f"the server has not started within {timeout_s:g} s")
        if self._failure is not None:
            self._thread.join()
            self._thread = None
            raise self._failure
        return self

    def _run(self, started: threading.Event) -> None:
        async def main() -> None:
            self._loop = asyncio.get_running_loop()
            self._stop = asyncio.Event()
            try:
                self._running = await RunningServer.start(self.settings)
            except BaseException as error:
                self._failure = error
                started.set()
                return
            started.set()
            await self._stop.wait()
            await self._running.stop()

        asyncio.run(main())

    def stop(self, timeout_s: float = 30.0) -> None:
        """Stop and wait until everything is closed. May be called twice."""
        thread, self._thread = self._thread, None
        if thread is None or self._loop is None or self._stop is None:
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended by itself
            self._loop.call_soon_threadsafe(self._stop.set)
        thread.join(timeout_s)
        if thread.is_alive():
            raise ServerError(f"the server has not stopped within {timeout_s:g} s")
        self._running = None

    @property
    def running(self) -> RunningServer:
        """The server inside the thread. Its objects belong to that thread."""
        if self._running is None:
            raise ServerError("the server does not run; call start() first")
        return self._running

    @property
    def url(self) -> str:
        """Base URL, without a slash at the end."""
        return self.running.url

    @property
    def admin_token(self) -> str | None:
        """Secret of an admin token; None without authentication."""
        return self.running.admin_token

    def __enter__(self) -> ControllerServer:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


__all__ = ["ControllerServer", "RunningServer", "ServerError", "ServerSettings", "StoreError"]
