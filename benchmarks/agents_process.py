"""Agents for benchmarks, in a process of their own: `... -m benchmarks.agents_process URL TOKEN_FILE POOL_ID N GPUS`.

Prints one line when all are registered and runs until its standard input is closed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from juice_sim.agent_process import AgentHost, AgentSpec
from juice_sim.gpu_profiles import make_gpus


async def main(url: str, token_file: str, pool_id: str, count: str, gpus: str) -> None:
    token = Path(token_file).read_text().strip()
    async with AgentHost(url, token, shared=("127.0.0.1", 0)) as host:
        specs = [
            AgentSpec(pool_id, make_gpus("A10", int(gpus), identity=f"bench-{number}"), hostname=f"bench-{number}")
            for number in range(int(count))
        ]
        for start in range(0, len(specs), 50):
            await asyncio.gather(*(host.add(spec, timeout_s=120.0) for spec in specs[start : start + 50]))
        print("ready", flush=True)
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


asyncio.run(main(*sys.argv[1:]))
