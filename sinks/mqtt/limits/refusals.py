"""What was refused because of a limit, in the log and in the metrics."""

from collections.abc import Callable
from enum import StrEnum

import structlog

from sinks.mqtt.log_throttle import LimitedLog
from sinks.mqtt.metrics import GatewayCounters


class Limit(StrEnum):
    """Called as the key of the configuration that states it."""

    CONNECTIONS = "max_connections"
    CONNECTIONS_PER_ADDRESS = "max_connections_per_address"
    AWAITING_CONNECT = "max_awaiting_connect"
    WAITING_CONNECTS = "max_waiting_connects"
    CONNECT_PROPERTIES_BYTES = "max_connect_properties_bytes"
    PROPERTIES_BYTES = "max_properties_bytes"
    SUBSCRIBE_FILTERS = "max_subscribe_filters"
    SUBSCRIPTIONS = "max_subscriptions"
    WILL_BYTES = "max_will_bytes"
    TOPIC_LEVELS = "max_topic_levels"
    PACKET_RATE = "max_packet_rate"
    BYTE_RATE = "max_byte_rate"
    TOTAL_UNCONFIRMED_APPENDS = "max_total_unconfirmed_appends"
    TOTAL_UNCONFIRMED_BYTES = "max_total_unconfirmed_bytes"
    TOTAL_BUFFERED_BYTES = "max_total_buffered_bytes"


class LimitRefusals:
    """Every one is counted, and most have a line. now_ms: a monotonic clock."""

    def __init__(self, counters: GatewayCounters, now_ms: Callable[[], int]) -> None:
        self._counters = counters
        self._now_ms = now_ms
        self._log = LimitedLog(structlog.get_logger(__name__).warning, "limit_reached", "more_limits_reached")

    def reached(self, limit: Limit, address: str = "") -> None:
        """address: empty = of all devices together."""
        self._counters.limits_reached[limit] += 1
        self._log.line(self._now_ms(), limit=str(limit), address=address)

    def catch_up(self) -> None:
        """As `LimitedLog.catch_up`."""
        self._log.catch_up(self._now_ms())
