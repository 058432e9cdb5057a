"""Slurm's side: the licenses that it declares, the jobs that hold some, and the reservation that keeps the rest back.

Only `scontrol` and `squeue` are called, as an operator or SlurmUser. The hooks must not do that; this is no hook.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from .capacity import HeldJob
from .names import parse_licenses

TIMEOUT_S = 30.0


class SlurmFailed(Exception):
    """A command of Slurm failed; `str(error)` is one line."""


@dataclass(frozen=True)
class Declared:
    """One license as `scontrol show license` tells it."""

    total: int
    used: int
    reserved: int


@dataclass(frozen=True)
class SlurmCommands:
    """`environment` is for the commands: PATH, and SLURM_CONF where the configuration is not the system's."""

    environment: Mapping[str, str]

    @classmethod
    def of_system(cls, slurm_conf: str | None = None) -> SlurmCommands:
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LANG": "C.UTF-8"}
        conf = slurm_conf or os.environ.get("SLURM_CONF")
        if conf:
            environment["SLURM_CONF"] = conf
        return cls(environment)

    def _run(self, *argv: str) -> str:
        program = shutil.which(argv[0], path=self.environment.get("PATH"))
        if program is None:
            raise SlurmFailed(f"{argv[0]} is not found on PATH; this needs Slurm's client commands")
        try:
            done = subprocess.run(
                [program, *argv[1:]],
                env=dict(self.environment),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=TIMEOUT_S,
            )
        except subprocess.TimeoutExpired:
            raise SlurmFailed(f"{' '.join(argv[:3])} did not return within {TIMEOUT_S:g} s") from None
        if done.returncode != 0:
            said = " ".join((done.stderr or done.stdout).split()) or f"exit code {done.returncode}"
            raise SlurmFailed(f"{' '.join(argv[:3])}: {said}")
        return done.stdout

    def cluster(self) -> str:
        """ClusterName."""
        match = re.search(r"^ClusterName\s*=\s*(\S+)", self._run("scontrol", "show", "config"), re.MULTILINE)
        if match is None:
            raise SlurmFailed("scontrol show config: it names no ClusterName")
        return match[1]

    def declared(self) -> dict[str, Declared]:
        """The licenses that slurm.conf declares."""
        found = {}
        for line in self._run("scontrol", "-o", "show", "license").splitlines():
            fields = dict(word.partition("=")[::2] for word in line.split())
            if "LicenseName" in fields and fields.get("Total", "").isdigit():
                numbers = [int(fields.get(name, "0") or 0) for name in ("Total", "Used", "Reserved")]
                found[fields["LicenseName"]] = Declared(*numbers)
        return found

    def holders(self) -> list[HeldJob]:
        """The jobs that hold licenses: those that run, and those whose prolog does."""
        jobs = []
        for line in self._run("squeue", "-h", "-a", "-t", "RUNNING,CONFIGURING,SUSPENDED", "-o", "%A|%W").splitlines():
            job_id, _, licenses = line.strip().partition("|")
            held = parse_licenses(licenses)
            if job_id.isdigit() and held:
                jobs.append(HeldJob(int(job_id), held))
        return jobs

    def reserve(self, name: str, counts: Mapping[str, int]) -> None:
        """Have the reservation keep back exactly these; it is made when it is missing."""
        licenses = ",".join(f"{license_name}:{count}" for license_name, count in sorted(counts.items()))
        try:
            self._run("scontrol", "update", f"ReservationName={name}", f"Licenses={licenses}")
        except SlurmFailed as error:
            if "reservation is invalid" not in str(error) and "not found" not in str(error).lower():
                raise
            self._run(
                *(
                    "scontrol",
                    "create",
                    "reservation",
                    f"ReservationName={name}",
                    "StartTime=now",
                    "Duration=UNLIMITED",
                ),
                *("Users=root", "Flags=LICENSE_ONLY", f"Licenses={licenses}"),
            )

    def reserved(self, name: str) -> dict[str, int] | None:
        """What the reservation keeps back; None when there is none."""
        try:
            text = self._run("scontrol", "-o", "show", "reservation", name)
        except SlurmFailed as error:
            if "not found" in str(error).lower() or "invalid" in str(error).lower():
                return None
            raise
        match = re.search(r" Licenses=(\S+)", text)
        return parse_licenses(match[1]) if match else None

    def release(self, name: str) -> bool:
        """Delete the reservation; False when there was none."""
        if self.reserved(name) is None:
            return False
        self._run("scontrol", "delete", f"ReservationName={name}")
        return True
