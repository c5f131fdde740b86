"""Makes the page of `inflight report` from the tables of the archive: one HTML file with everything in it.

measures.py asks the tables, plots.py draws, page.py makes the page.
"""

import time
from pathlib import Path

from streaming.history.report.measures import measure
from streaming.history.report.page import render
from streaming.history.session import HistorySession


def write_report(history: HistorySession, output: Path, *, hours: float) -> Path:
    """Writes the page about the last `hours`; returns its absolute path. Raises NoArchive."""
    until_ms = time.time_ns() // 1_000_000
    report = measure(history, since_ms=until_ms - round(hours * 3_600_000), until_ms=until_ms)
    path = output.absolute()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(render(report), encoding="utf-8")
    return path


__all__ = ["write_report"]
