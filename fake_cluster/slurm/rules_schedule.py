"""Which pending job is next: strict first come, first served, as sched/builtin; no backfill.

A job that lacks CPUs blocks those behind it. A job that lacks licenses, must wait for its BeginTime, for a
dependency or for its array's `%N` does not: Slurm's main scheduler passes those over.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping

from fake_cluster.slurm.rules_jobs import JobRecord


class Licenses:
    """Counts of slurm.conf's `Licenses=`; all of a job's licenses or none."""

    def __init__(self, total: Mapping[str, int]) -> None:
        self.total = dict(total)
        self.free = dict(total)

    def known(self, wanted: Mapping[str, int]) -> bool:
        """Whether every name exists with at least that count; otherwise the job is refused at submit."""
        return all(0 < count <= self.total.get(name, 0) for name, count in wanted.items())

    def fit(self, wanted: Mapping[str, int]) -> bool:
        """Whether all are free now."""
        return all(self.free[name] >= count for name, count in wanted.items())

    def take(self, wanted: Mapping[str, int]) -> None:
        """Take what `fit` has said is free."""
        for name, count in wanted.items():
            self.free[name] -= count

    def give(self, wanted: Mapping[str, int]) -> None:
        """Give back what was taken."""
        for name, count in wanted.items():
            self.free[name] += count


class Queue:
    """Pending jobs that could start now if there were room, in order of submission; and those that wait elsewhere.

    An entry is a job, or the leader of a het job for all its components. A job is in at most one place.
    """

    def __init__(self) -> None:
        self._ready: list[tuple[int, int]] = []  # (sequence, job id)
        self._in: set[int] = set()
        self._unlicensed: list[tuple[int, int]] = []
        self._throttled: dict[int, list[tuple[int, int]]] = {}  # array job id -> tasks over its %N

    def add(self, job: JobRecord) -> None:
        """The job may start from now on."""
        if job.job_id not in self._in:
            self._in.add(job.job_id)
            heapq.heappush(self._ready, (job.sequence, job.job_id))

    def remove(self, job_id: int) -> None:
        """The job has started or must not start. Its entry in the heap is dropped when it comes up."""
        self._in.discard(job_id)

    def head(self) -> int | None:
        """The first that may start."""
        while self._ready and self._ready[0][1] not in self._in:
            heapq.heappop(self._ready)
        return self._ready[0][1] if self._ready else None

    def wait_for_licenses(self, job: JobRecord) -> None:
        """Pass over the head, until `licenses_freed`."""
        self.remove(job.job_id)
        heapq.heappush(self._unlicensed, (job.sequence, job.job_id))

    def licenses_freed(self) -> list[int]:
        """Those that waited for licenses, in order; they are to be added again."""
        waiting, self._unlicensed = sorted(self._unlicensed), []
        return [job_id for _, job_id in waiting]

    def wait_for_array(self, job: JobRecord) -> None:
        """Pass over the head, until a task of its array has ended."""
        self.remove(job.job_id)
        assert job.array_job_id is not None
        heapq.heappush(self._throttled.setdefault(job.array_job_id, []), (job.sequence, job.job_id))

    def task_ended(self, array_job_id: int) -> int | None:
        """The next task that waited for its array's `%N`; it is to be added again."""
        waiting = self._throttled.get(array_job_id)
        if not waiting:
            return None
        job_id = heapq.heappop(waiting)[1]
        if not waiting:
            del self._throttled[array_job_id]
        return job_id
