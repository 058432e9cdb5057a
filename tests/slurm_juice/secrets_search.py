"""Looks for secrets where none may be: argv and environment of all processes, files, and what another user can read."""

from __future__ import annotations

import base64
import json
import os
import pwd
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_WALK = """
import json, os, sys
root, known = json.load(sys.stdin)
patterns = {name: bytes.fromhex(text) for name, text in known.items()}
found, read = [], 0
for folder, _, names in os.walk(root):
    for name in names:
        path = os.path.join(folder, name)
        try:
            fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
        except OSError:
            continue
        with open(fd, "rb") as file:
            try:
                data = file.read()
            except OSError:
                continue
        read += 1
        found += [[name, path] for name, pattern in patterns.items() if pattern in data]
print(json.dumps([read, found]))
"""


def patterns_of_key(key: bytes) -> dict[str, bytes]:
    """The key in the forms in which it might be written down."""
    return {
        "key": key,
        "key in hex": key.hex().encode(),
        "key in base64": base64.b64encode(key),
        "key as repr": repr(key)[2:-1].encode(),
    }


def in_files(root: Path, patterns: Mapping[str, bytes], user_id: int | None = None) -> tuple[int, list[str]]:
    """(number of files read, `what in which file` for each find) below `root`, as root or as another user."""
    known = {name: pattern.hex() for name, pattern in patterns.items()}
    done = subprocess.run(
        [sys.executable if user_id is None else "/usr/bin/python3", "-I", "-S", "-c", _WALK],
        input=json.dumps([str(root), known]),
        capture_output=True,
        text=True,
        user=user_id,
        group=None if user_id is None else pwd.getpwuid(user_id).pw_gid,
        extra_groups=None if user_id is None else [],
        cwd="/",
        check=True,
    )
    read, found = json.loads(done.stdout)
    return read, [f"{name} in {path}" for name, path in found]


@dataclass(frozen=True)
class Seen:
    """One find: `what` in `where` (argv or environ) of a process of `user_id` and of job `job_id` (0: of none)."""

    what: str
    where: str
    user_id: int
    job_id: int
    program: str


class Sampler:
    """Reads argv and environment of all processes over and over, from `with` on to its end.

    `hooks` counts how often a hook's Python was seen: a sampler that saw none proves nothing. All that was read is
    kept, for session ids are known only afterwards.
    """

    def __init__(self) -> None:
        self.hooks = 0
        self.rounds = 0
        self._texts: dict[tuple[str, bytes], tuple[int, int, str]] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.is_set():
            self.round()
            time.sleep(0.002)

    def round(self) -> None:
        """Read all processes once."""
        for entry in os.listdir("/proc"):
            if not entry.isdigit():
                continue
            try:
                argv = Path("/proc", entry, "cmdline").read_bytes()
                environ = Path("/proc", entry, "environ").read_bytes()
                user_id = os.stat(f"/proc/{entry}").st_uid
            except OSError:
                continue  # it has ended
            self.hooks += b"juice_hook" in argv
            program = argv.split(b"\0")[0].decode("utf-8", "replace")
            job = next((part[13:] for part in environ.split(b"\0") if part.startswith(b"SLURM_JOB_ID=")), b"0")
            for where, text in (("argv", argv), ("environ", environ)):
                self._texts.setdefault((where, text), (user_id, int(job), program))
        self.rounds += 1

    def finds(self, patterns: Mapping[str, bytes]) -> Iterable[Seen]:
        """Each pattern in each text that was read."""
        for (where, text), (user_id, job_id, program) in self._texts.items():
            for name, pattern in patterns.items():
                if pattern in text:
                    yield Seen(name, where, user_id, job_id, program)
