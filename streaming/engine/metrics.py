"""What the engine's query says about its micro-batches, as Prometheus reads it."""

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from state.model import Outcome
from streaming.engine.leases.keeper import LeaseReport
from streaming.engine.progress import BatchProgress

_MS: Final = 1_000


class EngineCollector(Collector):
    """Register once with a prometheus-client registry. Totals are of this process: the ledger and the receipts have the rest."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._last: BatchProgress | None = None
        self._batches = self._rows = self._updated = self._removed = self._duration_ms = self._quarantined = 0
        self._leases = self._leases_expired = self._connections_ended = 0
        self._outcomes = Counter[str]({outcome.value: 0 for outcome in Outcome})

    def observe(self, batch: BatchProgress) -> None:
        """Call once for each micro-batch; from any thread."""
        with self._lock:
            self._last = batch
            self._batches += 1
            self._rows += batch.rows
            self._updated += batch.clients_updated
            self._removed += batch.clients_removed
            self._duration_ms += batch.duration_ms
            self._quarantined += batch.clients_quarantined
            self._outcomes.update(batch.outcomes)

    def observe_leases(self, report: LeaseReport) -> None:
        """Call once for each report; from any thread."""
        with self._lock:
            self._leases = report.live
            self._leases_expired += report.expired
            self._connections_ended += report.connections_ended

    def collect(self) -> Iterator[Metric]:
        with self._lock:
            last, outcomes = self._last, dict(self._outcomes)
            totals = (
                ("micro_batches", "Micro-batches that have ended", self._batches),
                ("records_taken", "Records from Kafka", self._rows),
                ("sessions_changed", "Sessions written, one for each micro-batch that changed it", self._updated),
                ("sessions_ended", "Sessions removed", self._removed),
                ("clients_quarantined", "Clients whose session could not be used, when it happened", self._quarantined),
                ("micro_batch_seconds", "Time that micro-batches took", self._duration_ms / _MS),
                ("leases_expired", "Gateways and bridges that were gone without ending their lease", self._leases_expired),
                ("connections_expired", "Connections ended because their lease had expired", self._connections_ended),
            )
            leases = self._leases
        for name, text, total in totals:
            yield CounterMetricFamily(f"inflight_engine_{name}", text, value=total)
        ended = CounterMetricFamily("inflight_engine_messages_ended", "Receipts written, by outcome", labels=("outcome",))
        for outcome, count in sorted(outcomes.items()):
            ended.add_metric((outcome,), count)
        yield ended
        yield GaugeMetricFamily("inflight_engine_leases", "Gateways and bridges that may hold connections", value=leases)
        if last is None:
            return
        for name, text, value in (
            ("consumer_lag_records", "Records in Kafka that the last micro-batch did not take", last.consumer_lag),
            ("last_micro_batch_seconds", "Time that the last micro-batch took", last.duration_ms / _MS),
            ("state_bytes", "RocksDB's files of the sessions", last.state_bytes),
        ):
            yield GaugeMetricFamily(f"inflight_engine_{name}", text, value=value)
