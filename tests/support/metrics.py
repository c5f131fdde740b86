"""Every metric that a process of Inflight can have."""

from collections import Counter
from typing import TypeVar

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from inflight.producer.metrics import ProducerMetrics
from sinks.bridge.metrics import BridgeCollector, BridgeCounters
from sinks.mqtt.metrics import GatewayCollector, GatewayCounters
from sinks.routing.metrics import MatcherCollector, MatcherCounters
from state.model import Outcome
from streaming.engine.leases.keeper import LeaseReport
from streaming.engine.metrics import EngineCollector
from streaming.engine.progress import BatchProgress
from streaming.engine.watching.session_stats import SessionStats

Counters = TypeVar("Counters", GatewayCounters, BridgeCounters, MatcherCounters)


def every_metric() -> dict[str, str]:
    """Returns each metric's label, or an empty text, by name; a histogram's has no `_bucket`, `_sum` and `_count`."""
    registry = CollectorRegistry()
    producer = ProducerMetrics(registry)
    for counter in producer.retries, producer.failures, producer.transactions:
        counter.labels("x")
    processes = (
        GatewayCollector(counting(GatewayCounters())),
        BridgeCollector(counting(BridgeCounters())),
        MatcherCollector(counting(MatcherCounters())),
    )
    for collector in (full_engine(), *processes):
        registry.register(collector)
    found: dict[str, str] = {}
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        labels = {label for sample in family.samples for label in sample.labels}
        assert len(labels) <= 1
        found[name] = "".join(labels)
    return found


def full_engine() -> Collector:
    """Makes the metrics of an engine that has a value for each."""
    collector = EngineCollector(hangs=1, free_disk_bytes=lambda: 10**9, lost_records=lambda: {"inflight.messages": 2})
    collector.observe(
        BatchProgress(
            batch_id=1,
            started="2026-01-01T00:00:00.000Z",
            duration_ms=1,
            parts_ms={"addBatch": 1},
            outcomes={Outcome.DELIVERED.value: 1},
        )
    )
    collector.observe_leases(LeaseReport(live=1, skew_s=0.1))
    collector.observe_lag({"inflight.messages": 1}, {"inflight.messages": 0})
    collector.observe_session_stats(
        SessionStats(
            sessions=4,
            connected=3,
            quarantined=1,
            inflight=2,
            queued=5,
            queued_bytes=50,
            oldest_unacknowledged_s=1_000.5,
            taken_s=2_000.0,
        )
    )
    return collector


def counting(counters: Counters) -> Counters:
    """Sets each counter, with a value under each label, and returns the counters."""
    for name in counters.__dataclass_fields__:
        value = getattr(counters, name)
        if isinstance(value, Counter):
            value[1 if name in ("connections_refused", "protocol_errors", "publishes_refused", "acknowledgements") else "x"] += 1
    return counters
