"""Ports of this host that stay reserved without being used by us."""

from __future__ import annotations

import socket


class Ports:
    """Ports that nobody else gets: bound, never listened on, kept until `release`. Slurm binds with SO_REUSEADDR, which
    Linux lets share a port with a socket that has it too and does not listen, but never gives out by itself."""

    def __init__(self, count: int) -> None:
        self.sockets = []
        for _ in range(count):
            held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            held.bind(("127.0.0.1", 0))
            self.sockets.append(held)
        self.numbers = [held.getsockname()[1] for held in self.sockets]

    def release(self) -> None:
        for held in self.sockets:
            held.close()
