"""Exports what the engine's driver knows of its query and its sessions to Prometheus (docs/reference/metrics.md)."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from state.model import Outcome
from streaming.engine.leases.keeper import LeaseReport
from streaming.engine.operator.reported_drops import DROPPED
from streaming.engine.progress import RESENDS, BatchProgress
from streaming.engine.watching.session_stats import SessionStats

_MS: Final = 1_000
_TOTALS: Final = {
    "micro_batches": "Micro-batches that have ended",
    "records_taken": "Records from Kafka",
    "sessions_changed": "Sessions written, one for each micro-batch that changed it",
    "sessions_ended": "Sessions removed",
    "clients_quarantined": "Clients whose session could not be used, when it happened",
    "micro_batch_seconds": "Time that micro-batches took",
    "state_commit_seconds": "Time that tasks took to commit the state, all together",
    "leases_expired": "Gateways and bridges that were gone without ending their lease",
    "misplaced_records": "Records of messages, of the samples that were checked, in another partition than that of their key",
    "connections_expired": "Connections ended because their lease had expired",
    "hangs": "Engines of this data directory that their watchdog has ended",
}


class EngineCollector(Collector):
    """A collector for a prometheus-client registry. Totals count this process; the ledger and the receipts have the rest.

    Any thread may call the methods.

    Args:
        hangs: Earlier engines of the data directory that their watchdog has ended.
        ends_in_a_row: Returns how many engines before this one ended without completing a micro-batch (EndCounter).
        is_standby: Returns True while the engine waits for another one to be gone (EngineHealth).
        lost_records: Returns the number of lost records by topic.
        free_disk_bytes: Returns the free bytes of the checkpoint's disk; None = unknown.
        now_s: Returns Unix time in seconds.
    """

    def __init__(
        self,
        *,
        hangs: int = 0,
        ends_in_a_row: Callable[[], int] = lambda: 0,
        is_standby: Callable[[], bool] = lambda: False,
        lost_records: Callable[[], Mapping[str, int]] = dict,
        free_disk_bytes: Callable[[], int | None] = lambda: None,
        now_s: Callable[[], float] = time.time,
    ) -> None:
        self._ends_in_a_row = ends_in_a_row
        self._is_standby = is_standby
        self._lost_records = lost_records
        self._free_disk_bytes = free_disk_bytes
        self._now_s = now_s
        self._lock = threading.Lock()
        self._last: BatchProgress | None = None
        self._ended_s = 0.0
        self._lag: dict[str, int] = {}
        self._held: dict[str, int] = {}
        self._session_stats: SessionStats | None = None
        self._leases = 0
        self._skew_s: float | None = None
        self._totals = Counter[str](hangs=hangs)
        """By metric; times in milliseconds."""
        self._parts_ms = Counter[str]()
        self._outcomes = Counter[str]({outcome.value: 0 for outcome in Outcome})
        self._resends = Counter[str](dict.fromkeys(RESENDS.values(), 0))
        self._dropped_connected, self._dropped_offline = (Counter[str](dict.fromkeys(DROPPED, 0)) for _ in range(2))

    def observe(self, batch: BatchProgress) -> None:
        """Call it once for each micro-batch."""
        with self._lock:
            self._last = batch
            self._ended_s = self._now_s()
            self._totals.update(
                micro_batches=1,
                records_taken=batch.rows,
                sessions_changed=batch.clients_updated,
                sessions_ended=batch.clients_removed,
                clients_quarantined=batch.clients_quarantined,
                micro_batch_seconds=batch.duration_ms,
                state_commit_seconds=batch.state_commit_ms,
            )
            self._parts_ms.update(batch.parts_ms)
            self._outcomes.update(batch.outcomes)
            self._resends.update(batch.resends)
            self._dropped_connected.update(batch.dropped_connected)
            self._dropped_offline.update(batch.dropped_offline)

    def observe_leases(self, report: LeaseReport) -> None:
        """Call it once for each report."""
        with self._lock:
            self._leases = report.live
            self._skew_s = self._skew_s if report.skew_s is None else report.skew_s
            self._totals.update(leases_expired=report.expired, connections_expired=report.connections_ended)

    def observe_lag(self, lag: Mapping[str, int], held: Mapping[str, int]) -> None:
        """Takes the waiting records by topic, and those of them that open transactions hold back."""
        with self._lock:
            self._lag, self._held = dict(lag), dict(held)

    def observe_misplaced(self, count: int) -> None:
        """Takes records that were found in a wrong partition."""
        with self._lock:
            self._totals.update(misplaced_records=count)

    def observe_session_stats(self, stats: SessionStats) -> None:
        """Call it once for each collection."""
        with self._lock:
            self._session_stats = stats

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            metrics = [*self._counters(), *self._gauges()]
        yield from metrics

    def _counters(self) -> Iterator[Metric]:
        for name, text in _TOTALS.items():
            total = self._totals[name]
            yield CounterMetricFamily(f"inflight_engine_{name}", text, value=total / _MS if name.endswith("_seconds") else total)
        parts = {part: took_ms / _MS for part, took_ms in self._parts_ms.items()}
        yield _labelled(CounterMetricFamily, "messages_ended", "Receipts written, by outcome", "outcome", self._outcomes)
        yield _labelled(CounterMetricFamily, "resends", "Messages sent again, by what it was for", "trigger", self._resends)
        text = "Messages that sessions dropped while their client was connected, by outcome"
        yield _labelled(CounterMetricFamily, "dropped_connected", text, "outcome", self._dropped_connected)
        text = "Messages that sessions dropped while their client was offline, by outcome"
        yield _labelled(CounterMetricFamily, "dropped_offline", text, "outcome", self._dropped_offline)
        text = "Records gone unread, deleted by Kafka or with a topic that was created again, accepted by --accept-loss"
        yield _labelled(CounterMetricFamily, "lost_records", text, "topic", self._lost_records())
        yield _labelled(CounterMetricFamily, "micro_batch_part_seconds", "The same time, by Spark's parts of it", "part", parts)

    def _gauges(self) -> Iterator[Metric]:
        """Yields the gauges that are known."""
        yield _gauge("ends_in_a_row", "Engines that ended before they completed a micro-batch", self._ends_in_a_row())
        yield _gauge("standby", "1 while it waits for another engine to be gone, else 0", self._is_standby())
        yield _gauge("leases", "Gateways and bridges that may hold connections", self._leases)
        if self._skew_s is not None:
            yield _gauge("clock_skew_seconds", "Clock of this machine minus that of Kafka's brokers", self._skew_s)
        if (free := self._free_disk_bytes()) is not None:
            yield _gauge("free_disk_bytes", "What is left on the disk of the checkpoint", free)
        if self._lag:
            yield _labelled(GaugeMetricFamily, "consumer_lag_records", "Records in Kafka not yet taken", "topic", self._lag)
            text = "Of these, records behind the beginning of an open transaction"
            yield _labelled(GaugeMetricFamily, "held_back_records", text, "topic", self._held)
        if (last := self._last) is not None:
            yield _gauge("last_micro_batch_seconds", "Time that the last micro-batch took", last.duration_ms / _MS)
            yield _gauge("last_micro_batch_timestamp_seconds", "When it ended, since 1970", self._ended_s)
            yield _gauge("state_bytes", "RocksDB's files of the sessions", last.state_bytes)
            text = "Queues over 1 MiB of clients that are connected and acknowledge, all together"
            yield _gauge("backlog_bytes", text, last.backlog_bytes)
        if (stats := self._session_stats) is None:
            return
        yield _gauge("sessions", "Sessions in the checkpoint", stats.sessions)
        yield _gauge("sessions_connected", "Of these, connected", stats.connected)
        yield _gauge("sessions_quarantined", "Of these, quarantined", stats.quarantined)
        yield _gauge("messages_inflight", "Messages sent and not acknowledged completely", stats.inflight)
        yield _gauge("messages_queued", "Messages that wait in the queues of sessions", stats.queued)
        yield _gauge("messages_queued_bytes", "Their payloads", stats.queued_bytes)
        yield _gauge("census_timestamp_seconds", "When the sessions were counted, since 1970", stats.taken_s)
        if stats.oldest_unacknowledged_s is not None:
            text = "When the message was first sent that has waited longest for its acknowledgement, since 1970"
            yield _gauge("oldest_unacknowledged_timestamp_seconds", text, stats.oldest_unacknowledged_s)


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"inflight_engine_{name}", text, value=value)


def _labelled(
    kind: type[CounterMetricFamily] | type[GaugeMetricFamily], name: str, text: str, label: str, values: Mapping[str, float]
) -> Metric:
    family = kind(f"inflight_engine_{name}", text, labels=(label,))
    for key, value in sorted(values.items()):
        family.add_metric((key,), value)
    return family
