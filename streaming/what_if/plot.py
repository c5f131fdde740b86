"""Draws what changes over the period: as lines of text, or as SVG."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from streaming.history.plots import HEIGHT, LEFT, WIDTH, Plot, plot, svg
from streaming.history.times import shown_utc
from streaming.what_if.answer import WhatIfAnswer
from streaming.what_if.comparison import Comparison, Flow

_BAR: Final = 48
_TITLE: Final = 18
"""Height of a plot's title."""
_STYLE: Final = (
    "text{font:9.5px sans-serif;fill:#5d6878} .grid{stroke:#dfe3e9} .line{fill:none;stroke-width:1.6} .reading{fill:transparent} "
    ".s0{stroke:#0072b2} .s1{stroke:#d55e00} .n0{fill:#0072b2} .n1{fill:#d55e00}"
)
_FULL: Final = "█"
_HALF: Final = "▒"


def bars(comparison: Comparison) -> Iterator[str]:
    """Yields two bars for each outcome: what was, and what would be."""
    total = comparison.total()
    rows = {**total.before, **total.after}
    most = max((*total.before.values(), *total.after.values()), default=1)
    width = max(map(len, rows), default=0)
    for outcome in rows:
        for name, count, mark in (
            ("was", total.before.get(outcome, 0), _HALF),
            ("would be", total.after.get(outcome, 0), _FULL),
        ):
            label = outcome if name == "was" else ""
            length = -(-count * _BAR // most)
            yield f"{label:{width}}  {name:8}  {mark * length} {count:,}".rstrip()


def plots(answer: WhatIfAnswer) -> tuple[Plot, Plot]:
    """Returns the messages that arrive and those that are lost over the period, as they were and as they would be."""
    flow = answer.comparison.flow
    parts = range(max(flow, default=0) + 1)
    until_s = (answer.since_ms + len(parts) * answer.width_ms) / 1_000
    window_s = len(parts) * answer.width_ms / 1_000

    edges = f"{shown_utc(answer.since_ms)} UTC", f"{shown_utc(answer.until_ms)} UTC"

    def points(name: str) -> list[tuple[float, float]]:
        found = [getattr(flow.get(part, Flow()), name) * 1_000 / answer.width_ms for part in parts]
        # The middle of a part, so that the plot shows the first one too.
        return [
            ((answer.since_ms + (part + 0.5) * answer.width_ms) / 1_000, value) for part, value in zip(parts, found, strict=True)
        ]

    def draw(title: str, kind: str) -> Plot:
        series = ("was", points(f"{kind}_before")), ("would be", points(f"{kind}_after"))
        return plot(title, "a second", series, until_s=until_s, window_s=window_s, max_gap_s=window_s, edges=edges)

    return draw("Messages that arrive", "arrived"), draw("Messages that are lost", "lost")


def write_svg(path: Path, answer: WhatIfAnswer) -> None:
    """Writes both plots into one file, which needs no other one."""
    parts = []
    for number, drawn in enumerate(plots(answer)):
        names = "".join(f' <tspan class="n{index}">— {line.name}</tspan>' for index, line in enumerate(drawn.lines))
        title = f'<text x="{LEFT}" y="{_TITLE - 4}">{drawn.title}, {drawn.unit}{names}</text>'
        parts.append(f'<g transform="translate(0 {number * (_TITLE + HEIGHT)})">{title}')
        parts.append(f'<g transform="translate(0 {_TITLE})">{svg(drawn)}</g></g>')
    size = f'viewBox="0 0 {WIDTH} {2 * (_TITLE + HEIGHT)}" width="{2 * WIDTH}"'
    text = "\n".join((f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{_STYLE}</style>", *parts, "</svg>\n"))
    path.write_text(text, encoding="utf-8")
