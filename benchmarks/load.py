"""A lean HTTP/1.1 client for load: one keep-alive connection a worker, so that the client is not what is measured."""

from __future__ import annotations

import asyncio
import json
from typing import Any
from urllib.parse import urlsplit


class Connection:
    """One keep-alive connection. `await send("POST", "/v1/...", body)` returns the answer's body; errors raise."""

    def __init__(self, url: str, token: str | None) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname or "", parts.port or 80
        self._head = f"Host: {parts.netloc}\r\n" + (f"Authorization: Bearer {token}\r\n" if token else "")
        self._reader: asyncio.StreamReader
        self._writer: asyncio.StreamWriter

    async def open(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        return self

    def close(self) -> None:
        self._writer.close()

    async def send(self, method: str, path: str, body: Any = None) -> bytes:
        payload = b"" if body is None else json.dumps(body).encode()
        head = f"{method} {path} HTTP/1.1\r\n{self._head}Content-Length: {len(payload)}\r\n"
        if payload:
            head += "Content-Type: application/json\r\n"
        self._writer.write(head.encode() + b"\r\n" + payload)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        status = int(answer[9:12])
        at = answer.lower().index(b"content-length:") + 15
        content = await self._reader.readexactly(int(answer[at : answer.index(b"\r", at)]))
        if status != 200:
            raise RuntimeError(f"{method} {path}: {status} {content[:200].decode(errors='replace')}")
        return content
