"""Cycles of request, assign, activate, release through the real controller process and real agents over HTTP.

The yardstick of the same run is a bare aiohttp server in a process of its own that answers a POST with a constant: what
this machine can do at this moment with the same server library and the same client.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from juice_sim.client import Client

from .load import Connection

WORKERS = 32
GPUS = 8
_BARE = """
from aiohttp import web
async def answer(request):
    await request.read()
    return web.Response(text="00000000-0000-0000-0000-000000000000")
async def main():
    app = web.Application()
    app.router.add_post("/", answer)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    print("http://127.0.0.1:%d" % runner.addresses[0][1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
import asyncio, sys
asyncio.run(main())
"""


@dataclass(frozen=True)
class Cycles:
    """One measurement. `rate`: cycles per second; `ratio`: to the bare server's POSTs per second, just before."""

    agents: int
    queued: int
    cycles: int
    rate: float
    bare_rate: float
    ratio: float
    active_p50_ms: float
    active_p99_ms: float


@contextlib.contextmanager
def _process(*argv: str, **options: object) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        [sys.executable, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        **options,  # type: ignore[call-overload]
    )
    try:
        yield process
    finally:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.close()
        process.terminate()
        process.wait(60)
        process.stdout.close()


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    if not line:
        raise RuntimeError(f"a benchmark process ended at its start with exit code {process.wait(10)}")
    return line


async def _bare(url: str, seconds: float) -> float:
    async def work() -> int:
        connection = await Connection(url, None).open()
        done = 0
        while time.perf_counter() < end:
            await connection.send("POST", "/", {"poolId": "x", "gpus": [{"vramRequired": 0}]})
            done += 1
        connection.close()
        return done

    start = time.perf_counter()
    end = start + seconds
    counts = await asyncio.gather(*(work() for _ in range(WORKERS)))
    return sum(counts) / (time.perf_counter() - start)


async def _cycle(url: str, token: str, pool_id: str, queued: int, cycles: int) -> tuple[float, list[float]]:
    """Cycles per second, and seconds from POST to the answer that says active (only without a queue)."""
    waits: list[float] = []
    fifo: deque[tuple[str, float]] = deque()
    body = {"poolId": pool_id, "gpus": [{"vramRequired": 0}]}
    connections = [await Connection(url, token).open() for _ in range(WORKERS)]

    async def request(connection: Connection) -> None:
        start = time.perf_counter()
        session_id = (await connection.send("POST", "/v1/request/session", body)).decode()
        fifo.append((session_id, start))

    async def fill(connection: Connection, count: int) -> None:
        for _ in range(count):
            await request(connection)

    async def finish(connection: Connection) -> None:
        session_id, start = fifo.popleft()
        while json.loads(await connection.send("GET", f"/v1/session/{session_id}?wait=30"))["state"] != "active":
            pass
        waits.append(time.perf_counter() - start)
        await connection.send("DELETE", f"/v1/session/{session_id}")

    async def work(connection: Connection) -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await request(connection)
            await finish(connection)

    await asyncio.gather(*(fill(connection, queued // WORKERS) for connection in connections))
    left = cycles
    start = time.perf_counter()
    await asyncio.gather(*(work(connection) for connection in connections))
    took = time.perf_counter() - start
    for connection in connections:
        connection.close()
    return cycles / took, waits


def measure(agents: int, queued: int = 0, cycles: int = 4000) -> Cycles:
    """One size: `agents` agents of 8 GPUs, `queued` sessions that wait all the time."""
    with tempfile.TemporaryDirectory() as data, _process("-c", _BARE) as bare:
        bare_rate = asyncio.run(_bare(_first_line(bare), 2.0))
        controller = _process(
            "-m", "juice_sim.cli.main", "controller", "--listen", "127.0.0.1:0", "--data", f"{data}/data"
        )
        with controller as process:
            told = json.loads(_first_line(process))
            token_file = told["admin_token_file"]
            token = Path(token_file).read_text().strip()
            with Client(told["url"], token) as client:
                pool_id = client.create_pool("bench").id
            arguments = [told["url"], token_file, pool_id, str(agents), str(GPUS)]
            with _process("-m", "benchmarks.agents_process", *arguments) as carrier:
                _first_line(carrier)
                rate, waits = asyncio.run(_cycle(told["url"], token, pool_id, queued, cycles))
    ordered = sorted(waits)
    return Cycles(
        agents,
        queued,
        cycles,
        rate,
        bare_rate,
        rate / bare_rate,
        statistics.median(ordered) * 1000,
        ordered[int(len(ordered) * 0.99)] * 1000,
    )
