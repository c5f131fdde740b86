"""Defines the settings of the two ways of a message through gateways: the keys of [routing] and [fast_path]."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

from state.setting import GIB, HOUR, MIB, MINUTE, Setting

SharedStrategy: TypeAlias = Literal["sticky", "round_robin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoutingSettings:
    """Publications go to every client with a matching subscription. A matcher, in each gateway process or alone
    (`inflight matcher`), finds the clients.
    """

    enabled: bool = Setting(
        "publications of devices and backends reach the clients that subscribe to their topic; false = no matcher runs"
    ).default(True)
    early_connack: bool = Setting(
        "CONNACK without Clean Start need not wait for the engine, because a gateway knows whether there is a session; "
        "false = it waits"
    ).default(True)
    shared_strategy: SharedStrategy = Setting(
        "which member of a shared subscription gets a message: sticky (the same one for each publisher while the members are the "
        "same), round_robin (one after the other)"
    ).default("sticky")
    receipts: bool = Setting("true = a receipt for each delivery of a publication; each is a record of PREFIX.receipts").default(
        False
    )
    max_fan_out: int = Setting(
        "recipients a second for each publisher; QoS 0 copies beyond that are dropped and counted; 0 = no limit", (0, 100_000_000)
    ).default(100_000)
    max_wait_ms: int = Setting(
        "how long the publications of a partition wait for a recipient that is connected and behind; 0 = they do not, and its "
        "queue drops what is too much",
        (0, MINUTE),
    ).default(10_000)
    max_retained_messages: int = Setting(
        "retained messages of all topics; a device that asks for more gets 0x97", (0, 10_000_000)
    ).default(100_000)
    max_retained_bytes: int = Setting(
        "topics, payloads and headers of all retained messages, which each gateway process holds in memory", (0, 64 * GIB)
    ).default(256 * MIB)
    sys_interval_ms: int = Setting(
        "how often gateways publish the topics of $SYS, while somebody subscribes to one of them; 0 = never", (0, HOUR)
    ).default(MINUTE)
    group_id: str = Setting(
        "consumer group by which matchers share the reading of PREFIX.uplink, PREFIX.publications and PREFIX.subscriptions",
        min_length=1,
    ).default("inflight-matchers")
    uplink_topic: str = "inflight.uplink"
    publications_topic: str = "inflight.publications"
    subscriptions_topic: str = "inflight.subscriptions"
    retained_topic: str = "inflight.retained"
    messages_topic: str = "inflight.messages"
    throttle_topic: str = "inflight.throttle"


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
