"""Makes the page of `inflight report` from the relations of the store: one HTML file with everything in it.

measures.py asks the tables, plots.py draws, page.py makes the page.
"""

import time
from pathlib import Path

from streaming.history.report.measures import LOOKBACK_HOURS, measure
from streaming.history.report.page import render
from streaming.history.store import Store


def write_report(store: Store, output: Path, *, hours: float) -> Path:
    """Writes the page about the last `hours`; returns its absolute path. Raises what the store raises."""
    until_ms = time.time_ns() // 1_000_000
    report = measure(store, since_ms=until_ms - round(hours * 3_600_000), until_ms=until_ms)
    path = output.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(report), encoding="utf-8")
    return path


__all__ = ["LOOKBACK_HOURS", "write_report"]
