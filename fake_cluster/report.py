"""report.html: one self-contained page about a run. It loads nothing, and runs no script but its own."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Sequence
from datetime import datetime, timezone
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2
import markupsafe
import msgspec

from .checks_base import CheckResult
from .history_views import GIB, Views
from .report_data import report_data


@cache
def _asset(name: str) -> str:
    return resources.files("fake_cluster").joinpath("data").joinpath(name).read_text(encoding="utf-8")


def _utc(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def seconds(value: float | None) -> str:
    """A number of seconds for people: `0.34 s`, `12.5 s`, `3 min 20 s`; `-` for None."""
    if value is None:
        return "-"
    if value >= 3600:
        return f"{int(value // 3600)} h {int(value % 3600 // 60)} min"
    if value >= 600:
        return f"{int(value // 60)} min {value % 60:.0f} s"
    return f"{value:.0f} s" if value >= 100 else f"{value:.1f} s" if value >= 10 else f"{value:.2f} s"


def _gib(size: int) -> str:
    value = size / GIB
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def embed_json(value: object) -> markupsafe.Markup:
    """JSON that is safe inside a script element: no `<`, so that nothing in it can end the element."""
    text = msgspec.json.encode(value).decode()
    for character, escape in (
        ("<", "\\u003c"),
        (">", "\\u003e"),
        ("&", "\\u0026"),
        ("\u2028", "\\u2028"),
        ("\u2029", "\\u2029"),
    ):
        text = text.replace(character, escape)
    return markupsafe.Markup(text)


def render_report(views: Views, checks: Sequence[CheckResult], results: dict[str, Any]) -> str:
    """The page as text."""
    data = report_data(views, checks, results)
    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, keep_trailing_newline=True)
    environment.filters.update(utc=_utc, s=seconds, gib=_gib)
    script = "\n" + _asset("report.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return environment.from_string(_asset("report.html.j2")).render(
        **data,
        failed=sum(not check.ok for check in checks),
        style=markupsafe.Markup("\n" + _asset("report.css")),
        script=markupsafe.Markup(script),
        script_hash=markupsafe.Markup(f"sha256-{digest}"),
        embedded=embed_json({"charts": data["charts"], "job_rows": data["job_rows"]}),
    )


def write_report(path: Path, views: Views, checks: Sequence[CheckResult], results: dict[str, Any]) -> None:
    """Write the page under a temporary name and rename it."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    temporary.write_text(render_report(views, checks, results), encoding="utf-8")
    temporary.replace(path)
