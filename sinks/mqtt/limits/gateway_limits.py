"""The limits that hold for all devices of a gateway together."""

import asyncio
from typing import Final

import structlog

from sinks.log_throttle import LogThrottle, RefusalLog
from sinks.mqtt.limits.adaptive_rate import AdaptiveRateLimiter
from sinks.mqtt.limits.buffered import Buffered
from sinks.mqtt.limits.connect_queue import ConnectQueue
from sinks.mqtt.limits.connection_counts import ConnectionCounts
from sinks.mqtt.limits.hosts import Hosts
from sinks.mqtt.limits.takeovers import Takeovers
from sinks.mqtt.limits.unconfirmed import Unconfirmed
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import DeviceLimits, GatewaySettings

_log: Final = structlog.get_logger(__name__)


class GatewayLimits:
    """Holds each limit of one gateway, on its event loop.

    Attributes:
        discarding: Sockets that are shut, and read until their devices close them.
    """

    def __init__(self, settings: GatewaySettings, counters: GatewayCounters) -> None:
        limits = settings.device_limits
        loop = asyncio.get_running_loop()
        self.refusals = RefusalLog(counters.limits_reached, _log.warning, "limit_reached", "more_limits_reached", label="limit")
        self.refused_connects = LogThrottle(_log.info, "connect_refused", "more_connects_refused")
        self.late_connects = LogThrottle(_log.info, "connect_too_late", "more_connects_too_late")
        self.connections = ConnectionCounts(limits, Hosts(limits.unlimited_addresses), self.refusals)
        self.unconfirmed = Unconfirmed(limits, self.refusals.refused, loop.call_soon)
        self.buffered = Buffered(limits, loop.call_soon)
        self.rate_limiter = AdaptiveRateLimiter(limits)
        self.takeovers = Takeovers()
        self.contests = LogThrottle(_log.warning, "client_id_contested", "more_client_ids_contested")
        self.discarding: set[object] = set()
        self.connects = ConnectQueue(limits, loop, answer_timeout_ms=settings.accept_timeout_ms, limiter=self.rate_limiter)

    def flush_logs(self) -> None:
        """Calls `LogThrottle.flush` of each log."""
        self.refusals.flush()
        self.refused_connects.flush()
        self.late_connects.flush()
        self.contests.flush()

    def reconfigure(self, limits: DeviceLimits) -> None:
        """Applies other limits. Those of single connections hold for new connections only."""
        self.connections.reconfigure(limits, Hosts(limits.unlimited_addresses))
        self.unconfirmed.reconfigure(limits)
        self.buffered.reconfigure(limits)
        self.rate_limiter.reconfigure(limits)
        self.connects.reconfigure(limits)
