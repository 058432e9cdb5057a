"""What a run shows while it goes: a bar on a terminal, a plain line now and then elsewhere; the table at its end."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import IO, Any

from rich.console import Console
from rich.live import Live
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from .checks_base import CheckResult
from .history import ControllerEvent, FaultEnded, FaultInjected
from .history_views import GIB, Views
from .report import seconds
from .report_data import wait_table

PLAIN_EVERY_S = 5.0


class GpusInUse:
    """How many GPUs hold a session now; a listener of the record."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: dict[str, tuple[tuple[str, int], ...]] = {}
        self._users: dict[tuple[str, int], int] = {}
        self._present: dict[str, int] = {}

    def entry(self, entry: object) -> None:
        if not isinstance(entry, ControllerEvent):
            return
        event, kind = entry.event, type(entry.event).__name__
        with self._lock:
            if kind == "AgentRegistered":
                self._present[event.agent_id] = len(event.gpus)  # type: ignore[attr-defined]
            elif kind == "AgentStateChanged" and event.state.value == "closed":  # type: ignore[attr-defined]
                self._present.pop(event.agent_id, None)  # type: ignore[attr-defined]
            elif kind == "SessionAssigned":
                keys = tuple((event.agent_id, grant.index) for grant in event.grants)  # type: ignore[attr-defined]
                self._held[event.session_id] = keys  # type: ignore[attr-defined]
                for key in keys:
                    self._users[key] = self._users.get(key, 0) + 1
            elif kind == "SessionClosed":
                for key in self._held.pop(event.session_id, ()):  # type: ignore[attr-defined]
                    self._users[key] -= 1
                    if not self._users[key]:
                        del self._users[key]

    @property
    def counts(self) -> tuple[int, int]:
        """(in use, present)."""
        with self._lock:
            return len(self._users), sum(self._present.values())


class RunProgress:
    """Shows one run on `stream`. Use as a context manager; `phase` and `update` may come from any one thread."""

    def __init__(self, stream: IO[str] | None = None, quiet: bool = False) -> None:
        self._stream = stream or sys.stderr
        self._quiet = quiet
        self._console = Console(file=self._stream, highlight=False)
        self._live: Live | None = None
        self._bar: Progress | None = None
        self._task: Any = None
        self._last_plain = 0.0
        self._began = time.monotonic()

    @property
    def fancy(self) -> bool:
        return self._console.is_terminal and not self._quiet

    def __enter__(self) -> RunProgress:
        if self.fancy:
            self._bar = Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(bar_width=28),
                TextColumn("{task.fields[counts]}"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._task = self._bar.add_task("starting", total=None, counts="")
            self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def phase(self, text: str) -> None:
        """What the run does now."""
        if self._bar is not None:
            self._bar.update(self._task, description=text)
        elif not self._quiet:
            self._line(text)

    def update(self, done: int, total: int, running: int, requeues: int, gpus: tuple[int, int]) -> None:
        """The counts now."""
        counts = f"{done}/{total} done, {running} running, {requeues} requeued, GPUs {gpus[0]}/{gpus[1]}"
        if self._bar is not None:
            self._bar.update(self._task, total=total, completed=done, counts=counts)
        elif not self._quiet and time.monotonic() - self._last_plain >= PLAIN_EVERY_S:
            self._last_plain = time.monotonic()
            self._line(f"jobs {counts}")

    def entry(self, entry: object) -> None:
        """A listener of the record: faults are told as they come."""
        if self._quiet or not isinstance(entry, (FaultInjected, FaultEnded)):
            return
        target = f" ({entry.target})" if entry.target else ""
        if isinstance(entry, FaultInjected):
            self._line(f"fault: {entry.label}{target}", "red")
        elif entry.detail:
            self._line(f"       {entry.kind.replace('_', ' ')}{target}: {entry.detail}", "dim")

    def _line(self, text: str, style: str = "") -> None:
        shown = Text(f"{time.monotonic() - self._began:7.1f} s  {text}", style=style)
        # Names of jobs and agents are other people's: as Text, so that brackets in them are no markup.
        (self._bar.console if self._bar is not None else self._console).print(shown, soft_wrap=True)


def final_table(views: Views, results: dict[str, Any], checks: Sequence[CheckResult], console: Console) -> None:
    """Print what came of a run: a line per group of jobs, the figures, the checks."""
    table = Table(title=f"{results['scenario']}: jobs by group", title_justify="left", header_style="bold")
    table.add_column("group")
    for name in ("jobs", "completed", "requeues", "wait, median", "longest"):
        table.add_column(name, justify="right")
    for row in wait_table(views):
        table.add_row(
            Text(row["group"]),
            str(row["jobs"]),
            str(row["completed"]),
            str(row["requeues"]),
            seconds(row["wait_p50"]),
            seconds(row["wait_max"]),
        )
    console.print(table)
    jobs, sessions, gpus, waits = results["jobs"], results["sessions"], results["gpus"], results["waits"]
    console.print(
        f"jobs      {jobs['completed']} of {jobs['submitted']} completed, {jobs['failed']} failed, "
        f"{jobs['cancelled']} cancelled, {jobs['requeues']} requeues, {seconds(results['wall_s'])}"
    )
    console.print(
        f"sessions  {sessions['granted']} granted, {sessions['denied']} denied, {sessions['leaked']} leaked; "
        f"prolog {seconds(waits['prolog_p50_s'])} (median), {seconds(waits['prolog_p99_s'])} (p99)"
    )
    console.print(
        f"GPUs      {gpus['count']}, {gpus['vram_bytes'] / GIB:.0f} GiB; peak {gpus['peak_vram_bytes'] / GIB:.0f} GiB, "
        f"over-committed {gpus['overcommitted_bytes']} bytes"
    )
    for check in checks:
        if check.ok:
            console.print(Text.assemble(("ok    ", "green"), check.title))
        else:
            console.print(Text.assemble(("FAIL  ", "bold red"), f"{check.title}: {check.count} violation(s)"))


def tell_violations(checks: Sequence[CheckResult], console: Console, most: int = 3) -> None:
    """Print the first violations of each failed check with their stories."""
    for check in checks:
        for violation in check.violations[:most]:
            console.print(Text(f"\n{check.name}: {violation.subject}: {violation.message}", style="bold red"))
            for line in violation.story[-25:]:
                console.print(Text(f"    {line}"), soft_wrap=True)
        if check.count > most:
            console.print(Text(f"... and {check.count - most} more violations of {check.name}"))
