"""The sandbox's control socket: a unix socket of mode 0600; one request a connection.

A request is one line of JSON with `op`. The answer is lines of JSON: `{"out": text}` and `{"err": text}` in any number,
then one of `{"exit": code}`, `{"step": words}`, `{"result": value}`, `{"error": text}`. The client hangs up (or only
shuts down its sending side) to cancel what it waits for.
"""

from __future__ import annotations

import json
import os
import select
import socket
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

MAX_REQUEST = 64 * 1024 * 1024


class Reply:
    """The client's end of one request. Thread-safe."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._lock = threading.Lock()

    def _send(self, value: Mapping[str, Any]) -> None:
        with self._lock:
            self._connection.sendall(json.dumps(value).encode() + b"\n")

    def out(self, text: str) -> None:
        if text:
            self._send({"out": text})

    def err(self, text: str) -> None:
        if text:
            self._send({"err": text})

    def ask_stdin(self) -> str:
        """All that the client has on its standard input."""
        self._send({"stdin": True})
        return str(_read(self._connection)["stdin"])

    def step(self, words: Sequence[str]) -> None:
        """The client becomes this program."""
        self._send({"step": list(words)})

    def exit(self, code: int) -> None:
        self._send({"exit": code})

    def result(self, value: Any) -> None:
        self._send({"result": value})

    def error(self, text: str) -> None:
        self._send({"error": text})

    def hung_up(self) -> bool:
        """Whether the client has closed its end (it sends nothing after its request)."""
        readable, _, _ = select.select([self._connection], [], [], 0)
        return bool(readable) and not self._connection.recv(1, socket.MSG_PEEK)


Handler = Callable[[Mapping[str, Any], Reply], None]


class ControlServer:
    """Answers each connection in a thread of its own with `handler(request, reply)`."""

    def __init__(self, path: Path, handler: Handler) -> None:
        self._path = path
        self._handler = handler
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)

    def start(self) -> None:
        before = os.umask(0o177)  # the socket is private from its first moment on
        try:
            self._socket.bind(str(self._path))
        finally:
            os.umask(before)
        self._socket.listen(128)
        threading.Thread(target=self._serve, name="control", daemon=True).start()

    def stop(self) -> None:
        """Take no further requests."""
        self._path.unlink(missing_ok=True)
        # shutdown wakes the thread in accept; close alone does not.
        self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return  # stopped
            threading.Thread(target=self._answer, args=(connection,), name="request", daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            reply = Reply(connection)
            try:
                request = _read(connection)
                self._handler(request, reply)
            except ConnectionError:
                return  # the client has gone
            except Exception as error:  # a bug must not take the sandbox down, and its user must learn of it
                try:
                    reply.error(f"{type(error).__name__}: {error}")
                except OSError:
                    return
                raise


def _read(connection: socket.socket) -> Mapping[str, Any]:
    data = bytearray()
    while not data.endswith(b"\n"):
        part = connection.recv(1 << 16)
        if not part:
            raise ConnectionResetError("no whole request")
        data += part
        if len(data) > MAX_REQUEST:
            raise ValueError(f"a request of more than {MAX_REQUEST} bytes")
    value = json.loads(data)
    if not isinstance(value, dict):
        raise ValueError("a request that is no object")
    return value
