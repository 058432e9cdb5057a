"""Opens a trace file, finds out its format, and gives its jobs, one by one or sorted."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from ..bad_input import BadInput
from . import openb, sacct, swf
from .job import BadRow, BadValue, LeftOut, Tally, TraceJob
from .mapping import Mapping, RawJob, load_mapping

OPENB, SWF, SACCT = "openb", "swf", "sacct"
FORMATS = (OPENB, SWF, SACCT)
OPENB_POOL = "openb"
_GZIP = b"\x1f\x8b"
_READERS: dict[str, Callable[[TextIO, Tally], Iterator[RawJob | BadRow | LeftOut]]] = {
    OPENB: openb.read_jobs,
    SWF: swf.read_jobs,
    SACCT: sacct.read_jobs,
}


@dataclass(frozen=True)
class Trace:
    """All jobs of a file in the order of submission; the first is submitted at 0.0."""

    format: str
    jobs: tuple[TraceJob, ...]
    tally: Tally


class TraceReader:
    """Iterates over the jobs of one file in its order; `tally` grows along. Each iteration reads the file anew."""

    def __init__(self, path: Path, format: str, mapping: Mapping) -> None:
        self.path, self.format, self.mapping = path, format, mapping
        self.tally = Tally(str(path))

    def __iter__(self) -> Iterator[TraceJob]:
        self.tally = tally = Tally(str(self.path))
        try:
            with open_text(self.path) as file:
                for row in _READERS[self.format](file, tally):
                    job = _mapped(row, self.mapping, tally)
                    if job is not None:
                        tally.jobs += 1
                        yield job
        except openb.WrongHeader as error:
            raise BadInput(str(self.path), str(error)) from None
        except (OSError, EOFError, zlib.error) as error:
            raise BadInput(str(self.path), f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def read_trace(path: Path, *, format: str | None = None, mapping: Mapping | Path | None = None) -> TraceReader:
    """A reader of the file. `format` is found out when None; a `.gz` file is read as it is.

    Without a mapping, openb tasks with GPUs go to the pool `openb`, and jobs of sacct that had GPUs to a pool of the
    name of their partition; SWF needs one. Raises BadInput, here and while the file is read.
    """
    chosen = format if format is not None else detect_format(path)
    if chosen not in FORMATS:
        raise BadInput(str(path), "unknown trace format", value=chosen, accepted=", ".join(FORMATS))
    if isinstance(mapping, Path):
        mapping = load_mapping(mapping)
    if mapping is None:
        mapping = _default_mapping(path, chosen)
    return TraceReader(path, chosen, mapping)


def load_trace(path: Path, *, format: str | None = None, mapping: Mapping | Path | None = None) -> Trace:
    """All jobs, sorted by submission (ties in the order of the file) and moved to begin at 0. Raises BadInput."""
    reader = read_trace(path, format=format, mapping=mapping)
    jobs = sorted(reader, key=lambda job: (job.submit_s, job.line))
    first = jobs[0].submit_s if jobs else 0.0
    return Trace(reader.format, tuple(replace(job, submit_s=job.submit_s - first) for job in jobs), reader.tally)


def detect_format(path: Path) -> str:
    """openb, swf or sacct, by the first line that says something. Raises BadInput."""
    try:
        with open_text(path) as file:
            for _ in range(1000):
                text = file.readline(4096)
                if not text:
                    break
                if not text.strip():
                    continue
                if text.lstrip().startswith(";"):
                    return SWF
                if "|" in text and "submit" in text.lower():
                    return SACCT
                if "," in text and "num_gpu" in text:
                    return OPENB
                words = text.split()
                if len(words) == len(swf.COLUMNS) and all(
                    word.lstrip("-").replace(".", "").isdigit() for word in words
                ):
                    return SWF
                break
    except (OSError, EOFError, zlib.error) as error:
        raise BadInput(str(path), f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
    raise BadInput(
        str(path),
        "not a trace of a known format",
        accepted="openb CSV with its header line, SWF (18 numbers a line), or sacct --parsable2 with its header line",
    )


def open_text(path: Path) -> TextIO:
    """The file as text, unpacked when it is gzip. What is not UTF-8 becomes U+FFFD: names only. Raises OSError."""
    with path.open("rb") as raw:
        packed = raw.read(2) == _GZIP
    binary: io.BufferedIOBase = gzip.GzipFile(path) if packed else path.open("rb")
    return io.TextIOWrapper(binary, encoding="utf-8-sig", errors="replace", newline="")  # type: ignore[type-var]


def _mapped(row: RawJob | BadRow | LeftOut, mapping: Mapping, tally: Tally) -> TraceJob | None:
    try:
        if isinstance(row, RawJob):
            return mapping.apply(row)
        if isinstance(row, BadRow):
            tally.add_bad(row)
        else:
            tally.left_out[str(row)] += 1
    except LeftOut as reason:
        tally.left_out[str(reason)] += 1
    except BadValue as error:
        assert isinstance(row, RawJob)
        tally.add_bad(BadRow(row.line, error.column, error.value, error.reason))
    return None


def _default_mapping(path: Path, format: str) -> Mapping:
    if format == OPENB:
        return Mapping(default_pool=lambda job: OPENB_POOL)
    if format == SACCT:
        return Mapping(default_pool=lambda job: job.fields.get("partition", "").partition(",")[0] or "default")
    raise BadInput(
        str(path),
        "SWF says nothing about GPUs: a mapping file is needed",
        accepted="a YAML file with rules, such as `rules: [{pool: NAME, gpus: 1}]`",
    )
