"""Licenses of a sandbox with a real Slurm: declared, kept at what is free, given to jobs by job_submit.lua."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping

from juice_sim.client import Client
from juice_sim.gpu_profiles import make_gpus
from juice_sim.slurm_licenses.capacity import shapes
from juice_sim.slurm_licenses.install import job_submit_lua
from juice_sim.slurm_licenses.names import conf_line
from juice_sim.slurm_licenses.slurm_commands import SlurmCommands
from juice_sim.slurm_licenses.sync import LicenseSync
from juice_sim.wire_types import Agent, Gpu, Pool

from .places import Place
from .spec import SandboxSpec

log = logging.getLogger("licenses")


class SandboxLicenses:
    """`declared` is slurm.conf's `Licenses=` value for the pools as they were asked for."""

    def __init__(self, place: Place, spec: SandboxSpec) -> None:
        self._table = place.directory / "juice-licenses.tsv"
        self._etc = place.directory / "slurm" / "etc"
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        pools = [Pool(id=f"{position}", name=pool.name) for position, pool in enumerate(spec.pools)]
        agents = [
            Agent(
                pool_id=f"{position}",
                gpus=[Gpu(vram=gpu.vram) for gpu in make_gpus(pool.model, pool.gpus, vram=pool.vram)],
                taints=dict(pool.taints),
            )
            for position, pool in enumerate(spec.pools)
        ]
        self.declared = conf_line(shapes(pools, agents, {}).values()).removeprefix("Licenses=")

    def slurm_conf(self) -> tuple[str, ...]:
        """Further lines of slurm.conf."""
        return ("JobSubmitPlugins=lua",)

    def install(self) -> None:
        """Put job_submit.lua where slurmctld looks for it: beside slurm.conf."""
        self._etc.mkdir(parents=True, exist_ok=True)
        (self._etc / "job_submit.lua").write_text(job_submit_lua(self._table), encoding="utf-8")

    def start(self, url: str, token: str | None, environment: Mapping[str, str]) -> None:
        """Export what is free, then keep it so."""
        commands = SlurmCommands({**environment, "LANG": "C.UTF-8"})
        sync = LicenseSync(Client(url, token, tries=1), commands, table=self._table, log=log.info)
        sync.once()
        self._thread = threading.Thread(
            target=sync.run,
            args=(self._stop,),
            kwargs={"events": Client(url, token, tries=1)},
            name="licenses",
            daemon=True,
        )
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join(10.0)
