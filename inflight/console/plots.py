"""Computes line plots of the last minutes as points and labels in units of an SVG, which the template draws."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

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
_STEPS: Final = (1.0, 2.0, 5.0, 10.0)

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
    from_text: str
    to_text: str = "now"


def plot(
    title: str, unit: str, series: Iterable[tuple[str, Points]], *, until_s: float, window_s: float, max_gap_s: float = MAX_GAP_S
) -> Plot:
    """Returns the plot of those points that are in the last `window_s` before `until_s`."""
    kept = [(name, [(at_s, value) for at_s, value in points if at_s > until_s - window_s]) for name, points in series]
    shown = [(name, points) for name, points in kept if points]
    top = ceiling(max((value for _, points in shown for _, value in points), default=0.0))

    def to_point(at_s: float, value: float) -> str:
        x = RIGHT - (RIGHT - LEFT) * (until_s - at_s) / window_s
        return f"{x:.1f},{BOTTOM - (BOTTOM - TOP) * min(value, top) / top:.1f}"

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

    return Plot(
        title=title,
        unit=unit,
        lines=tuple(Line(name=name, segments=segments(points), last=short(points[-1][1])) for name, points in shown),
        marks=tuple((BOTTOM - (BOTTOM - TOP) * share, short(top * share)) for share in (0.0, 0.5, 1.0)),
        from_text=f"{window_s / 60:.0f} min ago",
    )


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
