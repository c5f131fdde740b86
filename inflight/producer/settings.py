"""Settings of a `Producer`: plain values, with defaults that suit a backend near its Kafka."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from state.settings import BackoffSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerSettings:
    """Settings of a `Producer`; every field may be a keyword argument of it.

    max_attempts: attempts of one send, the first included. attempt_timeout_ms: how long one of them may take.
    deadline_ms: how long a send may take altogether; `send(timeout_s=…)` says it for one. Without timeout_s, waiting for a client
    that is connected and behind does not count.
    catch_up_timeout_ms: how long a send without timeout_s waits for such a client that gets nothing at all meanwhile.
    backoff: the waits while the client is throttled; raise `max_attempts` and `deadline_ms` to sit out longer throttling.
    max_pending_messages, max_pending_bytes: unconfirmed messages; beyond either, `send_async` blocks (within the deadline, and
    within catch_up_timeout_ms while sends wait for a client that is connected and behind).
    min_connect_timeout_ms: a connection to Kafka gets at least this long to be made before another is tried; attempts and
    deadlines of sends run meanwhile. gRPC's and RocketMQ's MIN_CONNECT_TIMEOUT.
    topic, publications_topic, throttle_topic, receipts_topic, uplink_topic: `PREFIX.messages`, `PREFIX.publications`,
    `PREFIX.throttle`, `PREFIX.receipts` and `PREFIX.uplink`.
    max_pending_deliveries: awaited receipts; beyond it the oldest delivery ends with DeliveryUnknown.
    compression: of Kafka's batches (gzip, lz4, snappy, zstd); None = none.
    max_payload_bytes, max_headers_bytes, max_routing_keys, max_client_id_bytes: the engine's limits
    (`engine.max_payload_bytes`); a message beyond them would only become a dead letter.
    throttle_timeout_ms: how long the first send waits to learn which clients are throttled; then it is sent without knowing.
    transactional_id: a name that only one live producer has, and the same one after a restart; default: a new one each time.
    transaction_timeout_ms: Kafka aborts a transaction that is open for longer.
    kafka_options: more settings for every client of Kafka, by librdkafka's names (security.protocol, ssl.…, sasl.…) or
    kafka-python's (security_protocol, ssl_…, sasl_…).
    """

    topic: str = "inflight.messages"
    publications_topic: str = "inflight.publications"
    throttle_topic: str = "inflight.throttle"
    receipts_topic: str = "inflight.receipts"
    uplink_topic: str = "inflight.uplink"
    max_attempts: int = 3
    attempt_timeout_ms: int = 10_000
    deadline_ms: int = 60_000
    catch_up_timeout_ms: int = 600_000
    backoff: BackoffSettings = field(default_factory=BackoffSettings)
    min_connect_timeout_ms: int = 20_000
    max_pending_messages: int = 10_000
    max_pending_bytes: int = 64 * 1_048_576
    max_pending_deliveries: int = 100_000
    compression: str | None = None
    max_payload_bytes: int = 262_144
    max_headers_bytes: int = 65_536
    max_routing_keys: int = 64
    max_client_id_bytes: int = 1_024
    throttle_timeout_ms: int = 5_000
    transactional_id: str | None = None
    transaction_timeout_ms: int = 30_000
    kafka_options: Mapping[str, Any] = field(default_factory=dict, repr=False)

    @property
    def max_record_bytes(self) -> int:
        """Returns the size of the largest message."""
        return self.max_payload_bytes + self.max_headers_bytes + self.max_client_id_bytes

    def __post_init__(self) -> None:
        at_least = {
            "max_attempts": 1,
            "attempt_timeout_ms": 100,
            "deadline_ms": 100,
            "catch_up_timeout_ms": 0,
            "min_connect_timeout_ms": 100,
            "max_pending_messages": 1,
            "max_pending_bytes": self.max_record_bytes,
            "max_pending_deliveries": 1,
            "throttle_timeout_ms": 0,
            "transaction_timeout_ms": 1_000,
        }
        for name, minimum in at_least.items():
            if (value := getattr(self, name)) < minimum:
                raise ValueError(f"{name} is {value}: at least {minimum} is needed")
