"""CPU of one run of a hook process, as ratios: what slurmctld pays for each job of the cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

from juice_sim.hooks_install import install_hooks
from juice_sim.local import LocalJuice
from juice_sim.machine import hook_python

from .measure import Command, Row, compare

LOOPS = 50
"""The kernel accounts CPU in steps that are coarse beside one `sh -c :`, so a shell loop runs it this many times."""


def _loop(command: str) -> list[str]:
    return ["/bin/sh", "-c", f"i=0; while [ $i -lt {LOOPS} ]; do {command}; i=$((i+1)); done"]


def without_juice(runs: int = 15) -> list[Row]:
    """Prolog and epilog of a job without Juice options; the yardstick is `sh -c :`. Target: at most 2."""
    with tempfile.TemporaryDirectory() as name:
        hooks = install_hooks(
            Path(name) / "hooks", controller_url="http://127.0.0.1:9", token=None, state_dir=Path(name) / "state"
        )
        env = {"SLURM_JOB_ID": "1", "SLURM_CLUSTER_NAME": "bench"}
        commands = {kind: Command(_loop(str(hooks / f"juice-{kind}.sh")), env) for kind in ("prolog", "epilog")}
        return compare(
            Command(_loop("/bin/sh -c :"), env),
            commands,
            runs=runs,
            repeats={"": LOOPS, "prolog": LOOPS, "epilog": LOOPS},
        )


def with_juice(runs: int = 25) -> list[Row]:
    """A granted prolog and the epilog after it; the yardstick is an idle `python3 -I -S -c pass`. Target: at most 5."""
    python = hook_python()
    with tempfile.TemporaryDirectory() as name, LocalJuice() as juice:
        juice.add_pool("test", agents=1, gpus=1)
        hooks = install_hooks(
            Path(name) / "hooks",
            controller_url=juice.url,
            token=juice.token,
            state_dir=Path(name) / "state",
            python=python,
        )

        def job(number: int) -> Mapping[str, str]:
            return {
                "SLURM_JOB_ID": str(number + 1),
                "SLURM_JOB_UID": "1000",
                "SLURM_JOB_RESTART_COUNT": "0",
                "SLURM_CLUSTER_NAME": "bench",
                "SPANK_JUICE_POOL": "test",
            }

        commands = {kind: Command([str(hooks / f"juice-{kind}.sh")], {}, before=job) for kind in ("prolog", "epilog")}
        return compare(Command([python, "-I", "-S", "-c", "pass"], {}), commands, runs=runs)
