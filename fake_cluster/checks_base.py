"""What all checks share: violations with their stories, and the result of a check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from .history_views import SessionLife, Views

MAX_VIOLATIONS = 50  # of one check: a broken run has thousands, all alike


@dataclass(frozen=True)
class Violation:
    """`subject` is `session ID`, `job ID`, `agent ... GPU n` or `run`; `at` the instant (Unix time) or None."""

    check: str
    subject: str
    message: str
    at: float | None = None
    story: tuple[str, ...] = ()


@dataclass(frozen=True)
class CheckResult:
    """`found` says in a few words what was looked at or measured. `count` is how many violations there were in all."""

    name: str
    title: str
    violations: tuple[Violation, ...]
    count: int
    found: str = ""

    @property
    def ok(self) -> bool:
        return self.count == 0


Check = Callable[[Views], list[Violation]]


def job_or_session_story(views: Views, session: SessionLife) -> list[str]:
    return views.job_story(session.job_id) if session.job_id in views.jobs else views.session_story(session.id)
