"""The settings of the fast path: the keys of [fast_path]."""

from dataclasses import dataclass

from state.setting import MIB, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class FastPathSettings:
    """Messages to devices that are online do not wait for a micro-batch: the gateways send them, and the engine hears of it.

    A gateway refuses all offers while one of the three `pressure_…` limits is passed, and for `pressure_hold_ms` after that: it
    leaves the messages to the micro-batches. The limits are measured ones and no keys.
    """

    enabled: bool = Setting("false = every message goes through a micro-batch, and CONNACK too").default(True)
    messages_topic: str = "inflight.messages"
    routes_topic: str = "inflight.routes"
    wake_ups_topic: str = "inflight.wake-ups"
    group_id: str = Setting("consumer group by which gateways share the reading of PREFIX.messages", min_length=1).default(
        "inflight-routers"
    )
    max_payload_bytes: int = Setting("larger messages go through a micro-batch", (0, MIB)).default(65_536)
    max_lag: int = 1_000
    """A gateway that is this many messages of a partition behind in a burst skips to the end: the fast path is for latency,
    and micro-batches are for throughput."""
    max_lag_of_few: int = 50_000
    """The same while the messages are for few clients: those have the fast path for throughput, too."""
    max_held_bytes: int = 16 * MIB
    """Messages for one connection that wait for its grant, or for a slot; a part of this while all connections together hold more
    than half of limits.max_total_buffered_bytes. Beyond, they are left to the micro-batches."""
    pressure_loop_lag_ms: int = 400
    """The event loop is late by more than this, for a second: a micro-batch is not slower then."""
    pressure_unconfirmed: int = 2_000
    """Records of the gateway that Kafka has not confirmed."""
    pressure_offers: int = 2_000
    """Messages that the gateway has read and not handled."""
    pressure_hold_ms: int = 200
    """For this long after one of them was passed."""
