"""Jobs per second through a real slurmctld with different hooks, taken in turn: `python -m benchmarks slurm`.

Each round submits the same number of jobs (as one array, which costs one submission) with each kind of hooks, one kind
after the other, to the same slurmctld; figures are the medians of the rounds, and ratios are paired round by round.
Changing the hooks is a `scontrol reconfigure`.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fake_cluster.slurm.interface import JobState

from .slurm_site import POOL, Site

NODES = 4
GPUS = 64
CURL_PROLOG = """#!/bin/sh
# The requests of the hooks, without their care: no journal, no seal, no retry, no reading of the answers. Those that
# need nothing of each other's answers share one curl and its connection.
[ "$SLURM_JOB_NAME" = curl ] || exit 0
ask() { /usr/bin/curl -sf -H @%(header)s -H 'Content-Type: application/json' "$@"; }
ask %(url)s/v1/pools >/dev/null || exit 1
id=$(ask -d '{"poolId":"%(pool)s","gpus":[{"vramRequired":0}]}' %(url)s/v1/request/session) || exit 1
case $(ask "%(url)s/v1/session/$id?wait=4" "%(url)s/v1/session/$id/story" "%(url)s/v1/agent/%(agent)s") in
*'"active"'*) ;;
*) exit 1 ;;
esac
echo "$id" >%(directory)s/$SLURM_JOB_ID
"""
CURL_EPILOG = """#!/bin/sh
[ "$SLURM_JOB_NAME" = curl ] || exit 0
read -r id <%(directory)s/$SLURM_JOB_ID || exit 0
exec /usr/bin/curl -sf -X DELETE -H @%(header)s "%(url)s/v1/session/$id"
"""


@dataclass(frozen=True)
class Throughput:
    """One kind of hooks. `rate`: jobs per second, median; `ratio`: to `yardstick` in the same round, median."""

    name: str
    rate: float
    rates: tuple[float, ...]
    yardstick: str
    ratio: float
    target: float | None

    @property
    def ok(self) -> bool:
        return self.target is None or self.ratio >= self.target


@dataclass(frozen=True)
class Kind:
    """Hooks to measure, and the options of the jobs. Those of the stand-in with curl ask by their name: nothing seals a
    session file for them, so the plugin must not wait for one."""

    prolog: Path | None
    epilog: Path | None
    options: tuple[str, ...] = ()


def _scripts(site: Site) -> Mapping[str, Kind]:
    directory = site.directory / "curl"
    directory.mkdir()
    header = directory / "header"
    header.touch(mode=0o600)
    header.write_text(f"Authorization: Bearer {(site.hooks_dir / 'token').read_text().strip()}\n")
    with site.client() as client:
        agent = client.agents()[0].id
    values = {
        "agent": agent,
        "header": header,
        "pool": site.service.pool_ids[POOL],
        "url": site.service.url,
        "directory": directory,
    }
    for name, text in (("prolog", CURL_PROLOG), ("epilog", CURL_EPILOG)):
        (directory / name).write_text(text % values)
        (directory / name).chmod(0o755)
    true = Path("/bin/true")
    return {
        "no hooks": Kind(None, None),
        "/bin/true": Kind(true, true),
        "our hooks, jobs without Juice": Kind(site.prolog, site.epilog),
        "our hooks, jobs with Juice": Kind(site.prolog, site.epilog, (f"--juice-pool={POOL}",)),
        "sh + curl, jobs with Juice": Kind(directory / "prolog", directory / "epilog", ("--job-name=curl",)),
    }


def _batch(site: Site, kind: Kind, jobs: int) -> float:
    """Jobs per second from the submission of an array to the end of the last epilog."""
    slurm = site.real
    slurm.reconfigure(replace(slurm.settings, prolog=kind.prolog, epilog=kind.epilog))
    options = [f"--array=1-{jobs}", "--output=/dev/null", "--hold", *kind.options]
    array = slurm.sbatch("#!/bin/sh\n:\n", options)
    began = time.monotonic()
    site.shell(f"scontrol release {array}")
    while True:
        left = site.shell(f"squeue -h -o %A -j {array} 2>/dev/null").stdout.split()
        if not left:
            break
        if time.monotonic() - began > 300:
            raise TimeoutError(f"{len(left)} of {jobs} jobs have not ended: {slurm.log()[-2000:]}")
        time.sleep(0.05)
    took = time.monotonic() - began
    states = [job.state for job in slurm.jobs() if job.array_job_id == array]
    wrong = [state for state in states if state is not JobState.COMPLETED]
    if len(states) != jobs or wrong:
        raise RuntimeError(f"{len(states)} jobs of {jobs}, {len(wrong)} not completed: {wrong[:3]}")
    return jobs / took


YARDSTICKS = {
    "our hooks, jobs without Juice": ("/bin/true", 0.9),
    "our hooks, jobs with Juice": ("sh + curl, jobs with Juice", 0.8),
}


def measure(jobs: int = 100, rounds: int = 3, kinds: Sequence[str] | None = None) -> list[Throughput]:
    """All kinds in turn, `rounds` times after a short first round that warms the caches."""
    with Site(agents=8, gpus=GPUS // 8, nodes=NODES, cpus_per_node=16) as site:
        measured = {name: kind for name, kind in _scripts(site).items() if kinds is None or name in kinds}
        rates: dict[str, list[float]] = {name: [] for name in measured}
        for number in range(rounds + 1):
            for name, kind in measured.items():
                rate = _batch(site, kind, jobs if number else 10)
                if number:
                    rates[name].append(rate)
    site.remove()
    found = []
    for name, values in rates.items():
        yardstick, target = YARDSTICKS.get(name, ("no hooks", None))
        ratios = [mine / other for mine, other in zip(values, rates[yardstick], strict=True)]
        found.append(
            Throughput(name, statistics.median(values), tuple(values), yardstick, statistics.median(ratios), target)
        )
    return found
