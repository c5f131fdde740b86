"""Draws the results as a picture.

python -m bench.contestants.picture bench/results/contestants.json contestants.svg
"""

import sys
from pathlib import Path
from statistics import mean
from typing import Any

import matplotlib as mpl
import msgspec
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Sheet
from matplotlib.ticker import FuncFormatter, NullFormatter

from bench.contestants.tables import Results, shown
from streaming.history.report.plots import BLUE, ORANGE, SKY, VERMILLION

_GREEN = "#009E73"
_COLOURS = (BLUE, ORANGE, VERMILLION, _GREEN, SKY)
_INK, _GRID = "#3c4650", "#e4e8ec"
_STYLE: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "svg.fonttype": "none",  # keeps text as text
    "svg.hashsalt": "inflight",
    "axes.axisbelow": True,
    "axes.edgecolor": "#b8c0c8",
    "axes.labelcolor": _INK,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": _GRID,
    "legend.frameon": False,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}
_WIDTH_IN, _HEIGHT_IN = 10.0, 7.2
_LABELS = {
    "burst_warm": "QoS 1,\nall devices",
    "burst_few_warm": "QoS 1,\na fifth",
    "burst_qos2": "QoS 2,\nall devices",
    "uplink": "QoS 1 of\ndevices",
}


def draw(results: Results, path: Path) -> None:
    """Draws the means of all turns. The end of the name selects .svg or .png."""
    with mpl.rc_context(_STYLE):
        sheet = Sheet(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
        throughput, cost, latency, connections = sheet.subplots(2, 2).flat
        _bars(throughput, results, "messages_per_s", "messages a second")
        _bars(cost, results, "", "CPU ms a message, of the contestant")
        _latency(latency, results)
        _connections(connections, results)
        handles, labels = throughput.get_legend_handles_labels()
        sheet.legend(handles, labels, loc="outside upper center", ncols=len(labels))
        metadata = {"Date": None, "Creator": None} if path.suffix == ".svg" else {"Software": None}
        sheet.savefig(path, dpi=150, metadata=metadata)


def _bars(axes: Axes, results: Results, key: str, label: str) -> None:
    """key: of the values; "" = the processor time of one message."""
    for position, (name, title) in enumerate(results.titles().items()):
        for number, part in enumerate(_LABELS):
            figures = [figure for figure in results.figures(name, part) if not figure.note]
            if figures:
                height = mean(figure.values[key] if key else figure.cpu_ms_per_message for figure in figures)
                _bar(axes, results, number, position, height)
        axes.plot([], [], "s", color=_COLOURS[position % len(_COLOURS)], label=title)  # for the legend, with or without a bar
    axes.set_xticks(range(len(_LABELS)), list(_LABELS.values()))
    _scale(axes, label)


def _latency(axes: Axes, results: Results) -> None:
    for position, name in enumerate(results.titles()):
        for key, line in (("p50_ms", "o-"), ("p99_ms", "o:")):
            found = [(rate, results.figures(name, f"rate_{rate}")) for rate in results.rates]
            known = [(rate, mean(figure.values[key] for figure in figures)) for rate, figures in found if figures]
            if known:
                axes.plot(*zip(*known, strict=True), line, color=_COLOURS[position % len(_COLOURS)], markersize=3)
    axes.set_xscale("log")
    axes.set_xticks(results.rates, [f"{rate:,}" for rate in results.rates])
    axes.minorticks_off()
    axes.set_xlabel("messages a second")
    _scale(axes, "latency, ms: p50, and dotted p99")


def _connections(axes: Axes, results: Results) -> None:
    parts = {"connect_new": "new sessions", "connect_kept": "kept sessions"}
    for position, name in enumerate(results.titles()):
        for number, part in enumerate(parts):
            if figures := results.figures(name, part):
                height = mean(figure.values["p50_ms"] for figure in figures)
                _bar(axes, results, number, position, height)
    axes.set_xticks(range(len(parts)), list(parts.values()))
    _scale(axes, f"CONNECT → CONNACK p50, ms, {results.devices:,} at once")


def _bar(axes: Axes, results: Results, number: int, position: int, height: float) -> None:
    """number: of the group of bars. position: of the contestant in it."""
    contestants = len(results.titles())
    width = 0.84 / contestants
    bars = axes.bar(number + (position - (contestants - 1) / 2) * width, height, width, color=_COLOURS[position % len(_COLOURS)])
    axes.bar_label(bars, labels=[shown(height)], padding=2, fontsize=6.5, rotation=90 if contestants > 2 else 0)


def _scale(axes: Axes, label: str) -> None:
    """Sets a logarithmic scale, because the contestants differ by orders of magnitude."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.margins(y=0.15)
    axes.set_ylabel(label)
    axes.grid(axis="y")


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("python -m bench.contestants.picture RESULTS.json PICTURE.svg")
    draw(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Results), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
