"""What an admin installs on the slurmctld host: job_submit.lua, and the line of slurm.conf."""

from __future__ import annotations

from pathlib import Path

DEFAULT_TABLE = Path("/etc/slurm/juice-licenses.tsv")
_SOURCE = Path(__file__).resolve().parent.parent / "data" / "job_submit.lua"


def job_submit_lua(table: Path = DEFAULT_TABLE) -> str:
    """The script that reads `table`. ValueError for a path that cannot stand in it."""
    path = str(table)
    if not table.is_absolute() or any(c in '"\\' or not c.isprintable() for c in path):
        raise ValueError(
            f"--table {path!r}: accepted: an absolute path without quotes, backslashes or control characters"
        )
    return _SOURCE.read_text(encoding="utf-8").replace("@TABLE@", path)
