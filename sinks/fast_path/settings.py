"""What the fast path may be told: the keys of [fast_path]."""

from dataclasses import dataclass

from state.setting import MIB, MINUTE, Setting


@dataclass(frozen=True, slots=True, kw_only=True)
class FastPathSettings:
    """Messages to devices that are online do not wait for a micro-batch: the gateways send them, and the engine hears of it.

    A gateway refuses all offers while one of the three `pressure_…` limits is passed, and for `pressure_hold_ms` after that.
    """

    enabled: bool = Setting("false = every message goes through a micro-batch, and CONNACK too").default(True)
    messages_topic: str = "inflight.messages"
    routes_topic: str = "inflight.routes"
    group_id: str = Setting("consumer group by which gateways share the reading of PREFIX.messages", min_length=1).default(
        "inflight-routers"
    )
    max_payload_bytes: int = Setting("larger messages go through a micro-batch", within=(0, MIB)).default(65_536)
    max_lag: int = Setting(
        "a gateway that is this many messages of a partition behind skips to the end, and leaves them to the micro-batches",
        within=(1, 1_000_000),
    ).default(1_000)
    pressure_loop_lag_ms: int = Setting(
        "a gateway leaves all messages to the micro-batches while its event loop is late by more than this, for a second",
        within=(1, MINUTE),
    ).default(400)
    pressure_unconfirmed: int = Setting(
        "… while Kafka has not confirmed more of its records than this", within=(1, 1_000_000)
    ).default(2_000)
    pressure_offers: int = Setting(
        "… while it has read more messages than this and not handled them", within=(1, 1_000_000)
    ).default(2_000)
    pressure_hold_ms: int = Setting("… and for this long after that", within=(0, MINUTE)).default(200)
