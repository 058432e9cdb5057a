"""Sandboxes of the tests lie in a TMPDIR of their own, so that those of the user stay untouched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from fake_cluster.sandbox import processes
from fake_cluster.world_service import child_environment


@dataclass(frozen=True)
class JuiceSim:
    """The `juice-sim` command as a user runs it: another process, with its own TMPDIR."""

    tmp: Path

    @property
    def environment(self) -> dict[str, str]:
        commands = self.tmp / "commands"
        return {**child_environment(), "TMPDIR": str(self.tmp), "PATH": f"{commands}:{os.environ['PATH']}"}

    def __call__(
        self, *words: str, text_in: str = "", env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "juice_sim.cli.main", *words],
            env={**self.environment, **(env or {})},
            cwd=self.tmp,
            input=text_in,
            capture_output=True,
            text=True,
            timeout=170,
        )

    @property
    def base(self) -> Path:
        return self.tmp / f"juice-sim-{os.getuid()}"

    def processes(self, name: str) -> list[int]:
        """Ids of all processes whose environment or command line names the sandbox's directory."""
        home = str(self.base / name).encode()
        found = []
        for entry in os.listdir("/proc"):
            if not entry.isdigit() or int(entry) == os.getpid() or processes.Process.of(int(entry)) is None:
                continue
            try:
                texts = [Path(f"/proc/{entry}/{file}").read_bytes() for file in ("cmdline", "environ")]
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            if any(home in text for text in texts):
                found.append(int(entry))
        return found


def _make(tmp: Path) -> JuiceSim:
    commands = tmp / "commands"
    commands.mkdir()
    program = commands / "juice-sim"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m juice_sim.cli.main "$@"\n')
    program.chmod(0o755)
    return JuiceSim(tmp)


def _remove(juice_sim: JuiceSim) -> None:
    done = juice_sim("down", "--all")
    shutil.rmtree(juice_sim.tmp, ignore_errors=True)
    assert done.returncode == 0, done.stderr


@pytest.fixture
def juice_sim() -> Iterator[JuiceSim]:
    tmp = Path(tempfile.mkdtemp(prefix="jx-"))
    tmp.chmod(0o755)
    made = _make(tmp)
    yield made
    _remove(made)


@pytest.fixture(scope="module")
def shared_juice_sim() -> Iterator[JuiceSim]:
    tmp = Path(tempfile.mkdtemp(prefix="jx-"))
    tmp.chmod(0o755)
    made = _make(tmp)
    yield made
    _remove(made)


@pytest.fixture(scope="module")
def simulated(shared_juice_sim: JuiceSim) -> JuiceSim:
    """Sandbox `default` with a simulated Slurm: pool test, one agent of two A10 with 24 GiB each."""
    done = shared_juice_sim("up", "--slurm", "simulated", "--pool", "test:agents=1,gpus=2,vram=24GiB")
    assert done.returncode == 0, done.stderr
    return shared_juice_sim
