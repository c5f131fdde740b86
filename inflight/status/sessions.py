"""Reads session totals: from the running engine, in about a second, from its metrics, or with Spark from its checkpoint."""

import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, Final

import msgspec

from inflight.local.spark_jars import spark_jars
from inflight.status.measurements import ClientQueue, ProcessStatus, SessionTotals
from streaming.config.settings import Settings
from streaming.history.live_sessions import LiveSessions

NO_ENGINE: Final = "no engine answers on this data directory"
_PATIENCE_S: Final = 15.0
_PREFIX: Final = "inflight_engine_"


def totals_of_engine(settings: Settings, *, worst: int) -> SessionTotals | None:
    """Returns the totals; None if no engine answers on this data directory. Raises EngineBusy.

    Args:
        worst: Number of clients with long queues to list.
    """
    answer = LiveSessions(settings, spark_jars).ask("sessions", timeout_s=_PATIENCE_S, limit=worst)
    return None if answer is None else _totals(answer["stats"], answer["sessions"], source="engine")


def totals_of_checkpoint(settings: Settings, *, worst: int) -> SessionTotals:
    """Starts Spark, reads the totals and stops it. Raises InflightError if Spark cannot start here, or there is no checkpoint."""
    from streaming.history.stored_sessions import StoredSessions

    with StoredSessions(settings, spark_jars()) as stored:
        stats = stored.session_stats()
        rows = stored.longest_queues(limit=worst)
    return _totals(msgspec.to_builtins(stats), rows, source="checkpoint")


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


def _totals(stats: dict[str, Any], rows: Sequence[dict[str, Any]], *, source: str) -> SessionTotals:
    now_s, oldest_s = time.time(), stats["oldest_unacknowledged_s"]
    return SessionTotals(
        **{name: stats[name] for name in ("sessions", "connected", "quarantined", "inflight", "queued")},
        oldest_s=None if oldest_s is None else now_s - oldest_s,
        age_s=now_s - stats["taken_s"],
        source=source,
        worst=tuple(_client(document, now_s) for document in rows),
    )


def _client(document: dict[str, Any], now_s: float) -> ClientQueue:
    oldest = document["oldest_unacked"]
    counts = {name: document[name] for name in ("client_id", "connected", "inflight", "queued", "queued_bytes")}
    return ClientQueue(**counts, oldest_s=None if oldest is None else now_s - datetime.fromisoformat(oldest).timestamp())
