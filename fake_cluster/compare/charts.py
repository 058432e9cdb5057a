"""Line charts as SVG, drawn here so that a page needs no script. Colours are those of report.css."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import markupsafe

WIDTH, HEIGHT = 600, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 14, 12, 40
COLOURS = 8  # --c0 to --c7


@dataclass(frozen=True)
class Line:
    """One line. `band` are (x, least, most) around it, drawn pale."""

    name: str
    colour: int
    points: Sequence[tuple[float, float]]
    band: Sequence[tuple[float, float, float]] = ()


def line_chart(lines: Sequence[Line], x_label: str, y_label: str, y_from: float | None = None) -> markupsafe.Markup:
    """The chart as markup. `y_from` is where the y axis begins; None: at the least value."""
    xs = [x for line in lines for x, _ in line.points]
    lows = [y for line in lines for _, y in line.points] + [low for line in lines for _, low, _ in line.band]
    highs = [y for line in lines for _, y in line.points] + [high for line in lines for _, _, high in line.band]
    if not xs:
        return markupsafe.Markup('<p class="soft">Nothing to show.</p>')
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(lows) if y_from is None else y_from, max(highs))
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1e-9)
    y_low, y_high = min(y_ticks[0], min(lows)), max(y_ticks[-1], max(highs), y_ticks[0] + 1e-9)

    def x(value: float) -> str:
        return f"{LEFT + (value - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT):.1f}"

    def y(value: float) -> str:
        return f"{HEIGHT - BOTTOM - (value - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM):.1f}"

    parts = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" class="plot">', f"<title>{_text(y_label)}</title>"]
    for tick in y_ticks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick)}" y2="{y(tick)}"/>')
        parts.append(f'<text class="tick end" x="{LEFT - 6}" y="{y(tick)}" dy="4">{tick:g}</text>')
    for tick in x_ticks:
        parts.append(f'<text class="tick middle" x="{x(tick)}" y="{HEIGHT - BOTTOM + 16}">{tick:g}</text>')
    middle = (LEFT + WIDTH - RIGHT) / 2
    parts.append(f'<text class="tick middle" x="{middle:.0f}" y="{HEIGHT - 6}">{_text(x_label)}</text>')
    for line in lines:
        colour = f"var(--c{line.colour % COLOURS})"
        if line.band:
            upper = [f"{x(at)},{y(high)}" for at, _, high in line.band]
            lower = [f"{x(at)},{y(low)}" for at, low, _ in reversed(line.band)]
            parts.append(f'<polygon points="{" ".join(upper + lower)}" fill="{colour}" opacity="0.16"/>')
    for line in lines:
        colour = f"var(--c{line.colour % COLOURS})"
        path = " ".join(f"{x(at)},{y(value)}" for at, value in line.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.8"/>')
        # Wide and unseen, for the pointer to find.
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="transparent" stroke-width="10">'
            f"<title>{_text(line.name)}</title></polyline>"
        )
    parts.append("</svg>")
    return markupsafe.Markup("".join(parts))


def ticks(low: float, high: float, count: int = 6) -> list[float]:
    """Round numbers over a range, 1, 2 or 5 times a power of ten apart; the first not above `low`."""
    span = max(high - low, 1e-9)
    power = 10.0 ** math.floor(math.log10(span / count))
    step = next((factor * power for factor in (1, 2, 5, 10) if span / (factor * power) <= count), 10 * power)
    first = math.floor(low / step + 1e-9)
    last = math.floor(high / step + 1e-9)
    return [round(index * step, 9) for index in range(first, last + 1)]


def _text(text: str) -> str:
    return str(markupsafe.escape(text))
