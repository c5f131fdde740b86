"""A bridge's records on their way into Kafka, counted."""

from collections.abc import Callable
from functools import partial
from typing import Final

import structlog

from sinks.bridge.metrics import BridgeCounters
from sinks.bridge.settings import BridgeSettings
from sinks.kafka.append import Confirmation, EventLog, Headers

_log: Final = structlog.get_logger(__name__)


class CountedAppends:
    """done: as in EventLog. settled: called after each confirmation."""

    def __init__(
        self, settings: BridgeSettings, log: EventLog, counters: BridgeCounters, *, settled: Callable[[], None] = lambda: None
    ) -> None:
        self._events_topic = settings.events_topic
        self._uplink_topic = settings.uplink_topic
        self._log = log
        self._counters = counters
        self._settled = settled

    def append_event(self, key: bytes, value: bytes, done: Confirmation) -> None:
        """For the engine."""
        self._append(self._events_topic, key, value, None, done)

    def append_uplink(self, key: bytes, value: bytes, headers: Headers, done: Confirmation) -> None:
        """For backends."""
        self._append(self._uplink_topic, key, value, headers, done)

    def _append(self, topic: str, key: bytes, value: bytes, headers: Headers | None, done: Confirmation) -> None:
        self._counters.appends_unconfirmed += 1
        self._log.append(topic, key, value, headers, partial(self._appended, done))

    def _appended(self, done: Confirmation, error: Exception | None) -> None:
        self._counters.appends_unconfirmed -= 1
        if error is not None:
            self._counters.appends_failed += 1
            _log.warning("append_failed", error=str(error), action="check the brokers and the topics' min.insync.replicas")
        done(error)
        self._settled()
