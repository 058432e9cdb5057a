"""The HTTP side of agents: a small server whose connections can be taken over.

A client that connects to its session gets no HTTP answer; from then on the connection is the GPU protocol's.

A server of our own, because the connection is handed over right behind the request: what the client has already sent
after it must not be lost in a parser's buffer. HTTP/1.1 with Content-Length, nothing more.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

MAX_HEAD = 16 << 10
MAX_BODY = 64 << 10
IDLE_S = 75.0

_REASONS = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    411: "Length Required",
    413: "Content Too Large",
    415: "Unsupported Media Type",
    503: "Service Unavailable",
}


@dataclass
class Request:
    """One request. `reader` and `writer` are the connection, for the handler that takes it over."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    reader: asyncio.StreamReader = field(repr=False)
    writer: asyncio.StreamWriter = field(repr=False)


@dataclass(frozen=True)
class Response:
    """One answer."""

    status: int = 200
    body: bytes = b""
    content_type: str = ""


TAKEN_OVER = None
Handler = Callable[[Request], Awaitable["Response | None"]]


class Refusal(Exception):
    """A request that is not served."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def as_json(value: Any, status: int = 200) -> Response:
    """An answer in JSON."""
    return Response(status, json.dumps(value, separators=(",", ":")).encode(), "application/json")


class HttpServer:
    """Listens on one address. `handler` answers a request, or returns TAKEN_OVER when the connection is now its own."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.Task[None]] = set()
        self.host = ""
        self.port = 0

    async def start(self, host: str, port: int) -> None:
        """Listen; port 0 takes a free one. Raises OSError."""
        self._server = await asyncio.start_server(self._connection, host, port, limit=MAX_HEAD, backlog=1024)
        self.host, self.port = self._server.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        """Close everything."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for task in list(self._connections):
            task.cancel()
        if self._connections:
            await asyncio.gather(*self._connections, return_exceptions=True)

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._serve(reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.TimeoutError):
            pass  # the client has gone or fell silent
        except asyncio.CancelledError:
            pass  # stop() ends this connection; nobody waits for the task's outcome
        finally:
            self._connections.discard(task)
            writer.close()  # sends what is still buffered, then closes

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                request = await self._read(reader, writer)
                if request is None:
                    return
                response = await self._handler(request)
            except Refusal as error:
                await _write(writer, as_json({"message": str(error)}, error.status), keep=False)
                return
            if response is TAKEN_OVER:
                return
            keep = request.headers.get("connection", "").lower() != "close"
            await _write(writer, response, keep)
            if not keep:
                return

    async def _read(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> Request | None:
        try:
            head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), IDLE_S)
        except asyncio.LimitOverrunError:
            raise Refusal(413, f"the head of the request is too large; accepted: {MAX_HEAD} bytes") from None
        except asyncio.IncompleteReadError:
            return None
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            raise Refusal(400, "not an HTTP request")
        headers: dict[str, str] = {}
        for line in lines[1:-2]:
            name, colon, value = line.partition(":")
            if not colon or name != name.strip():
                raise Refusal(400, "a header is malformed")
            headers[name.lower()] = value.strip()
        if "transfer-encoding" in headers:
            raise Refusal(411, "send the body with Content-Length")
        length = headers.get("content-length", "0")
        if not (length.isdigit() and length.isascii()):
            raise Refusal(400, "Content-Length is not a number")
        if int(length) > MAX_BODY:
            raise Refusal(413, f"the body is too large; accepted: {MAX_BODY} bytes")
        if headers.get("expect", "").lower() == "100-continue":
            writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        body = await asyncio.wait_for(reader.readexactly(int(length)), IDLE_S)
        return Request(words[0], words[1].partition("?")[0], headers, body, reader, writer)


async def _write(writer: asyncio.StreamWriter, response: Response, keep: bool) -> None:
    lines = [f"HTTP/1.1 {response.status} {_REASONS.get(response.status, 'Error')}"]
    if response.content_type:
        lines.append(f"Content-Type: {response.content_type}")
    lines.append(f"Content-Length: {len(response.body)}")
    if not keep:
        lines.append("Connection: close")
    writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + response.body)
    with contextlib.suppress(ConnectionError):
        await writer.drain()
