"""The durable log: every event of the controller, in order, with a snapshot now and then, in one SQLite file.

A controller is the fold of its events, so the log is all there is to keep. One *batch* (the events of all requests that
waited together) is one row and one commit, that is one fsync: group commit. A row per event would be the natural
table, but each statement gives the interpreter lock up and has to win it back from a busy event loop.

The file is WAL with synchronous=FULL: a commit that has returned survives kill -9 and power loss. `EventStore` is
synchronous and not thread-safe; `service.Service` calls it from one thread of its own.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

APPLICATION_ID = 0x4A53494D  # "JSIM": tells our files from other people's databases
FORMAT = 1
QUICK_CHECK_BELOW = 256 << 20  # bytes; a larger file is checked only as far as it is read

_SCHEMA = """
CREATE TABLE batch (last INTEGER PRIMARY KEY, first INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE snapshot (id INTEGER PRIMARY KEY CHECK (id = 1), seq INTEGER NOT NULL, body BLOB NOT NULL);
CREATE TABLE setting (name TEXT PRIMARY KEY, value BLOB NOT NULL);
"""


class StoreError(Exception):
    """The data directory cannot be used; `str(error)` is one line that says why and what to do."""


class Answer(msgspec.Struct, array_like=True, frozen=True):
    """What one POST with an Idempotency-Key was answered, so that a repetition gets the same.

    `key_sha256` is the hash of caller, path and key; `body_sha256` tells whether it is the same request. For a token,
    `value` is its id only: the secret is derived again from the key, which only the caller has.
    """

    key_sha256: str
    body_sha256: str
    value: str
    at: float


class Batch(msgspec.Struct, array_like=True):
    """One commit: the events, each as its JSON, and the answers that go with them."""

    events: list[msgspec.Raw]
    answers: list[Answer] = []


class Snapshot(msgspec.Struct):
    """The state after event `seq`."""

    seq: int
    state: msgspec.Raw
    answers: list[Answer]


@dataclass(frozen=True)
class Record:
    """One event as it was stored; `body` is its JSON."""

    seq: int
    body: bytes


_batch_decoder = msgspec.json.Decoder(Batch)
_snapshot_decoder = msgspec.json.Decoder(Snapshot)


class EventStore:
    """One data directory, owned by this process from `__init__` to `close`. `None` keeps everything in memory."""

    def __init__(self, directory: Path | None) -> None:
        self._directory = directory
        self._lock: int | None = None
        self._db: sqlite3.Connection
        if directory is None:
            self._db = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
            self._create()
        else:
            self._open(directory)
        self.last_seq: int = self._scalar(
            "SELECT max(coalesce((SELECT max(last) FROM batch), 0), coalesce((SELECT max(seq) FROM snapshot), 0))"
        )

    # -- opening ------------------------------------------------------------------------------------------------------

    def _open(self, directory: Path) -> None:
        try:
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"data directory {directory}: {error.strerror}; give a directory that can be written"
            ) from None
        self._take_lock(directory)
        path = directory / "controller.db"
        try:
            fresh = not path.exists() or path.stat().st_size == 0
            # Created here so that its mode does not depend on the umask: it holds hashes of tokens.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False, timeout=5.0)
            if not fresh:
                self._check(path)
            self._db.execute("PRAGMA journal_mode = WAL")
            self._db.execute("PRAGMA synchronous = FULL")
            self._db.execute("PRAGMA wal_autocheckpoint = 4000")
            if fresh or self._scalar("PRAGMA application_id") == 0:
                self._create()
            _sync_directory(directory)
        except sqlite3.Error as error:
            self.close()
            raise _damaged(path, error) from None
        except OSError as error:
            self.close()
            raise StoreError(f"{path}: {error.strerror}; give a directory that can be written") from None
        except StoreError:
            self.close()
            raise

    def _take_lock(self, directory: Path) -> None:
        path = directory / "controller.lock"
        try:
            lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror}; give a directory that can be written") from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            owner = os.read(lock, 32).decode("ascii", "replace").strip() or "unknown"
            os.close(lock)
            raise StoreError(
                f"data directory {directory} is in use by process {owner}; stop it or give another directory"
            ) from None
        os.ftruncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)
        self._lock = lock

    def _check(self, path: Path) -> None:
        application = self._scalar("PRAGMA application_id")
        tables = self._scalar("SELECT count(*) FROM sqlite_master")
        if application == 0 and tables == 0:
            return  # a crash between creating the file and its first commit
        if application != APPLICATION_ID:
            raise StoreError(f"{path} is a database, but not one of juice-sim; give another data directory")
        version = self._scalar("PRAGMA user_version")
        if version != FORMAT:
            raise StoreError(
                f"{path} has format {version}, this juice-sim reads format {FORMAT}; use the version that made it"
            )
        if path.stat().st_size < QUICK_CHECK_BELOW:
            verdict = self._scalar("PRAGMA quick_check(1)")
            if verdict != "ok":
                raise _damaged(path, verdict)

    def _create(self) -> None:
        # One transaction: after a crash the file is either empty or whole.
        statements = "".join(f"{line}\n" for line in _SCHEMA.strip().splitlines())
        self._db.executescript(
            f"BEGIN; {statements} PRAGMA application_id = {APPLICATION_ID}; PRAGMA user_version = {FORMAT}; COMMIT;"
        )

    def _scalar(self, query: str) -> Any:
        return self._db.execute(query).fetchone()[0]

    # -- reading ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot | None:
        """The latest snapshot, or None."""
        row = self._db.execute("SELECT body FROM snapshot").fetchone()
        if row is None:
            return None
        try:
            return _snapshot_decoder.decode(row[0])
        except msgspec.DecodeError as error:
            raise self._unreadable("the snapshot", error) from None

    def batches(self, after: int) -> Iterator[tuple[int, Batch]]:
        """(number of its first event, batch) for all that hold events after `after`, in order. A batch may start
        before. Raises StoreError when one is missing or cannot be read."""
        expected: int | None = None
        try:
            for last, first, body in self._db.execute(
                "SELECT last, first, body FROM batch WHERE last > ? ORDER BY last", (after,)
            ):
                batch = _batch_decoder.decode(body)
                if (expected is not None and first != expected) or last - first + 1 != len(batch.events):
                    raise self._unreadable(f"event {expected or first}", "events are missing")
                expected = last + 1
                yield first, batch
        except msgspec.DecodeError as error:
            raise self._unreadable(f"an event after {after}", error) from None
        except sqlite3.Error as error:
            raise self._unreadable(f"an event after {after}", error) from None

    def records(self, after: int, limit: int) -> list[Record]:
        """At most about `limit` events with numbers above `after`, in order (whole batches)."""
        result: list[Record] = []
        for first, batch in self.batches(after):
            for offset, body in enumerate(batch.events):
                if first + offset > after:
                    result.append(Record(first + offset, bytes(body)))
            if len(result) >= limit:
                break
        return result

    def first_seq(self) -> int:
        """Number of the oldest event still in the log; last_seq + 1 when there is none."""
        row = self._db.execute("SELECT coalesce(min(first), ?) FROM batch", (self.last_seq + 1,)).fetchone()
        return int(row[0])

    def _unreadable(self, what: str, error: object) -> StoreError:
        return _damaged(self.path or "memory", f"{what}: {error}")

    @property
    def path(self) -> Path | None:
        """The database file; None in memory."""
        return self._directory / "controller.db" if self._directory else None

    # -- writing ------------------------------------------------------------------------------------------------------

    def append(self, batch: Batch) -> int:
        """Make a batch durable; returns the number of its last event. Raises sqlite3.Error (disk full, ...): then
        nothing of it was stored."""
        first = self.last_seq + 1
        last: int = self.last_seq + len(batch.events)
        self._db.execute("INSERT INTO batch VALUES (?, ?, ?)", (last, first, msgspec.json.encode(batch)))
        self.last_seq = last
        return last

    def save_snapshot(self, snapshot: Snapshot, keep: int) -> None:
        """Replace the snapshot, and drop the events before it except the latest `keep` (event streams read them)."""
        self._db.execute("BEGIN IMMEDIATE")
        try:
            self._db.execute(
                "INSERT OR REPLACE INTO snapshot (id, seq, body) VALUES (1, ?, ?)",
                (snapshot.seq, msgspec.json.encode(snapshot)),
            )
            self._db.execute("DELETE FROM batch WHERE last <= ? AND last <= ?", (snapshot.seq, self.last_seq - keep))
            self._db.execute("COMMIT")
        except sqlite3.Error:
            with contextlib.suppress(sqlite3.Error):
                self._db.execute("ROLLBACK")
            raise

    def trim(self, keep: int) -> None:
        """Drop all but the latest `keep` events of a log in memory, which nobody will rebuild a controller from."""
        self._db.execute("DELETE FROM batch WHERE last <= ?", (self.last_seq - keep,))

    @contextlib.contextmanager
    def reading(self) -> Iterator[EventStore]:
        """The same log on a connection of its own that only reads, for another thread. In memory: this one."""
        if self.path is None:
            yield self
            return
        store = object.__new__(EventStore)
        store._directory, store._lock, store.last_seq = self._directory, None, self.last_seq
        store._db = sqlite3.connect(
            f"file:{self.path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        try:
            yield store
        finally:
            store.close()

    def setting(self, name: str, make: Any) -> bytes:
        """A value that is made once per data directory (`make() -> bytes`) and stays."""
        row = self._db.execute("SELECT value FROM setting WHERE name = ?", (name,)).fetchone()
        if row is not None:
            return bytes(row[0])
        value: bytes = make()
        self._db.execute("INSERT INTO setting VALUES (?, ?)", (name, value))
        return value

    def close(self) -> None:
        """Close the file and give the directory up. May be called twice."""
        if hasattr(self, "_db"):
            self._db.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def _damaged(path: object, error: object) -> StoreError:
    text = " ".join(str(error).split())
    return StoreError(f"{path} cannot be read ({text}); restore it from a copy or give another data directory")


def _sync_directory(directory: Path) -> None:
    """A new file's name is durable only when its directory has been synced."""
    handle = os.open(directory, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
