"""Chooses the plots of the report."""

from collections.abc import Sequence
from typing import Final

from streaming.history.plots import Plot, Points, plot
from streaming.history.report.measures import Report
from streaming.history.times import shown_utc

_LONGEST_GAP: Final = 1.5
"""Buckets without a value between two points that a line still joins."""


def flow(report: Report) -> Plot:
    """Returns messages a second."""
    series = ("accepted", report.accepted), ("delivered", report.delivered), ("sent again", report.resends)
    return _drawn(
        report, "flow", "messages / s", *((name, [value / report.width_s for value in counts]) for name, counts in series)
    )


def latency(report: Report) -> Plot:
    """Returns seconds, without the buckets in which nothing was delivered."""
    series = ("p50", report.latency_p50_ms), ("p95", report.latency_p95_ms), ("p99", report.latency_p99_ms)
    seconds = ((name, [None if value is None else value / 1_000 for value in values]) for name, values in series)
    return _drawn(report, "latency", "seconds", *seconds)


def depth(report: Report) -> Plot:
    """Returns messages at the end of each bucket."""
    return _drawn(report, "depth", "messages", ("in the window", report.in_window), ("waiting in the queue", report.waiting))


def _drawn(report: Report, title: str, unit: str, *series: tuple[str, Sequence[float | None]]) -> Plot:
    since_s, until_s = report.since.timestamp(), report.until.timestamp()
    middles = [time.timestamp() + report.width_s / 2 for time in report.times]

    def points(values: Sequence[float | None]) -> Points:
        return [(at_s, value) for at_s, value in zip(middles, values, strict=True) if value is not None]

    return plot(
        title,
        unit,
        [(name, points(values)) for name, values in series],
        until_s=until_s,
        window_s=until_s - since_s,
        max_gap_s=_LONGEST_GAP * report.width_s,
        edges=(f"{shown_utc(round(since_s * 1_000))} UTC", f"{shown_utc(round(until_s * 1_000))} UTC"),
    )
