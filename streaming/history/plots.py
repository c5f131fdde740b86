"""Draws lines over time as SVG: for the console, the report and `inflight what-if --plot`.

A style sheet of the page gives the colours: the classes `grid`, `line`, `reading`, `nothing`, and `s0` to `s7` of the lines.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final, TypeAlias

from sinks.escaping import escaped
from streaming.history.times import shown_utc

WIDTH: Final = 360
HEIGHT: Final = 120
"""Size of the drawing."""
LEFT: Final = 40
RIGHT: Final = 354
TOP: Final = 8
BOTTOM: Final = 100
"""Edges of the part with lines."""
MAX_GAP_S: Final = 30.0
"""Points with a larger gap are not joined, because nothing was measured between them."""
MAX_READINGS: Final = 100
"""A plot has no more readings than this: they are narrow, and a page is fetched every two seconds."""
MISSING: Final = "–"
_DAY_S: Final = 86_400.0
_STEPS: Final = (1.0, 2.0, 5.0, 10.0)
_COLOURS: Final = 8

Points: TypeAlias = Sequence[tuple[float, float]]
"""(seconds since 1970, value), oldest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a plot.

    Attributes:
        segments: Values of `points` for polylines, with gaps between them where nothing was measured.
        last: The newest value as text.
    """

    name: str
    segments: tuple[str, ...]
    last: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The values at one moment, for the part of the drawing that is nearest to it.

    Attributes:
        x, width: The part, in units of the drawing.
        at_text: The moment, UTC.
        values: (name of the line, value as text), in the order of the lines; `MISSING` for a line without a point there.
    """

    x: float
    width: float
    at_text: str
    values: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """A plot; without lines it shows that nothing was measured.

    Attributes:
        marks: (height in the drawing, label) of the grid lines.
        from_text, to_text: Labels of the left and the right edge.
    """

    title: str
    unit: str
    lines: tuple[Line, ...]
    marks: tuple[tuple[float, str], ...]
    readings: tuple[Reading, ...]
    from_text: str
    to_text: str


def plot(
    title: str,
    unit: str,
    series: Iterable[tuple[str, Points]],
    *,
    until_s: float,
    window_s: float,
    max_gap_s: float = MAX_GAP_S,
    edges: tuple[str, str] | None = None,
) -> Plot:
    """Returns the plot of those points that are in the last `window_s` before `until_s`.

    Args:
        max_gap_s: Points with a larger gap are not joined.
        edges: Labels of the left and the right edge; None = the minutes until now.
    """
    kept = [(name, [(at_s, value) for at_s, value in points if at_s > until_s - window_s]) for name, points in series]
    shown = [(name, points) for name, points in kept if points]
    top = ceiling(max((value for _, points in shown for _, value in points), default=0.0))

    def to_x(at_s: float) -> float:
        return RIGHT - (RIGHT - LEFT) * (until_s - at_s) / window_s

    def to_point(at_s: float, value: float) -> str:
        return f"{to_x(at_s):.1f},{BOTTOM - (BOTTOM - TOP) * min(value, top) / top:.1f}"

    def segments(points: Points) -> tuple[str, ...]:
        found: list[list[str]] = []
        last_s = -math.inf
        for at_s, value in points:
            if at_s - last_s > max_gap_s:
                found.append([])
            found[-1].append(to_point(at_s, value))
            last_s = at_s
        # A polyline with one point would be invisible.
        return tuple(" ".join(piece if len(piece) > 1 else piece * 2) for piece in found)

    def readings() -> Iterator[Reading]:
        parts = _parts(shown, window_s / MAX_READINGS)
        times = [at_s for at_s, _ in parts]
        edges = [until_s - window_s, *((before + after) / 2 for before, after in pairwise(times)), until_s]
        for (at_s, values), (left_s, right_s) in zip(parts, pairwise(edges), strict=bool(parts)):
            x = to_x(max(left_s, at_s - max_gap_s / 2))
            date, _, time = shown_utc(round(at_s) * 1_000).partition(".")[0].partition(" ")
            yield Reading(
                x=round(x, 1),
                width=round(to_x(min(right_s, at_s + max_gap_s / 2)) - x, 1),
                at_text=time if window_s < _DAY_S else f"{date} {time}",
                values=tuple((name, short(values[name]) if name in values else MISSING) for name, _ in shown),
            )

    from_text, to_text = edges or (f"{window_s / 60:.0f} min ago", "now")
    return Plot(
        title=title,
        unit=unit,
        lines=tuple(Line(name=name, segments=segments(points), last=short(points[-1][1])) for name, points in shown),
        marks=tuple((BOTTOM - (BOTTOM - TOP) * share, short(top * share)) for share in (0.0, 0.5, 1.0)),
        readings=tuple(readings()),
        from_text=from_text,
        to_text=to_text,
    )


def svg(plot: Plot) -> str:
    """Returns the drawing as an SVG element."""
    edge = BOTTOM + 14
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" role="img" aria-label="{_text(plot.title)}">'
    ]
    for height, label in plot.marks:
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{RIGHT}" y1="{height}" y2="{height}"/>')
        if plot.lines:
            parts.append(f'<text x="{LEFT - 5}" y="{height + 3.5}" text-anchor="end">{_text(label)}</text>')
    parts.append(f'<text x="{LEFT}" y="{edge}">{_text(plot.from_text)}</text>')
    parts.append(f'<text x="{RIGHT}" y="{edge}" text-anchor="end">{_text(plot.to_text)}</text>')
    for number, line in enumerate(plot.lines):
        parts += (f'<polyline class="line {_colour(number)}" points="{points}"/>' for points in line.segments)
    for reading in plot.readings:
        values = "\n".join(f"{_text(name)} {value}" for name, value in reading.values)
        box = f'x="{reading.x}" y="{TOP}" width="{reading.width}" height="{BOTTOM - TOP}"'
        parts.append(f'<rect class="reading" {box}><title>{_text(reading.at_text)} UTC\n{values}</title></rect>')
    if not plot.lines:
        middle = f'x="{(LEFT + RIGHT) / 2}" y="{BOTTOM / 2 + 8}"'
        parts.append(f'<text class="nothing" {middle} text-anchor="middle">nothing measured yet</text>')
    return "\n".join((*parts, "</svg>"))


def legend(plot: Plot) -> str:
    """Returns the names of the lines with their newest values, as a list of HTML."""
    items = (
        f'<li class="{_colour(number)}"><span>{_text(line.name)}</span> <b>{line.last}</b></li>'
        for number, line in enumerate(plot.lines)
    )
    return "\n".join(('<ul class="legend">', *items, "</ul>"))


def _colour(number: int) -> str:
    return f"s{number % _COLOURS}"


def _text(text: str) -> str:
    return escape(escaped(text))


def _parts(series: Sequence[tuple[str, Points]], width_s: float) -> list[tuple[float, dict[str, float]]]:
    """Returns (time of the last point, newest value of each line) for parts of at most `width_s`."""
    found: list[tuple[float, dict[str, float]]] = []
    began_s = -math.inf
    for at_s, name, value in sorted((at_s, name, value) for name, points in series for at_s, value in points):
        if at_s - began_s >= width_s:
            began_s = at_s
            found.append((at_s, {}))
        values = found[-1][1]
        values[name] = value
        found[-1] = at_s, values
    return found


def ceiling(value: float) -> float:
    """Returns the next 1, 2 or 5 times a power of ten; 1 for 0."""
    if value <= 0:
        return 1.0
    power: float = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _STEPS if value <= step * power * (1 + 1e-9))


def short(value: float) -> str:
    """Returns three digits, with k or M."""
    for size, letter in (1e6, "M"), (1e3, "k"):
        if value >= size:
            return f"{value / size:.3g}{letter}"
    return f"{value:.3g}"
