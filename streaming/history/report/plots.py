"""Draws the plots of the report as SVG with matplotlib. The colours (Okabe–Ito) can be told apart by colour-blind readers."""

import io
import re
from collections.abc import Callable, Sequence
from datetime import UTC
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from sinks.escaping import escaped
from streaming.history.report.measures import Report

BLUE: Final = "#0072B2"
ORANGE: Final = "#E69F00"
VERMILLION: Final = "#D55E00"
SKY: Final = "#56B4E9"
_INK: Final = "#3c4650"
_GRID: Final = "#e4e8ec"
_WIDTH_IN: Final = 6.6
_HEIGHT_IN: Final = 2.7
_DAY_S: Final = 86_400
STYLE: Final = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",  # text stays text: it can be searched, and looks like the page
    "svg.hashsalt": "inflight",
    "axes.edgecolor": "#b8c0c8",
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.grid.axis": "y",
    "grid.color": _GRID,
    "xtick.color": _INK,
    "ytick.color": _INK,
    "text.color": _INK,
    "legend.frameon": False,
}


def plot(name: str, report: Report) -> str:
    """Returns a plot as an SVG element for the page.

    Args:
        name: `flow`, `latency`, `depth`, `dead_letters` or `worst`.
    """
    draw = {"flow": _flow, "latency": _latency, "depth": _depth, "dead_letters": _dead_letters, "worst": _worst}[name]
    return _drawn(name.replace("_", " "), draw, report)


def _flow(axes: Axes, report: Report) -> None:
    per_s = 1 / report.width_s
    axes.fill_between(_times(report), [value * per_s for value in report.delivered], color=BLUE, alpha=0.18, linewidth=0)
    _line(axes, report, [value * per_s for value in report.accepted], _INK, "accepted", dashed=True)
    _line(axes, report, [value * per_s for value in report.delivered], BLUE, "delivered")
    _line(axes, report, [value * per_s for value in report.resends], VERMILLION, "sent again")
    axes.set_ylabel("messages / s")
    _over_time(axes, report)


def _latency(axes: Axes, report: Report) -> None:
    for values, colour, label in (
        (report.latency_p99_ms, VERMILLION, "p99"),
        (report.latency_p95_ms, ORANGE, "p95"),
        (report.latency_p50_ms, BLUE, "p50"),
    ):
        _line(axes, report, [None if value is None else value / 1_000 for value in values], colour, label)
    known = [value for value in report.latency_p99_ms if value]
    if known and max(known) > 20 * min(value for value in report.latency_p50_ms if value is not None) > 0:
        axes.set_yscale("log")
    axes.set_ylabel("seconds")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    _over_time(axes, report)


def _depth(axes: Axes, report: Report) -> None:
    axes.stackplot(
        _times(report),
        report.in_window,
        report.waiting,
        labels=["in the window", "waiting in the queue"],
        colors=[SKY, ORANGE],
        alpha=0.85,
    )
    axes.set_ylabel("messages")
    axes.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    _over_time(axes, report)


def _dead_letters(axes: Axes, report: Report) -> None:
    reasons = list(report.dead_letters)[::-1]
    names = [_short(reason) for reason in reasons]
    values = [report.dead_letters[reason] for reason in reasons]
    bars = axes.barh(names, values, color=VERMILLION, height=0.6)
    axes.bar_label(bars, labels=[f"{value:,}" for value in values], padding=4)
    _counts_to_the_right(axes)


def _worst(axes: Axes, report: Report) -> None:
    clients = report.worst[::-1]
    names = [_short(client.client_id) for client in clients]
    dead = [client.dead_letters for client in clients]
    resends = [client.resends for client in clients]
    axes.barh(names, dead, color=VERMILLION, height=0.6, label="dead letters")
    bars = axes.barh(names, resends, left=dead, color=SKY, height=0.6, label="sent again")
    axes.bar_label(bars, labels=[f"{d:,} + {r:,}" for d, r in zip(dead, resends, strict=True)], padding=4)
    _counts_to_the_right(axes)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.14), ncols=2)


def _drawn(name: str, draw: Callable[[Axes, Report], None], report: Report) -> str:
    with mpl.rc_context(dict[Any, Any](STYLE)):
        figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
        draw(figure.subplots(), report)
        target = io.StringIO()
        figure.savefig(target, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    svg = target.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'width="[\d.]+pt" height="[\d.]+pt"', 'width="100%"', svg, count=1)
    # Ids are unique in the page, not only in the plot.
    prefix = re.sub(r"\W", "-", name)
    svg = re.sub(r'id="([^"]+)"', rf'id="{prefix}-\1"', svg)
    svg = re.sub(r'(href="|url\()#', rf"\1#{prefix}-", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{name}" ', 1)


def _line(axes: Axes, report: Report, values: Sequence[float | None], colour: str, label: str, *, dashed: bool = False) -> None:
    shown = [float("nan") if value is None else value for value in values]
    alone = len([value for value in values if value is not None]) < 3
    axes.plot(
        _times(report),
        shown,
        color=colour,
        label=label,
        linewidth=1.6,
        linestyle="--" if dashed else "-",
        marker="o" if alone else None,
        markersize=4,
    )


def _times(report: Report) -> list[float]:
    """Returns the times as matplotlib counts them: days since 1970."""
    return [time.timestamp() / _DAY_S for time in report.times]


def _over_time(axes: Axes, report: Report) -> None:
    locator = AutoDateLocator(tz=UTC, maxticks=7)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]
    axes.set_xlim(report.since.timestamp() / _DAY_S, report.until.timestamp() / _DAY_S)
    if axes.get_yscale() == "linear":
        axes.set_ylim(bottom=0)
    axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.18), ncols=3)


def _counts_to_the_right(axes: Axes) -> None:
    axes.grid(visible=False)
    axes.spines["bottom"].set_visible(False)
    axes.tick_params(axis="x", bottom=False, labelbottom=False)
    axes.tick_params(axis="y", length=0)
    axes.margins(x=0.14)


def _short(text: str, limit: int = 28) -> str:
    text = escaped(text)
    # Matplotlib takes a pair of dollar signs for mathematics.
    return (text if len(text) <= limit else f"{text[: limit - 1]}…").replace("$", r"\$")
