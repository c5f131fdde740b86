"""Shows the first page: what runs, what waits, how fast, what is wrong and what to do."""

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from inflight.console.charts import RESEND_CAUSES, charts, resends, waiting
from inflight.console.live import HOUR_S, STEP_S, WINDOW_S, Live, View
from inflight.console.page_queries import SESSIONS
from inflight.console.rendering import LIVE_MS, Pages
from inflight.console.worker import QueryWorker
from inflight.status.findings import Finding, Severity
from inflight.status.measurements import Measurements, SessionTotals, format_age
from inflight.status.running import running
from streaming.engine.progress import recent_progress
from streaming.history.plots import MAX_GAP_S

PROGRESS_BYTES: Final = 1 << 19
"""How much of the engine's progress file is read."""
_LONG_IN_FLIGHT_S: Final = 300.0
_OLD_S: Final = 60.0
_HOUR: Final = "hour"
_HOUR_GAP_S: Final = 3 * STEP_S
_CONNECTED: Final = ("inflight_gateway_connections", "inflight_bridge_devices")


class Overview:
    """The first page.

    Args:
        data_dir: The engine's data directory, for its progress file.
    """

    def __init__(self, pages: Pages, live: Live, worker: QueryWorker, data_dir: Path) -> None:
        self._pages = pages
        self._live = live
        self._worker = worker
        self._data_dir = data_dir

    def show(self, request: Request) -> Response:
        is_hour = request.query_params.get("last") == _HOUR
        values = self._values(self._live.view(), time.time(), is_hour=is_hour)
        return self._pages.page(request, "overview.html", values, refresh_ms=LIVE_MS)

    def _values(self, view: View, now_s: float, *, is_hour: bool) -> dict[str, Any]:
        window_s, max_gap_s = (HOUR_S, _HOUR_GAP_S) if is_hour else (WINDOW_S, MAX_GAP_S)
        samples = view.hour if is_hour else view.samples
        batches = view.hour_batches if is_hour else recent_progress(self._data_dir, limit_bytes=PROGRESS_BYTES)
        newest, seen = view.newest, None if view.newest is None else view.newest.seen
        sessions = self._sessions(seen)
        return {
            "newest": newest,
            "seen": seen,
            "sessions": sessions,
            "age_s": None if newest is None else now_s - newest.at_s,
            "found": sorted([*view.found, *_recent_findings(view, sessions)], key=lambda finding: finding.severity),
            "dead_letters": view.dead_letters,
            "is_old": sessions is not None and sessions.age_s > _OLD_S,
            "processes": [] if seen is None else running(seen),
            "connected": None if newest is None else _connected(newest.metrics, sessions),
            "waiting": None if seen is None else waiting(seen),
            "resends": resends(batches, until_s=now_s, window_s=window_s),
            "resend_causes": RESEND_CAUSES,
            "is_hour": is_hour,
            "step_s": round(STEP_S),
            "window_min": round(window_s / 60),
            "plots": charts(samples, batches, sessions, until_s=now_s, window_s=window_s, max_gap_s=max_gap_s),
        }

    def _sessions(self, seen: Measurements | None) -> SessionTotals | None:
        """Returns the newer of the engine's metrics and the last read of the checkpoint."""
        counted, read = None if seen is None else seen.sessions, self._worker.get(SESSIONS)
        if read is None or not isinstance(found := read.value, SessionTotals):
            return counted
        found = replace(found, age_s=found.age_s + read.since_s)
        return found if counted is None or found.age_s < counted.age_s else counted


def _recent_findings(view: View, sessions: SessionTotals | None) -> Iterator[Finding]:
    """Yields what a person in front of the page would ask about, besides what `inflight status` finds."""
    dead = view.dead_letters
    if dead is not None and dead.count:
        what = f"{dead.count:,} new dead letters in the last {format_age(dead.within_s)}"
        yield Finding(
            Severity.WARNING, what, "open Dead letters: each says why its message was not delivered, and can be sent again"
        )
    oldest_s = None if sessions is None else sessions.oldest_s
    is_said = any("acknowledgement" in finding.what for finding in view.found)
    if oldest_s is not None and oldest_s > _LONG_IN_FLIGHT_S and not is_said:
        what = f"a message has been in flight for {format_age(oldest_s)}: sent, and not acknowledged"
        yield Finding(Severity.NOTE, what, "open Sessions: its device is offline, or receives without answering")


def _connected(counted: Mapping[str, float], sessions: SessionTotals | None) -> float | None:
    """Returns the number of connected devices, by gateways and bridges if possible, else by the engine's last count."""
    counts = [counted[name] for name in _CONNECTED if name in counted]
    if counts:
        return sum(counts)
    return None if sessions is None else sessions.connected
