"""Recorded workloads: openb CSV, Standard Workload Format and `sacct --parsable2` exports as one kind of job.

    from fake_cluster.traces import load_trace

    trace = load_trace(Path("history.txt"), mapping=Path("pools.yaml"))
    for job in trace.jobs:                      # sorted by submit_s, the first one at 0.0
        print(job.submit_s, job.run_s, job.pool, job.gpus, job.vram)
    for line in trace.tally.lines():            # what was read, left out and bad, with line numbers
        print(line)

`read_trace` is the same as an iterator, in the order of the file and in bounded memory:

    reader = read_trace(Path("log.swf.gz"), mapping=Path("pools.yaml"))
    for job in reader:
        ...
    reader.tally.bad                            # rows that could not be read so far

A row is never dropped in silence: it becomes a job, or it is left out for a reason that is counted (a job step, a job
that never ran), or it is bad and reported with its line number.
"""

from __future__ import annotations

from .job import BadRow, Tally, TraceJob
from .load import FORMATS, Trace, TraceReader, detect_format, load_trace, read_trace
from .mapping import Mapping, load_mapping

__all__ = [
    "FORMATS",
    "BadRow",
    "Mapping",
    "Tally",
    "Trace",
    "TraceJob",
    "TraceReader",
    "detect_format",
    "load_mapping",
    "load_trace",
    "read_trace",
]
