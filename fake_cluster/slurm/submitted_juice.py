"""What the SPANK plugin passes to the hooks of a job, known from the job's submission.

slurmctld shows it to nobody but the hooks, so the real back end reads the same script, options and environment that it
gives to sbatch or srun by the plugin's documented rules. Jobs submitted by other means (inside a job, from a shell)
stay unknown.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from .batch_script import read_batch_script, read_srun
from .interface import Job, SubmitError
from .rules_jobs import JobSpec


class SubmittedJuice:
    """Job id (of an array: the array's id) -> JUICE_POOL, JUICE_GPU_COUNT, ..."""

    def __init__(self) -> None:
        self._asked: dict[int, Mapping[str, str]] = {}
        self._user = {"user_id": os.geteuid()}  # the readers want one; what Juice is asked for does not depend on it

    def batch(
        self, job_id: int, script: str | Path, options: Sequence[str], environment: Mapping[str, str], cwd: Path
    ) -> None:
        """Remember what sbatch, which printed `job_id`, was given."""
        try:
            specs = read_batch_script(script, options, environment=environment, user=self._user, cwd=cwd)
        except SubmitError:
            return  # the real Slurm took what our reader does not know
        self._remember(job_id, specs)

    def interactive(
        self, job_id: int, command: Sequence[str], options: Sequence[str], environment: Mapping[str, str], cwd: Path
    ) -> None:
        """The same of srun."""
        try:
            specs = read_srun(command, options, environment=environment, user=self._user, cwd=cwd)
        except SubmitError:
            return
        self._remember(job_id, specs)

    def _remember(self, job_id: int, specs: Sequence[JobSpec]) -> None:
        for offset, spec in enumerate(specs):  # het components have consecutive ids
            # A job id can come again after a crash of slurmctld, for a job that asks for nothing.
            self._asked.pop(job_id + offset, None)
            if spec.spank_env:
                self._asked[job_id + offset] = spec.spank_env

    def added_to(self, job: Job) -> Job:
        asked = self._asked.get(job.array_job_id if job.array_job_id is not None else job.job_id)
        return replace(job, juice=dict(asked)) if asked else job
