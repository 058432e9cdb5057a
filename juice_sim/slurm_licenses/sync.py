"""Keeps Slurm's licenses at what the controller has free, within moments of each change."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from ..client import ApiError, Client
from ..wire_types import Agent
from .capacity import HeldJob, jobs_with_sessions, shapes, targets
from .names import PoolShape, table_text
from .slurm_commands import SlurmCommands, SlurmFailed

SPACING_S = 0.2  # between two looks, however many events come
GRACE_S = 3.0  # a job that has ended still counts as long, while its epilog gives the session back
CHECK_EVERY_S = 30.0  # somebody may have changed the reservation
RETRY_S = 5.0

Log = Callable[[str], None]


@dataclass(frozen=True)
class Synced:
    """One look: license -> how many there are in all (`totals`), and whether Slurm had to be told. `missing` are
    licenses that slurm.conf does not declare, so that they cannot be exported."""

    totals: Mapping[str, int]
    changed: bool
    missing: tuple[str, ...]


def write_table(path: Path, text: str) -> None:
    """Replace the table that job_submit.lua reads, if it differs; SlurmUser must be able to read it."""
    try:
        if path.read_text(encoding="utf-8") == text:
            return
    except FileNotFoundError:
        pass
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.chmod(0o644)
    os.replace(temporary, path)


class LicenseSync:
    """`once` looks and tells Slurm; `run` does so at each change and every `interval_s` seconds until `stop` is set."""

    def __init__(
        self,
        client: Client,
        slurm: SlurmCommands,
        *,
        reservation: str = "juice",
        table: Path | None = None,
        cluster: str | None = None,
        log: Log = print,
    ) -> None:
        self._client = client
        self._slurm = slurm
        self._reservation = reservation
        self._table = table
        self._cluster = cluster
        self._log = log
        self._shapes: dict[str, PoolShape] = {}
        self._told: dict[str, int] | None = None
        self._checked_at = 0.0
        self._recent: dict[int, tuple[float, HeldJob]] = {}
        self._missing: tuple[str, ...] = ()
        self._names: dict[str, str] = {}

    def once(self) -> Synced:
        """Raises ApiError, SlurmFailed, OSError (the table)."""
        if self._cluster is None:
            self._cluster = self._slurm.cluster()
        # The controller first: a job that gets its session between the two questions then counts as one that asks.
        agents = self._client.agents(everything=True, sessions=True)
        self._shapes = shapes(self._client.pools(), agents, self._shapes)
        with_session = jobs_with_sessions(agents, self._names_of(agents), self._cluster)
        served = self._served(self._slurm.holders(), with_session)
        return self._tell(targets(self._shapes.values(), agents, served))

    def _names_of(self, agents: Iterable[Agent]) -> Mapping[str, str]:
        """Session id -> name, for the sessions on the agents. One that has closed since stays unnamed."""
        here = {session.id for agent in agents for session in agent.sessions}
        if not here <= self._names.keys():
            self._names.update((session.id, session.name) for session in self._client.sessions())
        self._names = {session_id: name for session_id, name in self._names.items() if session_id in here}
        return self._names

    def _served(self, holders: list[HeldJob], with_session: set[int]) -> list[HeldJob]:
        """The holders that have their session, and those that have ended a moment ago and still have it."""
        now = time.monotonic()
        for job in holders:
            self._recent[job.job_id] = (now, job)
        self._recent = {job_id: seen for job_id, seen in self._recent.items() if now - seen[0] <= GRACE_S}
        return [job for _, job in self._recent.values() if job.job_id in with_session]

    def _tell(self, totals: Mapping[str, int]) -> Synced:
        now = time.monotonic()
        check = self._told is None or now - self._checked_at > CHECK_EVERY_S
        if not check and self._told == totals:
            return Synced(totals, False, self._missing)
        declared = self._slurm.declared()
        known = {name: count for name, count in totals.items() if name in declared}
        missing = tuple(name for name in totals if name not in declared)
        if missing and missing != self._missing:
            self._log(
                f"slurm.conf does not declare {len(missing)} license(s) ({', '.join(missing[:3])}, ...): jobs of these "
                "sizes do not wait for them; `juice-sim licenses conf` prints the line for slurm.conf"
            )
        self._missing = missing
        kept = {name: max(0, declared[name].total - count) for name, count in known.items()}
        changed = bool(kept) and (not check or self._slurm.reserved(self._reservation) != kept)
        if changed:
            self._slurm.reserve(self._reservation, kept)
        if self._table is not None:
            write_table(
                self._table, table_text(self._shapes.values(), {name: row.total for name, row in declared.items()})
            )
        if changed:
            self._log(_difference(self._told or {}, known))
        self._told, self._checked_at = dict(totals), now
        return Synced(totals, changed, missing)

    def run(self, stop: threading.Event, *, interval_s: float = 2.0, events: Client | None = None) -> None:
        """`events` is a second client that may read the controller's events (an admin's); without one, changes are seen
        at the next look. Errors are logged, once each, and tried again."""
        wake = threading.Event()
        if events is not None:
            threading.Thread(target=self._follow, args=(events, wake, stop), name="juice-events", daemon=True).start()
        problem = ""
        while not stop.is_set():
            began = time.monotonic()
            wake.clear()
            try:
                self.once()
                if problem:
                    self._log("licenses follow again")
                problem = ""
            except (ApiError, SlurmFailed, OSError) as error:
                if str(error) != problem:
                    problem = str(error)
                    self._log(f"licenses stay as they are: {problem}")
            stop.wait(SPACING_S)
            while not stop.is_set() and not wake.wait(0.05) and time.monotonic() - began < interval_s:
                continue

    def _follow(self, client: Client, wake: threading.Event, stop: threading.Event) -> None:
        since = 0
        while not stop.is_set():
            try:
                for event in client.events(since, follow=True):
                    since = max(since, int(event.get("seq", since)))
                    wake.set()
                    if stop.is_set():
                        return
            except ApiError as error:
                if error.status == 410:
                    since = 0
                elif error.status in (401, 403):
                    self._log(f"changes are seen at the next look only: {error}")
                    return
            except (OSError, ValueError):
                pass  # the connection ended; the next look tells if the controller is gone
            wake.set()
            stop.wait(RETRY_S)


def _difference(before: Mapping[str, int], now: Mapping[str, int]) -> str:
    """What changed of the licenses that users know, in one line; places and fits follow from them."""
    words = [
        f"{name} {before.get(name, 0)} -> {count}"
        for name, count in sorted(now.items())
        if before.get(name, 0) != count and "_fit_" not in name and "_x" not in name
    ]
    return "licenses: " + (", ".join(words) or "places for several GPUs or for slices")
