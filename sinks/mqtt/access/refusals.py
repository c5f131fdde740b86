"""Refused logins in the log and in the metrics."""

from typing import Final

import structlog

from sinks.mqtt.access.grant import LoginRefused
from sinks.mqtt.log_throttle import LimitedLog
from sinks.mqtt.metrics import GatewayCounters

_MAX_SHOWN: Final = 100


class Refusals:
    """Every one is counted, and most have a line."""

    def __init__(self, counters: GatewayCounters) -> None:
        self._counters = counters
        self._log = LimitedLog(structlog.get_logger(__name__).warning, "login_refused", "more_logins_refused")

    def refused(self, refused: LoginRefused, *, address: str, client_id: str, username: str | None, now_ms: int) -> None:
        """now_ms: of a monotonic clock."""
        self._counters.logins_refused[refused.refusal] += 1
        self._log.line(
            now_ms,
            reason=str(refused.refusal),
            detail=refused.detail,
            address=address,
            client_id=client_id[:_MAX_SHOWN],
            username=None if username is None else username[:_MAX_SHOWN],
        )

    def catch_up(self, now_ms: int) -> None:
        """As `LimitedLog.catch_up`."""
        self._log.catch_up(now_ms)
