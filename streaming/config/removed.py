"""Keys that older configurations may have, and what replaces each."""

from typing import Final

REMOVED: Final = {
    "gateway.credentials": "a configuration is no place for passwords: write them with `inflight users add NAME`, and set "
    "gateway.login.password_file to the file",
    "topics.partitions.ledger": "it has as many as topics.partitions.messages",
    "topics.partitions.routes": "it has as many as topics.partitions.messages",
    "topics.partitions.throttle": "it has 4",
    "topics.partitions.leases": "it has 1",
    "topics.retention.commands": "it is 1d: what no gateway has read by then is sent again by the session",
    "engine.max_headers_bytes": "it is 64KiB",
    "archive.max_offsets_per_trigger": "it is 100000",
    "archive.optimize_interval": "it is 1h",
    "gateway.accept_timeout_ms": "it is 30s",
    "gateway.topic_alias_maximum": "it is 16",
    "gateway.login.max_waiting": "it is 1000",
    "gateway.login.failure_wait_ms": "it is 1s; gateway.login.max_failures = 0 turns the waits off",
    "gateway.login.max_failure_wait_ms": "it is 1m; gateway.login.max_failures = 0 turns the waits off",
    "gateway.producer_linger_ms": 'it is 0; "linger.ms" in kafka.options holds for every client',
    "gateway.fetch_max_wait_ms": "it is 250ms",
    "fast_path.max_lag": "it is 1000",
    "fast_path.pressure_loop_lag_ms": "it is 400ms",
    "fast_path.pressure_unconfirmed": "it is 2000",
    "fast_path.pressure_offers": "it is 2000",
    "fast_path.pressure_hold_ms": "it is 200ms",
    "bridge.receive_maximum": "it is 1000",
    "bridge.producer_linger_ms": 'it is 0; "linger.ms" in kafka.options holds for every client',
    "bridge.fetch_max_wait_ms": "it is 250ms",
    "bridge.backoff.multiplier": "it is 1.6; backoff.initial and backoff.max bound the waits",
    "bridge.backoff.jitter": "it is 0.2; backoff.initial and backoff.max bound the waits",
    "session.backoff.multiplier": "it is 1.6; backoff.initial and backoff.max bound the waits",
    "session.backoff.jitter": "it is 0.2; backoff.initial and backoff.max bound the waits",
}
"""By the dotted key; of a profile that of [session]."""
