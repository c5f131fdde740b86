"""Draws what changes over the period: as lines of text, or as SVG."""

from collections.abc import Iterator
from datetime import UTC
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streaming.what_if.comparison import Comparison, Flow

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from streaming.what_if.answer import WhatIfAnswer

_BAR: Final = 48
_DAY_MS: Final = 86_400_000
"""Matplotlib counts times in days since 1970."""
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


def write_svg(path: Path, answer: "WhatIfAnswer") -> None:
    """Writes the messages that arrived, and those that were lost, over the period, as they were and as they would be."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    from streaming.history.report.plots import STYLE

    with mpl.rc_context(dict[Any, Any](STYLE)):
        figure = Figure(figsize=(7.5, 4.8), layout="constrained")
        arrived, lost = figure.subplots(2, 1, sharex=True)
        _draw(arrived, answer, "arrived")
        _draw(lost, answer, "lost")
        arrived.legend(loc="upper center", bbox_to_anchor=(0.5, 1.2), ncols=2)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def _draw(axes: "Axes", answer: "WhatIfAnswer", kind: str) -> None:
    from matplotlib.dates import AutoDateLocator, ConciseDateFormatter

    from streaming.history.report.plots import BLUE, VERMILLION

    parts = range(max(answer.comparison.flow, default=0) + 1)
    flows = [answer.comparison.flow.get(part, Flow()) for part in parts]
    times = [(answer.since_ms + part * answer.width_ms) / _DAY_MS for part in parts]
    for name, label, colour in (("before", "was", BLUE), ("after", "would be", VERMILLION)):
        values = [getattr(flow, f"{kind}_{name}") * 1_000 / answer.width_ms for flow in flows]
        axes.plot(times, values, label=label, color=colour, linewidth=1.6, marker="o" if len(values) < 3 else None)
    axes.set_ylabel(f"{kind}, messages / s")
    axes.set_ylim(bottom=0)
    axes.set_xlim(answer.since_ms / _DAY_MS, answer.until_ms / _DAY_MS)
    locator = AutoDateLocator(tz=UTC, maxticks=11)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
