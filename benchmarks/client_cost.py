"""What the client library costs each process of a job: `python -m benchmarks.client_cost [--processes N]`.

The same program is started with and without the library, in turns, against a controller and an agent in another
process. Printed per process: wall time from start to end (median), and CPU time of the process itself (mean).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

from juice_sim.client_build import cached_client

SERVE = """
import json, sys
from juice_sim.local import LocalJuice
with LocalJuice() as juice:
    pool = juice.add_pool("test", gpus=1)
    session = juice.client.wait_for_session(juice.client.request_session(pool, vram=1 << 30))
    print(json.dumps({"id": session.id, "servers": [session.address]}), flush=True)
    sys.stdin.read()
"""
PROGRAMS = {
    "true": ["/bin/true"],
    "sh -c 'exit 0'": ["/bin/sh", "-c", "exit 0"],
    "sh, and 10 x true": ["/bin/sh", "-c", "/bin/true;" * 10 + "exit 0"],
}


def run(argv: list[str], environment: dict[str, str]) -> tuple[float, float]:
    """(wall, CPU) milliseconds of one process and its children."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    os.waitpid(os.posix_spawn(argv[0], argv, environment), 0)
    wall = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall * 1e3, cpu * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--processes", type=int, default=500, help="per program and kind (default: %(default)s)")
    args = parser.parse_args()
    library = cached_client()
    server = subprocess.Popen([sys.executable, "-c", SERVE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    config = server.stdout.readline().strip()
    json.loads(config)
    plain = dict(os.environ)
    juice = {**plain, "JUICE_CFG_OVERRIDE": config, "LD_PRELOAD": str(library)}
    print(f"{'program':<20}{'plain':>18}{'with library':>18}{'per process':>18}   (wall ms / CPU ms)")
    for name, argv in PROGRAMS.items():
        number = args.processes // 5 if "10" in name else args.processes
        pairs = [(run(argv, plain), run(argv, juice)) for _ in range(number)]
        walls = [statistics.median(pair[kind][0] for pair in pairs) for kind in (0, 1)]
        cpus = [statistics.mean(pair[kind][1] for pair in pairs) for kind in (0, 1)]
        processes = 11 if "10" in name else 1
        more = ((walls[1] - walls[0]) / processes, (cpus[1] - cpus[0]) / processes)
        cells = [f"{wall:.2f} / {cpu:.2f}" for wall, cpu in [*zip(walls, cpus, strict=True), more]]
        print(f"{name:<20}" + "".join(f"{cell:>18}" for cell in cells))
    server.communicate("")


if __name__ == "__main__":
    main()
