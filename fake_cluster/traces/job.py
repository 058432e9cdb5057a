"""What a reader makes of a row: a job, a row left out for a reason, or a bad row with its line number."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field

KEPT_BAD_ROWS = 1000  # that are kept with their text; all are counted
MAX_NUMBER = 1e15


@dataclass(frozen=True, slots=True)
class TraceJob:
    """One job of a trace.

    `submit_s` and `run_s` are seconds; `cpus` may be a fraction; `gpus` 0 and `pool` "" is a job that uses no Juice.
    `vram` is bytes of one GPU for a slice (then `gpus` is 1), None for whole GPUs. `models` are GPU models of which the
    job needs one, () for any. `line` is the line of the file that it comes from.
    """

    submit_s: float
    run_s: float
    cpus: float
    gpus: int
    vram: int | None
    pool: str
    user: str
    line: int
    name: str = ""
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class BadRow:
    """A row that cannot be used: line, column, what stands there, why not."""

    line: int
    column: str
    value: str
    reason: str

    def __str__(self) -> str:
        shown = self.value if len(self.value) <= 60 else self.value[:57] + "..."
        return f"line {self.line}: {self.column}: {self.reason}; got {shown!r}"


class BadValue(ValueError):
    """One value of a row that cannot be used; a reader turns it into a `BadRow`."""

    def __init__(self, column: str, value: str, reason: str) -> None:
        super().__init__(f"{column}: {reason}")
        self.column, self.value, self.reason = column, value, reason


class LeftOut(Exception):
    """A row that is in order but is no job to simulate; `str(error)` is the reason under which it is counted."""


@dataclass
class Tally:
    """What became of the rows of one file. `rows` = `jobs` + all of `left_out` + `bad_count`."""

    source: str
    what: str = "jobs"
    rows: int = 0
    jobs: int = 0
    bad_count: int = 0
    bad: list[BadRow] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    def add_bad(self, row: BadRow) -> None:
        """Count a bad row; the first thousand are kept."""
        self.bad_count += 1
        if len(self.bad) < KEPT_BAD_ROWS:
            self.bad.append(row)

    def lines(self, shown: int = 10) -> list[str]:
        """For people: one line with the numbers, one per reason of leaving out, the first `shown` bad rows."""
        out = [f"{self.source}: {self.rows} rows, {self.jobs} {self.what}"]
        out += [f"  left out: {count} ({reason})" for reason, count in sorted(self.left_out.items())]
        if self.bad_count:
            out.append(f"  bad rows: {self.bad_count}")
            out += [
                f"    {self.source}:{row.line}: {row.column}: {row.reason}; got {row.value[:60]!r}"
                for row in self.bad[:shown]
            ]
            if self.bad_count > shown:
                out.append(f"    and {self.bad_count - min(shown, len(self.bad))} more")
        return out


_WHOLE = re.compile(r"-?[0-9]{1,18}", re.ASCII)
_DECIMAL = re.compile(r"-?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][-+]?[0-9]{1,3})?", re.ASCII)


def whole(column: str, text: str, least: int = 0, most: int = 10**15) -> int:
    """A whole number within bounds. Raises BadValue."""
    if not _WHOLE.fullmatch(text):
        raise BadValue(column, text, "not a whole number")
    value = int(text)
    if not least <= value <= most:
        raise BadValue(column, text, f"out of range, accepted: {least} to {most}")
    return value


def number(column: str, text: str, least: float = 0.0, most: float = MAX_NUMBER) -> float:
    """A finite number within bounds. Raises BadValue."""
    if len(text) > 40 or not _DECIMAL.fullmatch(text):
        raise BadValue(column, text, "not a number")
    value = float(text)
    if not least <= value <= most:
        raise BadValue(column, text, f"out of range, accepted: {least:g} to {most:g}")
    return value
