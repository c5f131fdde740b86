"""How many records wait for the query, asked of Kafka itself: also while the query hangs, which then tells nothing."""

import threading
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Final, Self

import structlog
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from streaming.config.settings import Settings
from streaming.engine.pacing.pace import Offsets

_log: Final = structlog.get_logger(__name__)
_LOOK_S: Final = 5.0
_ANSWER_S: Final = 10.0
"""An answer that is older says nothing about Kafka now."""


class ConsumerLag:
    """Looks every five seconds, in a `with`, on a thread of its own.

    partitions: of each topic, how many the query reads. end: where it begins, as far as that is known. on_lag: called after each
    look with the records that wait, by topic; what an open transaction holds back does not. Errors are looks that failed.
    """

    def __init__(
        self,
        settings: Settings,
        partitions: Mapping[str, int],
        end: Offsets,
        *,
        on_lag: Callable[[Mapping[str, int]], None] = lambda lag: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options: dict[str, Any] = {
            **settings.kafka.client_options(),
            "client_id": "inflight-engine-lag",
            "group_id": None,
            "isolation_level": "read_committed",
            "allow_auto_create_topics": False,
            "metrics_enabled": False,
        }
        self._partitions = [TopicPartition(topic, number) for topic, count in partitions.items() for number in range(count)]
        self._end = end
        self._on_lag = on_lag
        self._clock_s = clock_s
        self._answered_s = clock_s()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inflight-consumer-lag", daemon=True)

    def observe(self, end: Offsets) -> None:
        """end: of each micro-batch; from any thread."""
        self._end = end

    def kafka_answers(self) -> bool:
        """From any thread."""
        return self._clock_s() - self._answered_s < _ANSWER_S

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                consumer = KafkaConsumer(**self._options)
                try:
                    while not self._stopping.wait(_LOOK_S):
                        self._look(consumer)
                finally:
                    consumer.close(autocommit=False, timeout_ms=1_000)
            except KafkaError as error:
                _log.debug("consumer_lag_unknown", error=repr(error))
                self._stopping.wait(_LOOK_S)
            except Exception as error:  # noqa: BLE001 - the sessions go on without it
                _log.warning("consumer_lag_unknown", error=repr(error), action="it is asked for again; please report this")
                self._stopping.wait(_LOOK_S)

    def _look(self, consumer: Any) -> None:
        newest = consumer.end_offsets(self._partitions)
        self._answered_s = self._clock_s()
        self._on_lag(waiting(newest, self._end))


def waiting(newest: Mapping[TopicPartition, int], end: Offsets) -> dict[str, int]:
    """Records, by topic. newest: the offsets behind the last records; a partition whose end nobody knows counts as read."""
    found: dict[str, int] = {}
    for (topic, number), offset in newest.items():
        read = end.get(topic, {}).get(number, offset)
        found[topic] = found.get(topic, 0) + max(0, offset - read)
    return found
