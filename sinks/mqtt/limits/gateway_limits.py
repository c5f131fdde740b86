"""The limits that hold for all devices of a gateway together."""

import asyncio

import structlog

from sinks.mqtt.limits.adaptive_rate import FairShare
from sinks.mqtt.limits.buffered import Buffered
from sinks.mqtt.limits.connect_turns import ConnectTurns
from sinks.mqtt.limits.connection_counts import ConnectionCounts
from sinks.mqtt.limits.hosts import Hosts
from sinks.mqtt.limits.refusals import LimitRefusals
from sinks.mqtt.limits.settings import DeviceLimits
from sinks.mqtt.limits.unconfirmed import Unconfirmed
from sinks.mqtt.log_throttle import LimitedLog
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings


class GatewayLimits:
    """Of one gateway, in its event loop."""

    def __init__(self, settings: GatewaySettings, counters: GatewayCounters) -> None:
        limits = settings.device_limits
        loop = asyncio.get_running_loop()
        self.refusals = LimitRefusals(counters, lambda: int(loop.time() * 1_000))
        self.late_connects = LimitedLog(structlog.get_logger(__name__).info, "connect_too_late", "more_connects_too_late")
        self.connections = ConnectionCounts(limits, Hosts(limits.unlimited_addresses), self.refusals)
        self.unconfirmed = Unconfirmed(limits, self.refusals.reached, loop.call_soon)
        self.buffered = Buffered(limits, loop.call_soon)
        self.fair_share = FairShare(limits)
        self.connects = ConnectTurns(limits, answer_timeout_ms=settings.accept_timeout_ms, fair=self.fair_share)

    def catch_up(self, now_ms: int) -> None:
        """As `LimitedLog.catch_up`."""
        self.refusals.catch_up()
        self.late_connects.catch_up(now_ms)

    def take(self, limits: DeviceLimits) -> None:
        """Other limits, from now on. Those of one connection are for connections to come."""
        self.connections.take(limits, Hosts(limits.unlimited_addresses))
        self.unconfirmed.take(limits)
        self.buffered.take(limits)
        self.fair_share.take(limits)
        self.connects.take(limits)
