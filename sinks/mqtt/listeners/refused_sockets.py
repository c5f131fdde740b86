"""Sockets that did not get as far as MQTT, in the log and in the metrics."""

import asyncio
from enum import StrEnum
from typing import Final

import structlog

from sinks.mqtt.log_throttle import LimitedLog
from sinks.mqtt.metrics import GatewayCounters

_MAX_SHOWN: Final = 200


class Step(StrEnum):
    """What comes before MQTT, in this order."""

    PROXY_HEADER = "PROXY header"
    TLS = "TLS"
    WEBSOCKET = "WebSocket"


class RefusedSockets:
    """Of all listeners. Every one is counted, and most have a line."""

    def __init__(self, counters: GatewayCounters) -> None:
        self._counters = counters
        self._log = LimitedLog(structlog.get_logger(__name__).info, "socket_refused", "more_sockets_refused")
        self._loop = asyncio.get_running_loop()

    def refused(self, step: Step, address: str, reason: str) -> None:
        self._counters.sockets_refused[step] += 1
        self._log.line(self._now_ms(), step=str(step), address=address, reason=reason[:_MAX_SHOWN])

    def catch_up(self) -> None:
        """As `LimitedLog.catch_up`."""
        self._log.catch_up(self._now_ms())

    def _now_ms(self) -> int:
        return int(self._loop.time() * 1_000)
