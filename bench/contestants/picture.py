"""Draws the results as an SVG picture.

python -m bench.contestants.picture bench/results/contestants.json contestants.svg
"""

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from html import escape
from pathlib import Path
from statistics import mean
from typing import Final, NamedTuple

import msgspec

from bench.contestants.tables import Results, shown

_COLOURS: Final = ("#0072B2", "#E69F00", "#D55E00", "#009E73", "#56B4E9")
_STYLE: Final = "text{font:9px sans-serif;fill:#3c4650} .v{font-size:6.5px} .g{stroke:#e4e8ec} .a{stroke:#b8c0c8}"
_WIDTH, _HEIGHT, _LEGEND = 480, 250, 24
"""Size of a panel, and height of the legend above all of them, in units of the drawing."""
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 472, 26, 208
"""Edges of the part with lines and bars."""
_ABOVE: Final = 1.8
"""Factor between the largest value and the upper edge, which leaves room for its number."""
_LABELS: Final = {
    "burst_warm": "QoS 1, all devices",
    "burst_few_warm": "QoS 1, a fifth",
    "burst_qos2": "QoS 2, all devices",
    "uplink": "QoS 1 of devices",
}
_CONNECTIONS: Final = {"connect_new": "new sessions", "connect_kept": "kept sessions"}


class Bar(NamedTuple):
    """A value. group: its place on the axis. position: that of the contestant in the group."""

    group: int
    position: int
    value: float


class Scale:
    """A logarithmic axis of at least a decade. edges: where its ends are drawn."""

    def __init__(self, values: Iterable[float], edges: tuple[float, float], *, above: float = 1.0) -> None:
        known = list(values) or [1.0]
        self.low, self.high = min(known), max(known) * above
        if above != 1.0:
            self.low = 10.0 ** math.floor(math.log10(self.low))
            self.high = max(self.high, 10 * self.low)
        self._edges = edges

    def place(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low) if self.high > self.low else 0.5
        return self._edges[0] + share * (self._edges[1] - self._edges[0])

    def marks(self) -> Iterator[float]:
        """Yields the powers of ten."""
        mark = 10.0 ** math.ceil(math.log10(self.low) - 1e-9)
        while mark <= self.high:
            yield mark
            mark *= 10


def picture(results: Results) -> str:
    """Returns the SVG of the means of all turns."""
    titles = list(results.titles().values())
    panels = (
        _bars(results, "messages a second", list(_LABELS.values()), _throughput(results, "messages_per_s")),
        _bars(results, "CPU ms a message, of the contestant", list(_LABELS.values()), _throughput(results, "")),
        _latency(results),
        _bars(
            results, f"CONNECT → CONNACK p50, ms, {results.devices:,} at once", list(_CONNECTIONS.values()), _connections(results)
        ),
    )
    legend = "".join(
        f'<rect x="{_LEFT + number * 160}" y="8" width="10" height="10" fill="{_colour(number)}"/>'
        + _text(_LEFT + 15 + number * 160, 17, title)
        for number, title in enumerate(titles)
    )
    placed = (
        f'<g transform="translate({number % 2 * _WIDTH} {_LEGEND + number // 2 * _HEIGHT})">{panel}</g>'
        for number, panel in enumerate(panels)
    )
    size = f'viewBox="0 0 {2 * _WIDTH} {_LEGEND + 2 * _HEIGHT}"'
    return "\n".join(
        (f'<svg xmlns="http://www.w3.org/2000/svg" {size}>', f"<style>{_STYLE}</style>", legend, *placed, "</svg>\n")
    )


def _throughput(results: Results, key: str) -> Iterator[Bar]:
    """key: of the values; "" = the processor time of one message."""
    for position, name in enumerate(results.titles()):
        for group, part in enumerate(_LABELS):
            figures = [figure for figure in results.figures(name, part) if not figure.note]
            if figures:
                yield Bar(group, position, mean(figure.values[key] if key else figure.cpu_ms_per_message for figure in figures))


def _connections(results: Results) -> Iterator[Bar]:
    for position, name in enumerate(results.titles()):
        for group, part in enumerate(_CONNECTIONS):
            if figures := results.figures(name, part):
                yield Bar(group, position, mean(figure.values["p50_ms"] for figure in figures))


def _bars(results: Results, title: str, groups: Sequence[str], found: Iterable[Bar]) -> str:
    bars, contestants = list(found), len(results.titles())
    scale = Scale((bar.value for bar in bars), (_BOTTOM, _TOP), above=_ABOVE)
    room = (_RIGHT - _LEFT) / len(groups)
    width = 0.84 * room / contestants
    parts = [_frame(title, scale)]
    parts += (_text(_LEFT + (number + 0.5) * room, _BOTTOM + 14, name, "middle") for number, name in enumerate(groups))
    for bar in bars:
        x = _LEFT + (bar.group + 0.08) * room + bar.position * width
        y = scale.place(bar.value)
        box = f'x="{x:.1f}" y="{y:.1f}" width="{width - 1:.1f}" height="{_BOTTOM - y:.1f}"'
        parts.append(f'<rect {box} fill="{_colour(bar.position)}"/>')
        parts.append(_text(x + width / 2, y - 3, shown(bar.value), "middle", "v"))
    return "\n".join(parts)


def _latency(results: Results) -> str:
    lines: list[tuple[int, str, list[tuple[int, float]]]] = []
    for position, name in enumerate(results.titles()):
        for key in ("p50_ms", "p99_ms"):
            found = [(rate, results.figures(name, f"rate_{rate}")) for rate in results.rates]
            lines.append(
                (position, key, [(rate, mean(figure.values[key] for figure in figures)) for rate, figures in found if figures])
            )
    scale = Scale((value for _, _, points in lines for _, value in points), (_BOTTOM, _TOP), above=_ABOVE)
    across = Scale(results.rates, (_LEFT + 15, _RIGHT - 15))
    parts = [_frame("latency, ms: p50, and dotted p99", scale)]
    parts += (_text(across.place(rate), _BOTTOM + 14, f"{rate:,}", "middle") for rate in results.rates)
    parts.append(_text((_LEFT + _RIGHT) / 2, _BOTTOM + 28, "messages a second", "middle"))
    for position, key, points in lines:
        colour = _colour(position)
        places = [(across.place(rate), scale.place(value)) for rate, value in points]
        dots = "" if key == "p50_ms" else ' stroke-dasharray="2 3"'
        joined = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(f'<polyline points="{joined}" fill="none" stroke="{colour}" stroke-width="1.5"{dots}/>')
        parts += (f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2" fill="{colour}"/>' for x, y in places)
    return "\n".join(parts)


def _frame(title: str, scale: Scale) -> str:
    parts = [_text(_LEFT, _TOP - 10, title)]
    for mark in scale.marks():
        y = f"{scale.place(mark):.1f}"
        parts.append(f'<line class="g" x1="{_LEFT}" x2="{_RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(_text(_LEFT - 5, float(y) + 3, f"{mark:,g}", "end"))
    parts.append(f'<line class="a" x1="{_LEFT}" x2="{_RIGHT}" y1="{_BOTTOM}" y2="{_BOTTOM}"/>')
    return "\n".join(parts)


def _text(x: float, y: float, text: str, anchor: str = "start", style: str = "") -> str:
    named = f' class="{style}"' if style else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{named}>{escape(text)}</text>'


def _colour(position: int) -> str:
    return _COLOURS[position % len(_COLOURS)]


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("python -m bench.contestants.picture RESULTS.json PICTURE.svg")
    results = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Results)
    Path(sys.argv[2]).write_text(picture(results), encoding="utf-8")


if __name__ == "__main__":
    main()
