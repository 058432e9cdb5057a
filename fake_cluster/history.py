"""The record of a run: what happened, as typed entries, one JSON line each. Checks, results and report read only this.

All times are Unix seconds (float) on one clock. Entries are appended in the order in which they became known, which is
not always the order of their times; the views in `history_views.py` sort where it matters.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import msgspec

from juice_sim.core import codec
from juice_sim.core.events import Event

from .slurm.interface import JobState


@dataclass(frozen=True)
class RunStarted:
    at: float
    scenario: str
    seed: int
    cluster: str
    slurm: str
    version: str
    scenario_text: str = ""
    source: str = ""
    description: str = ""


@dataclass(frozen=True)
class RunEnded:
    """`reason` is `all jobs ended`, `time limit` or `interrupted`."""

    at: float
    reason: str


@dataclass(frozen=True)
class ControllerEvent:
    """One event of the controller's log with its number there."""

    seq: int
    event: Event

    @property
    def at(self) -> float:
        return self.event.at


@dataclass(frozen=True)
class JobSubmitted:
    """A submission of the scenario and the job id it got; `error` when it was refused (`job_id` 0 then).

    `tasks` is how many jobs Slurm will make of it (array tasks, het components)."""

    at: float
    group: str
    index: int
    job_id: int
    run_time: float
    error: str = ""
    tasks: int = 1
    interactive: bool = False


@dataclass(frozen=True)
class JobObserved:
    """A job that is new or has changed, as a poll of Slurm saw it.

    The poll ran from `asked` to `at`; `held_until` is when the poll before it was asked (so the job was as observed
    before until then at least), 0.0 for the first observation.
    """

    at: float
    asked: float
    held_until: float
    job_id: int
    name: str
    state: JobState
    group: str = ""
    user_id: int = 0
    reason: str = ""
    restarts: int = 0
    exit_code: int = 0
    signal: int = 0
    nodes: tuple[str, ...] = ()
    submit_time: float | None = None
    eligible_time: float | None = None
    start_time: float | None = None
    end_time: float | None = None
    array_job_id: int | None = None
    array_task_id: int | None = None
    het_job_id: int | None = None
    het_offset: int | None = None
    juice: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class HookRun:
    """One run of a hook, from its own log. `verdict` is granted, denied, retry, released, nothing, failed, ..."""

    at: float
    hook: str
    job_id: int
    verdict: str
    duration: float | None = None
    restarts: int | None = None
    session_id: str = ""
    detail: str = ""


@dataclass(frozen=True)
class FaultInjected:
    """A fault that took place. `until` is when it was undone; None when it was not, or at once."""

    at: float
    position: int
    kind: str
    label: str
    target: str = ""
    detail: str = ""


@dataclass(frozen=True)
class FaultEnded:
    at: float
    position: int
    kind: str
    target: str = ""
    detail: str = ""


@dataclass(frozen=True)
class LogCompared:
    """At the end the controller's log was read again from its start; `differences` from what was streamed live."""

    at: float
    events: int
    differences: tuple[str, ...] = ()


@dataclass(frozen=True)
class JobOutput:
    """The end of what a job that did not complete wrote, for its story."""

    at: float
    job_id: int
    stdout: str
    stderr: str


@dataclass(frozen=True)
class Noted:
    """Something a reader of the report should know, in one line."""

    at: float
    text: str


Entry = (
    RunStarted
    | RunEnded
    | ControllerEvent
    | JobSubmitted
    | JobObserved
    | HookRun
    | FaultInjected
    | FaultEnded
    | LogCompared
    | JobOutput
    | Noted
)
_ENTRY_TYPES: dict[str, type] = {
    cls.__name__: cls
    for cls in (
        RunStarted,
        RunEnded,
        JobSubmitted,
        JobObserved,
        HookRun,
        FaultInjected,
        FaultEnded,
        LogCompared,
        JobOutput,
        Noted,
    )
}


def event_of(fields: Mapping[str, Any]) -> Event:
    """The controller's event from its JSON object (member `event`: its kind). Raises ValueError."""
    values = dict(fields)
    if isinstance(values.get("token"), dict):
        values["token"] = {"secret_sha256": "", **values["token"]}  # the stream keeps the hash to itself
    try:
        return codec.decode_event(values)
    except codec.CodecError as error:
        raise ValueError(str(error)) from None


def encode_entry(entry: Entry) -> bytes:
    """One JSON line, without its newline."""
    if isinstance(entry, ControllerEvent):
        return msgspec.json.encode({"type": "ControllerEvent", "seq": entry.seq, **codec.encode_event(entry.event)})
    return msgspec.json.encode({"type": type(entry).__name__, **msgspec.to_builtins(entry)})


def decode_entry(line: bytes) -> Entry:
    """The entry of one line. Raises ValueError."""
    value = msgspec.json.decode(line)
    kind = value.pop("type", None) if isinstance(value, dict) else None
    if kind == "ControllerEvent":
        return ControllerEvent(value.pop("seq"), event_of(value))
    if kind not in _ENTRY_TYPES:
        raise ValueError(f"unknown kind of entry {kind!r}")
    entry: Entry = msgspec.convert(value, _ENTRY_TYPES[kind])
    return entry


class History:
    """The entries of one run. `add` may be called from several threads; readers come when the run is over.

    With a `path`, each entry is also written there as it comes, so that a crash of the run leaves its record.
    """

    def __init__(self, path: Path | None = None, entries: Iterable[Entry] = ()) -> None:
        self.entries: list[Entry] = list(entries)
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = path.open("wb", buffering=0) if path is not None else None
        self._listeners: list[Callable[[Entry], None]] = []

    def listen(self, listener: Callable[[Entry], None]) -> None:
        """`listener` is called with each further entry, in the thread that adds it; it must be quick."""
        self._listeners.append(listener)

    def add(self, entry: Entry) -> None:
        with self._lock:
            self.entries.append(entry)
            if self._file is not None:
                self._file.write(encode_entry(entry) + b"\n")
        for listener in self._listeners:
            listener(entry)

    def of(self, *kinds: type) -> list[Any]:
        """The entries of these kinds, in order."""
        return [entry for entry in self.entries if isinstance(entry, kinds)]

    @property
    def started(self) -> RunStarted:
        return next(entry for entry in self.entries if isinstance(entry, RunStarted))

    @property
    def ended_at(self) -> float:
        """When the run ended; the latest time in the record while it has not."""
        ends = self.of(RunEnded)
        return float(ends[-1].at) if ends else max((entry.at for entry in self.entries), default=0.0)

    def close(self) -> None:
        with self._lock:
            if self._file is not None:
                self._file.close()
                self._file = None

    @classmethod
    def load(cls, path: Path) -> History:
        """Read a record back. Raises ValueError with the line's number; a torn last line is left out."""
        entries = []
        lines = path.read_bytes().split(b"\n")
        for number, line in enumerate(lines, 1):
            if not line:
                continue
            try:
                entries.append(decode_entry(line))
            except (ValueError, KeyError, TypeError, msgspec.MsgspecError) as error:
                if number == len(lines):
                    break  # no newline after it: the run was killed while it wrote
                raise ValueError(f"{path}:{number}: {error}") from None
        return cls(entries=entries)
