"""Counts sends for prometheus-client: one set of metrics per registry, shared by all producers of the process."""

from functools import cache
from typing import Final

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Gauge

from inflight.producer.model import Attempt, Cause

_NAMESPACE: Final = "inflight_producer"


class ProducerMetrics:
    """The counters, and one gauge."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.sends = Counter("sends", "Messages confirmed by Kafka", namespace=_NAMESPACE, registry=registry)
        self.retries = Counter(
            "retries", "Attempts that failed and were tried again", ("cause",), namespace=_NAMESPACE, registry=registry
        )
        self.throttled_seconds = Counter(
            "throttled_seconds", "Time that sends have waited because of throttling", namespace=_NAMESPACE, registry=registry
        )
        self.failures = Counter("failures", "Sends that failed for good", ("cause",), namespace=_NAMESPACE, registry=registry)
        self.transactions = Counter(
            "transactions", "Transactions by how they ended", ("outcome",), namespace=_NAMESPACE, registry=registry
        )
        self.pending = Gauge("pending", "Messages handed in and not yet confirmed", namespace=_NAMESPACE, registry=registry)

    def retried(self, attempt: Attempt) -> None:
        if attempt.cause is not None:
            self.retries.labels(attempt.cause.value).inc()
        self.throttled_seconds.inc(attempt.wait_ms / 1_000)

    def failed(self, cause: Cause | None) -> None:
        self.failures.labels("deadline" if cause is None else cause.value).inc()


@cache
def producer_metrics(registry: CollectorRegistry = REGISTRY) -> ProducerMetrics:
    """Returns the metrics of this registry: a second producer in a process counts with the first."""
    return ProducerMetrics(registry)
