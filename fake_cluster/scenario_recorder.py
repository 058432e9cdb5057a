"""Watches a run and writes its record: the controller's event stream, Slurm's jobs, the hooks' log."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from .history import ControllerEvent, History, HookRun, JobObserved, LogCompared, Noted, encode_entry, event_of
from .slurm.interface import Job, JobState, Slurm

STREAM_TIMEOUT_S = 20.0
MAX_DIFFERENCES = 20


class StreamBroken(Exception):
    """The event stream ended or said something that is no event; `str(error)` says what."""


class EventStream:
    """Follows `GET /v1/events` across restarts of the controller; each event goes into the record once.

    `token` is asked for at each connection. An event that comes again with another content is a difference.
    """

    def __init__(self, url: str, token: Callable[[], str | None], history: History) -> None:
        self._url = urlsplit(url)
        self._token = token
        self._history = history
        self._stop = threading.Event()
        self._seen: dict[int, bytes] = {}
        self._connection: http.client.HTTPConnection | None = None
        self._thread = threading.Thread(target=self._follow, name="event-stream", daemon=True)
        self.last_seq = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the stream. May be called twice, and before `start`."""
        self._stop.set()
        connection = self._connection
        if connection is not None and connection.sock is not None:
            with contextlib.suppress(OSError):  # it has ended by itself
                connection.sock.shutdown(socket.SHUT_RDWR)  # close alone would not wake the reader
        if self._thread.is_alive():
            self._thread.join(STREAM_TIMEOUT_S + 5.0)

    def _open(self, since: int, follow: bool) -> http.client.HTTPResponse:
        port = self._url.port or 80
        self._connection = http.client.HTTPConnection(self._url.hostname or "127.0.0.1", port, timeout=STREAM_TIMEOUT_S)
        token = self._token()
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        path = f"/v1/events?since={since}" + ("&follow=1" if follow else "")
        self._connection.request("GET", path, headers=headers)
        response = self._connection.getresponse()
        if response.status != 200:
            raise StreamBroken(f"GET {path}: {response.status} {response.read(300).decode('utf-8', 'replace')}")
        return response

    def _read(self, response: http.client.HTTPResponse, each: Callable[[int, bytes, ControllerEvent], None]) -> None:
        while not self._stop.is_set():
            line = response.readline()
            if not line.endswith(b"\n"):
                raise StreamBroken("the stream ended")
            try:
                fields = json.loads(line)
                seq = int(fields.pop("seq"))
                entry = ControllerEvent(seq, event_of(fields))
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise StreamBroken(f"not an event: {error}") from None
            each(seq, line, entry)

    def _take(self, seq: int, line: bytes, entry: ControllerEvent) -> None:
        if seq in self._seen:
            return
        if seq != self.last_seq + 1 and self.last_seq:
            raise StreamBroken(f"event {self.last_seq + 1} is missing, the next is {seq}")
        self._seen[seq] = encode_entry(entry)
        self.last_seq = seq
        self._history.add(entry)

    def _follow(self) -> None:
        while not self._stop.is_set():
            try:
                self._read(self._open(self.last_seq, True), self._take)
            except (OSError, http.client.HTTPException, StreamBroken, ValueError, AttributeError):
                # The controller is down, or a fault spoils the stream: go on after the last event that was seen.
                # (ValueError, AttributeError: http.client when `stop` closes the socket under it.)
                self._stop.wait(0.1)
            finally:
                if self._connection is not None:
                    self._connection.close()

    def compare(self, at: float, timeout_s: float = 30.0) -> LogCompared:
        """Read the log again from its start and compare it with what was streamed. Call it after `stop`.

        Raises TimeoutError when the controller cannot be read.
        """
        again: dict[int, bytes] = {}
        missing: list[ControllerEvent] = []

        def each(seq: int, line: bytes, entry: ControllerEvent) -> None:
            again[seq] = encode_entry(entry)
            if seq not in self._seen:
                missing.append(entry)

        self._stop.clear()
        deadline = time.monotonic() + timeout_s
        while True:
            again.clear()
            missing.clear()
            try:
                response = self._open(0, False)
                try:
                    self._read(response, each)
                except StreamBroken as error:
                    if "ended" not in str(error):
                        raise
                break
            except (OSError, http.client.HTTPException, StreamBroken) as error:
                if time.monotonic() > deadline:
                    raise TimeoutError(f"the controller's log cannot be read again: {error}") from None
                time.sleep(0.2)
            finally:
                if self._connection is not None:
                    self._connection.close()
        for entry in missing:
            self._history.add(entry)
        differences = []
        for seq, line in sorted(self._seen.items()):
            if seq not in again:
                differences.append(f"event {seq} was told, but is not in the log: {line.decode()}")
            elif again[seq] != line:
                differences.append(f"event {seq} was told as {line.decode()}, now it is {again[seq].decode()}")
        return LogCompared(at, len(again), tuple(differences[:MAX_DIFFERENCES]))


class JobWatch:
    """Polls Slurm and records each change of each job. `poll` may also be called directly."""

    def __init__(self, slurm: Slurm, history: History, groups: set[str], interval_s: float) -> None:
        self._slurm = slurm
        self._history = history
        self._groups = groups
        self.interval_s = interval_s
        self._last: dict[int, Job] = {}
        self._held_until = 0.0
        self._stop = threading.Event()
        self._polling = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="job-watch", daemon=True)
        self.failures = 0

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(60.0)

    @property
    def jobs(self) -> dict[int, Job]:
        """The jobs as last seen."""
        return dict(self._last)

    def _run(self) -> None:
        while not self._stop.is_set():
            self.poll()
            self._stop.wait(self.interval_s)

    def poll(self) -> bool:
        """Ask Slurm once; False when it did not answer (slurmctld is down)."""
        with self._polling:
            asked = time.time()
            try:
                jobs = self._slurm.jobs()
            except Exception as error:
                # Each back end has its own errors for a slurmctld that is down. That it never comes back shows in
                # the check that every job ends; the reason stands in the record.
                self.failures += 1
                if self.failures in (1, 100, 1000):
                    self._history.add(Noted(time.time(), f"Slurm did not answer ({type(error).__name__}: {error})"))
                return False
            now = time.time()
            for job in jobs:
                if self._last.get(job.job_id) != job:
                    self._last[job.job_id] = job
                    self._history.add(self._observed(job, asked, now))
            self._held_until = asked
            return True

    def _observed(self, job: Job, asked: float, now: float) -> JobObserved:
        return JobObserved(
            at=now,
            asked=asked,
            held_until=self._held_until,
            job_id=job.job_id,
            name=job.name,
            state=job.state,
            group=job.name if job.name in self._groups else "",
            user_id=job.user_id,
            reason=job.reason,
            restarts=job.restarts,
            exit_code=job.exit_code,
            signal=job.signal,
            nodes=tuple(job.nodes),
            submit_time=job.submit_time,
            eligible_time=job.eligible_time,
            start_time=job.start_time,
            end_time=job.end_time,
            array_job_id=job.array_job_id,
            array_task_id=job.array_task_id,
            het_job_id=job.het_job_id,
            het_offset=job.het_offset,
            juice=dict(job.juice),
        )


class Trigger:
    """Counts what faults wait for; calls back once when a number is reached. Give `entry` to `History.listen`."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, int] = {}
        self._waiting: list[tuple[str, int, Callable[[], None]]] = []
        self._last: dict[int, tuple[JobState, int]] = {}

    def when(self, event: str, count: int, call: Callable[[], None]) -> None:
        """`call` runs, in the thread that adds the entry, when the event has been seen `count` times."""
        with self._lock:
            self._waiting.append((event, count, call))

    def entry(self, entry: object) -> None:
        for name in self._names(entry):
            with self._lock:
                count = self._counts[name] = self._counts.get(name, 0) + 1
                due = [call for event, number, call in self._waiting if event == name and number == count]
            for call in due:
                call()

    def _names(self, entry: object) -> list[str]:
        if isinstance(entry, ControllerEvent):
            name = type(entry.event).__name__
            known = {
                "SessionQueued": "session_queued",
                "SessionAssigned": "session_assigned",
                "SessionActivated": "session_activated",
                "SessionClosed": "session_closed",
            }
            return [known[name]] if name in known else []
        if not isinstance(entry, JobObserved):
            return []
        before = self._last.get(entry.job_id)
        self._last[entry.job_id] = (entry.state, entry.restarts)
        names = []
        if before is None:
            names.append("job_submitted")
        if before is None or before[0] is not entry.state:
            if entry.state is JobState.CONFIGURING:
                names.append("job_in_prolog")
            elif entry.state is JobState.RUNNING:
                names.append("job_running")
            elif entry.state.ended:
                names.append("job_ended")
        if entry.restarts > (before[1] if before else 0):
            names.append("job_requeued")
        return names


def read_hook_runs(path: Path, parse: Callable[[str], HookRun | None]) -> list[HookRun]:
    """The hook runs in a log file; lines that are something else are passed over."""
    if not path.exists():
        return []
    runs = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            run = parse(line.rstrip("\n"))
            if run is not None:
                runs.append(run)
    return runs


def job_counts(jobs: Mapping[int, Job]) -> dict[str, int]:
    """How many jobs wait, are in their prolog, run, have ended; and requeues in all."""
    counts = {"waiting": 0, "prolog": 0, "running": 0, "ended": 0, "completed": 0, "requeues": 0}
    for job in jobs.values():
        counts["requeues"] += job.restarts
        if job.state is JobState.PENDING:
            counts["waiting"] += 1
        elif job.state is JobState.CONFIGURING:
            counts["prolog"] += 1
        elif job.state.ended:
            counts["ended"] += 1
            counts["completed"] += job.state is JobState.COMPLETED
        else:
            counts["running"] += 1
    return counts
