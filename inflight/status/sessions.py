"""Reads session totals from the engine's checkpoint, which takes Spark some seconds."""

import time
from datetime import datetime
from types import TracebackType
from typing import Any, Self

from inflight.local.spark_jars import spark_jars
from inflight.status.measurements import ClientQueue, SessionTotals
from state.errors import InflightError
from streaming.config.settings import Settings
from streaming.history.session import HistorySession


class SessionsReader:
    """Reads sessions by a Spark that runs until the end of the `with` block."""

    def __init__(self, settings: Settings, *, worst: int) -> None:
        """Starts Spark.

        Args:
            worst: Number of clients with long queues to list.

        Raises:
            InflightError: Spark cannot start here.
        """
        self._worst = worst
        self._history = HistorySession(settings, spark_jars(), brief=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._history.__exit__(kind, error, trace)

    def read(self) -> SessionTotals | str:
        """Returns the totals, or a text that says why there are none."""
        history = self._history
        try:
            stats = history.session_stats()
            rows = history.sessions().orderBy("queued", "inflight", "client_id", ascending=[False, False, True])
            worst = history.collected(rows.limit(self._worst))
        except InflightError as error:
            return str(error)
        now_s, oldest_s = time.time(), stats.oldest_unacknowledged_s
        return SessionTotals(
            sessions=stats.sessions,
            connected=stats.connected,
            quarantined=stats.quarantined,
            inflight=stats.inflight,
            queued=stats.queued,
            oldest_s=None if oldest_s is None else now_s - oldest_s,
            age_s=now_s - stats.taken_s,
            source="checkpoint",
            worst=tuple(_client(document, now_s) for document in worst),
        )


def _client(document: dict[str, Any], now_s: float) -> ClientQueue:
    oldest = document["oldest_unacked"]
    counts = {name: document[name] for name in ("client_id", "connected", "inflight", "queued", "queued_bytes")}
    return ClientQueue(**counts, oldest_s=None if oldest is None else now_s - datetime.fromisoformat(oldest).timestamp())
