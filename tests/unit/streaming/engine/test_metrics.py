from collections import Counter
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest

from streaming.engine.leases.keeper import LeaseReport
from streaming.engine.lifecycle.sessions_query import with_counts
from streaming.engine.metrics import EngineCollector
from streaming.engine.operator.reported_counts import CLIENTS_QUARANTINED
from streaming.engine.progress import BatchProgress, batch_progress
from tests.support.metrics import full_engine


def test_the_engine_adds_its_micro_batches_up() -> None:
    collector = EngineCollector(hangs=3, is_standby=lambda: True, lost_records=lambda: {"m": 5}, now_s=lambda: 1_234.5)
    registry = CollectorRegistry()
    registry.register(collector)
    nothing = generate_latest(registry).decode()
    for unknown in ("consumer_lag_records", "last_micro_batch", "inflight_engine_sessions ", "oldest_unacknowledged"):
        assert unknown not in nothing, "it is not known yet"
    for number in (1, 2):
        collector.observe(
            BatchProgress(
                batch_id=number,
                started="",
                duration_ms=250 * number,
                rows=10,
                state_commit_ms=30,
                parts_ms={"addBatch": 200 * number, "walCommit": 50},
                resends={"reconnect": number},
                clients_updated=3,
                clients_removed=1,
                state_bytes=1_000,
                backlog_bytes=2_000,
                outcomes={"delivered": 4, "rejected": 1},
                clients_quarantined=1,
                dropped_connected={"maxlen": 7},
                dropped_offline={"expired": 2},
            )
        )
    for live, expired, ended in ((2, 0, 0), (1, 1, 40)):
        collector.observe_leases(LeaseReport(live=live, expired=expired, connections_ended=ended))
    collector.observe_leases(LeaseReport(live=1, skew_s=0.5))
    collector.observe_leases(LeaseReport(live=1))
    for lag in ({"m": 7, "e": 1}, {"m": 10, "e": 0}):
        collector.observe_lag(lag, {"m": 4})
    for found in 3, 4:
        collector.observe_misplaced(found)
    text = generate_latest(registry).decode()
    for line in (
        "inflight_engine_leases 1.0",
        "inflight_engine_standby 1.0",
        'inflight_engine_lost_records_total{topic="m"} 5.0',
        "inflight_engine_clock_skew_seconds 0.5",
        "inflight_engine_leases_expired_total 1.0",
        "inflight_engine_connections_expired_total 40.0",
        "inflight_engine_micro_batches_total 2.0",
        "inflight_engine_records_taken_total 20.0",
        "inflight_engine_sessions_changed_total 6.0",
        "inflight_engine_sessions_ended_total 2.0",
        "inflight_engine_micro_batch_seconds_total 0.75",
        'inflight_engine_messages_ended_total{outcome="delivered"} 8.0',
        'inflight_engine_messages_ended_total{outcome="rejected"} 2.0',
        'inflight_engine_messages_ended_total{outcome="expired"} 0.0',
        "inflight_engine_clients_quarantined_total 2.0",
        'inflight_engine_dropped_connected_total{outcome="maxlen"} 14.0',
        'inflight_engine_dropped_connected_total{outcome="expired"} 0.0',
        'inflight_engine_dropped_offline_total{outcome="expired"} 4.0',
        'inflight_engine_consumer_lag_records{topic="e"} 0.0',
        'inflight_engine_held_back_records{topic="m"} 4.0',
        'inflight_engine_consumer_lag_records{topic="m"} 10.0',
        "inflight_engine_state_commit_seconds_total 0.06",
        'inflight_engine_micro_batch_part_seconds_total{part="addBatch"} 0.6',
        'inflight_engine_micro_batch_part_seconds_total{part="walCommit"} 0.1',
        'inflight_engine_resends_total{trigger="reconnect"} 3.0',
        'inflight_engine_resends_total{trigger="retry_interval"} 0.0',
        "inflight_engine_hangs_total 3.0",
        "inflight_engine_misplaced_records_total 7.0",
        "inflight_engine_last_micro_batch_timestamp_seconds 1234.5",
        "inflight_engine_last_micro_batch_seconds 0.5",
        "inflight_engine_state_bytes 1000.0",
        "inflight_engine_backlog_bytes 2000.0",
    ):
        assert f"\n{line}\n" in text


def test_session_metrics_are_those_of_the_last_collection() -> None:
    collector = full_engine()
    registry = CollectorRegistry()
    registry.register(collector)
    text = generate_latest(registry).decode()
    for line in (
        "inflight_engine_sessions 4.0",
        "inflight_engine_sessions_connected 3.0",
        "inflight_engine_sessions_quarantined 1.0",
        "inflight_engine_messages_inflight 2.0",
        "inflight_engine_messages_queued 5.0",
        "inflight_engine_messages_queued_bytes 50.0",
        "inflight_engine_oldest_unacknowledged_timestamp_seconds 1000.5",
        "inflight_engine_census_timestamp_seconds 2000.0",
    ):
        assert f"\n{line}\n" in text


def test_what_a_micro_batch_has_counted_is_in_its_progress() -> None:
    document: dict[str, Any] = {"batchId": 1, "timestamp": "", "durationMs": {}}
    batch = batch_progress(document)
    assert with_counts(batch, Counter()) == batch
    counted = with_counts(batch, Counter({"delivered": 3, "resent": 2, CLIENTS_QUARANTINED: 1}))
    assert (counted.outcomes, counted.resends, counted.clients_quarantined) == ({"delivered": 3}, {"retry_interval": 2}, 1)
