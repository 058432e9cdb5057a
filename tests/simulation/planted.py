"""Five bugs to plant into a copy of the tree, each as the text it replaces, and the checks of which one must see it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Planted:
    """`edits` are (file, old text, new text); the old text stands in its file exactly once."""

    name: str
    edits: tuple[tuple[str, str, str], ...]
    seen_by: tuple[str, ...]

    def apply(self, root: Path) -> None:
        """Change the copy at `root`. AssertionError when the sources have moved on and the bug must be planted anew."""
        for file, old, new in self.edits:
            path = root / file
            text = path.read_text(encoding="utf-8")
            assert text.count(old) == 1, f"{self.name}: {file} has {text.count(old)} times: {old}"
            path.write_text(text.replace(old, new), encoding="utf-8")


PLANTED = (
    Planted(
        "release_before_close",
        (
            (
                "juice_sim/core/decide_sessions.py",
                "        turn.emit(ev.SessionCanceling(turn.now, session.id, command.reason))\n",
                "        session_ended(turn, session, command.reason)\n",
            ),
        ),
        ("physical_overcommit",),
    ),
    Planted(
        "journal_after_post",
        (
            ("hooks/juice_hook.py", "    yield from write_journal(job.id, kept)\n    return mine, leftovers\n",
             "    if state == 'denied':\n        yield from write_journal(job.id, kept)\n    return mine, leftovers\n"),
            (
                "hooks/juice_hook.py",
                "    attempts, _ = yield from read_journal(job.id)\n    for attempt in attempts:\n"
                '        if attempt["key"] == mine["key"] and attempt["session"] != mine["session"]:\n',
                "    attempts, _ = yield from read_journal(job.id)\n"
                '    attempts = attempts + [dict(mine, session="")]\n    for attempt in attempts:\n'
                '        if attempt["key"] == mine["key"] and attempt["session"] != mine["session"]:\n',
            ),
        ),
        ("released_by_epilog",),
    ),
    Planted(
        "no_idempotency",
        (
            (
                "juice_sim/core/decide_sessions.py",
                "        if earlier is not None:\n            return _repeated(state.sessions[earlier], command)\n",
                "",
            ),
        ),
        ("keys",),
    ),
    Planted(
        "ninety_three_percent_off_by_one",
        (
            (
                "juice_sim/core/placement.py",
                "-(-vram * granted_percent // 100)",
                "vram * granted_percent // 100",
            ),
        ),
        ("grant_sizes", "denials", "sound"),  # sound: an invariant of the controller itself
    ),
    Planted(
        "epilog_skips_reentered_job",
        (
            (
                "hooks/juice_hook.py",
                'retire(job.id, lambda attempt: attempt["restart"] <= job.restart)',
                'retire(job.id, lambda attempt: attempt["restart"] == job.restart)',
            ),
        ),
        ("released_by_epilog",),
    ),
)  # fmt: skip
