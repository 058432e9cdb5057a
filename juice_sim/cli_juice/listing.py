"""Lists of things: which fields, in which order, as a table or as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from typing import Any

from .account import Failure

Row = dict[str, Any]


def add_options(parser: argparse.ArgumentParser, default_fields: Sequence[str], default_sort: str = "1") -> None:
    """`--json`, `--fields` and `--sort-cols`."""
    parser.add_argument("--json", action="store_true", help="output in JSON format")
    parser.add_argument(
        "--fields", metavar="F,..", help=f"fields to display (default: {', '.join(default_fields)}; `all` shows all)"
    )
    parser.add_argument(
        "--sort-cols",
        metavar="N,..",
        default=default_sort,
        help="columns to sort by, from 1; negative: descending (default: %(default)s)",
    )
    parser.set_defaults(default_fields=tuple(default_fields))


def show(args: argparse.Namespace, rows: Sequence[Row], known: Sequence[str], objects: Sequence[Any]) -> None:
    """Print `rows`, of which each has the fields `known`. With `--json` the controller's `objects` instead, unless
    `--fields` chooses. Failure for an unknown field or column."""
    fields = list(args.default_fields)
    if args.fields:
        fields = [name.strip() for name in args.fields.split(",") if name.strip()]
        if fields == ["all"]:
            fields = list(known)
    unknown = next((name for name in fields if name not in known), None)
    if unknown is not None:
        raise Failure(f"--fields: {unknown!r} is unknown; accepted: {', '.join(known)}", 2)
    order = list(range(len(rows)))
    for column in reversed(_columns(args.sort_cols, len(fields), bool(args.fields))):
        name = fields[abs(column) - 1]
        keys = [_sortable(row[name]) for row in rows]
        order.sort(key=keys.__getitem__, reverse=column < 0)
    if args.json:
        chosen = [{name: rows[at][name] for name in fields} if args.fields else objects[at] for at in order]
        print(json.dumps(chosen, indent=2))
        return
    lines = [[name.upper() for name in fields]] + [[_shown(rows[at][name]) for name in fields] for at in order]
    widths = [max(len(line[column]) for line in lines) for column in range(len(fields))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def _columns(text: str, count: int, chosen: bool) -> list[int]:
    columns = []
    for word in text.split(","):
        try:
            column = int(word)
        except ValueError:
            column = 0
        if 1 <= abs(column) <= count:
            columns.append(column)
        elif not chosen:
            raise Failure(f"--sort-cols: {word.strip()!r} is no column; accepted: 1 to {count}, or their negatives", 2)
    return columns


def _sortable(value: Any) -> tuple[int, float, str]:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return 0, float(value), ""
    return 1, 0.0, _shown(value)


def _shown(value: Any) -> str:
    if value is None or value == "":
        return "-"
    return "".join(c if c.isprintable() else "?" for c in str(value))
