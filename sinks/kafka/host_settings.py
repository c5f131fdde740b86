"""Settings that gateways and bridges share: how one of them reads commands from Kafka, holds its lease and stops."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from state.setting import MINUTE, SECOND, Setting

PRODUCER_LINGER_MS: Final = 0
"""A wait for records to share a request adds latency, and saves no processor time (docs/decisions/0028-librdkafka.md)."""
FETCH_MAX_WAIT_MS: Final = 250
"""Kafka answers a read of commands after this when there are none. A longer wait costs less while nothing happens; it delays only
the first command of a partition that has just been assigned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostSettings:
    """A process that hosts connections: a gateway or a bridge."""

    bootstrap_servers: str = "127.0.0.1:9092"
    events_topic: str = "inflight.events"
    commands_topic: str = "inflight.commands"
    uplink_topic: str = "inflight.uplink"
    leases_topic: str = "inflight.leases"
    group_id: str = ""
    max_packet_size_bytes: int = 524_288
    kafka_options: Mapping[str, Any] = field(default_factory=dict, repr=False)
    """By librdkafka's names (security.protocol, ssl.…, sasl.…), and others of Kafka's, of which it takes those that it has."""
    group_instance_id: str | None = Setting(
        "a name that this process keeps over restarts and no other has: it then gets its partitions back at once, not after "
        "group_session_timeout_ms; of gateway.processes each adds its number; empty = none",
        none="",
    ).default(None)
    group_session_timeout_ms: int = Setting(
        "a process that Kafka has not heard of for this long loses its partitions; a bridge, too, without its broker",
        (6 * SECOND, 5 * MINUTE),
    ).default(10_000)
    lease_ms: int = Setting(
        "a process to which Kafka has confirmed nothing for this long closes its connections (a bridge: takes its devices "
        "offline); the engine ends those of a process that is gone after one and a half times this, and then their wills are due",
        (2 * SECOND, 10 * MINUTE),
    ).default(30_000)
    append_timeout_ms: int = Setting(
        "Kafka confirms a record within this, or the connection that wrote it is closed", (SECOND, 5 * MINUTE)
    ).default(30_000)
    stop_timeout_ms: int = Setting(
        "how long a process that stops waits for what Kafka has not confirmed, and once more for leaving its consumer groups",
        (0, 5 * MINUTE),
    ).default(5_000)
