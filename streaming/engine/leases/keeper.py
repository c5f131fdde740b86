"""Ends the connections of gateways and bridges that are gone (docs/decisions/0009-leases.md).

It runs on a thread of the engine's driver, beside the query. Its findings become records of `inflight.events`. So a session
learns of them through the log, and a micro-batch that is executed again does the same.

An inspection, about once a second:
1. Read `inflight.leases` to its end. Leases without a renewal for one and a half durations of watched time have expired.
2. If one has expired, and once after the start, search the newest snapshot of all sessions for connections without a live lease.
   Read the topic to its end again, because a lease is in the log before its first connection is. Append `ConnectionLost` for
   connections that have none even then.
3. Forget an expired lease when a snapshot without a connection of it contains all that was in the log when it expired. Until then
   repeat step 2: a connection may still have been on its way.
"""

import datetime
import time
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

import msgspec
import structlog
from kafka.errors import KafkaError
from pyspark.sql import SparkSession

from sinks.host.clock_skew import ClockSkew
from state.errors import NewerRecord
from state.records.leases import Lease
from streaming.background import BackgroundLoop
from streaming.config.settings import Settings
from streaming.engine.leases.connections import OpenConnection, connections_without_lease
from streaming.engine.leases.table import PATIENCE, LeaseTable
from streaming.engine.leases.topic import LeaseTopic
from streaming.engine.progress import BatchProgress
from streaming.spark_internals.jvm import SPARK_ERRORS

_log: Final = structlog.get_logger(__name__)
_INTERVAL_S: Final = 1.0
_LONGEST_STEP_MS: Final = 3_000
"""Counts as watched time between two inspections at most: in a longer interval this process stood still."""
_SEARCH_AGAIN_S: Final = 3.0
_SEARCH_SHARE: Final = 10
"""The next search comes after at least so many times the duration of the last."""
_JOB_GROUP: Final = "inflight-leases"

Search = Callable[[frozenset[str]], list[OpenConnection]]
"""Returns the connections of the newest committed micro-batch whose lease is not in the set."""


class LeaseReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result of an inspection.

    Attributes:
        live: The number of leases that are live now.
        expired: The number of leases that expired in this inspection.
        connections_ended: The number of connections that this inspection ended.
        skew_s: This machine's clock minus the brokers' in seconds, late by up to some seconds; None = this inspection cannot say.
    """

    live: int
    expired: int = 0
    connections_ended: int = 0
    skew_s: float | None = None


class LeaseKeeper(BackgroundLoop):
    """Inspects the leases on a thread from `start` to the end of a `with`.

    Args:
        search: Returns the connections whose lease does not live.
        first_search_ms: Watched time before the first search.
        cancel: Interrupts a search that runs on another thread.
    """

    _join_s = 10.0

    def __init__(
        self,
        topic: LeaseTopic,
        search: Search,
        *,
        first_search_ms: float,
        on_report: Callable[[LeaseReport], None] = lambda report: None,
        cancel: Callable[[], None] = lambda: None,
        monotonic_s: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime.datetime] = lambda: datetime.datetime.now(datetime.UTC),
    ) -> None:
        super().__init__("inflight-leases", cancel)
        self._topic = topic
        self._search = search
        self._on_report = on_report
        self._monotonic_s = monotonic_s
        self._now = now
        self._table = LeaseTable()
        self.all_wake = False
        """Says that every gateway and bridge sends wake-ups, as far as is known (state/records/wake_ups.py)."""
        self._skew = ClockSkew()
        self._expired_at: dict[str, datetime.datetime] = {}
        self._drained_at: datetime.datetime | None = None
        """The start of the newest micro-batch that left no record unread."""
        self._inspected_at_s = monotonic_s()
        self._watched_ms = 0.0
        self._first_search_ms: float | None = first_search_ms
        self._search_after_s = 0.0

    @classmethod
    def of(cls, settings: Settings, spark: SparkSession, checkpoint: str, *, on_report: Callable[[LeaseReport], None]) -> Self:
        """Makes one for an engine.

        Args:
            checkpoint: The checkpoint of its sessions.
        """

        def search(live: frozenset[str]) -> list[OpenConnection]:
            spark.sparkContext.setJobGroup(_JOB_GROUP, "connections without a lease", interruptOnCancel=True)
            return connections_without_lease(spark, checkpoint, live)

        longest_ms = max(settings.gateway.lease_ms, settings.bridge.lease_ms)
        return cls(
            LeaseTopic(settings),
            search,
            first_search_ms=PATIENCE * longest_ms,
            on_report=on_report,
            cancel=lambda: spark.sparkContext.cancelJobGroup(_JOB_GROUP),
        )

    def observe(self, batch: BatchProgress) -> None:
        """Notes the start of each micro-batch that left no backlog. Call it after every micro-batch, from any thread."""
        if not batch.consumer_lag:
            self._drained_at = datetime.datetime.fromisoformat(batch.started)

    def inspect(self) -> None:
        """Does one inspection. Raises KafkaError, SPARK_ERRORS or NewerRecord for what may work the next time."""
        read = self._topic.read()
        if (skew_s := self._topic.skew_s) is not None:
            self._skew.measured(skew_s)
        now_s = self._monotonic_s()
        passed_ms, self._inspected_at_s = min((now_s - self._inspected_at_s) * 1_000, _LONGEST_STEP_MS), now_s
        self._watched_ms += passed_ms
        self._table.watched(passed_ms)
        self._apply(read)
        expired = self._table.expire()
        if expired:
            _log.warning("leases_expired", leases=expired, holders=self._table.holders(expired))
            self._expired_at |= dict.fromkeys(expired, self._now())
            self._search_after_s = now_s
        if over := self._table.pop_ended():
            self._topic.forget(over)
        ended = self._end_connections() if self._is_search_due() else 0
        self.all_wake = self._table.all_wake
        live = len(self._table.live)
        self._on_report(LeaseReport(live=live, expired=len(expired), connections_ended=ended, skew_s=skew_s))

    def _apply(self, read: list[tuple[str, Lease | None]]) -> None:
        for lease_id, lease in read:
            self._table.read(lease_id, lease)

    def _is_search_due(self) -> bool:
        is_first = self._first_search_ms is not None and self._watched_ms >= self._first_search_ms
        return (bool(self._table.expired) or is_first) and self._monotonic_s() >= self._search_after_s

    def _end_connections(self) -> int:
        """Does steps 2 and 3. Returns the number of connections that were ended."""
        began_s = self._monotonic_s()
        drained_at = self._drained_at
        try:
            found = self._search(self._table.live)
            self._apply(self._topic.read())
            lost = [connection for connection in found if connection.lease_id not in self._table.live]
            if lost:
                self._topic.tell_lost(lost, "its gateway or bridge is gone")
                holders = self._table.holders(sorted({connection.lease_id for connection in lost}))
                _log.warning("connections_ended", count=len(lost), holders=holders)
        finally:
            took_s = self._monotonic_s() - began_s
            self._search_after_s = self._monotonic_s() + max(_SEARCH_AGAIN_S, _SEARCH_SHARE * took_s)
        self._first_search_ms = None
        held = {connection.lease_id for connection in lost}
        over = [
            lease_id
            for lease_id in self._table.expired
            if lease_id not in held and drained_at is not None and self._expired_at[lease_id] < drained_at
        ]
        if over:
            self._topic.forget(over)
            for lease_id in over:
                self._table.read(lease_id, None)
                del self._expired_at[lease_id]
        return len(lost)

    def _run(self) -> None:
        while not self._stopping.wait(_INTERVAL_S):
            try:
                self.inspect()
            except (KafkaError, NewerRecord, *SPARK_ERRORS) as error:
                self.all_wake = False
                if not self._stopping.is_set():
                    _log.warning("leases_not_watched", error=repr(error)[:500], action="tried again in a second")
            except Exception:  # noqa: BLE001 - the sessions continue without it
                _log.exception("leases_not_watched", action="please report this")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        super().__exit__(kind, error, trace)
        self._topic.close()
