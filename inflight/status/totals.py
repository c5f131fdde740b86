"""Reads session totals from the engine's metrics, without Spark."""

import time
from collections.abc import Callable
from typing import Final

from inflight.status.measurements import ProcessStatus, SessionTotals

_PREFIX: Final = "inflight_engine_"


def totals_from_metrics(engine: ProcessStatus | None, *, now_s: Callable[[], float] = time.time) -> SessionTotals | None:
    """Returns the totals; None if the engine has not counted yet or serves no metrics."""
    values = {} if engine is None else engine.values
    if f"{_PREFIX}sessions" not in values:
        return None
    oldest_s = values.get(f"{_PREFIX}oldest_unacknowledged_timestamp_seconds")
    return SessionTotals(
        sessions=int(values[f"{_PREFIX}sessions"]),
        connected=int(values[f"{_PREFIX}sessions_connected"]),
        quarantined=int(values[f"{_PREFIX}sessions_quarantined"]),
        inflight=int(values[f"{_PREFIX}messages_inflight"]),
        queued=int(values[f"{_PREFIX}messages_queued"]),
        oldest_s=None if oldest_s is None else now_s() - oldest_s,
        age_s=now_s() - values[f"{_PREFIX}census_timestamp_seconds"],
        source="metrics",
    )
