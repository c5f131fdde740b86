"""Which clients are throttled: the table that the engine keeps in `inflight.throttle`, and a thread that follows it."""

import threading
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, client_config, new_client
from state.model import ClientId
from state.records.throttle import EVERYBODY, Throttle, decode_throttle

_PAUSE_S: Final = 1.0
_MISSING_TOPIC_PAUSE_S: Final = 15.0
_ANSWER_S: Final = 1.0
_POLL_S: Final = 0.5
_MOST_RECORDS: Final = 500
_READ_TO_END_S: Final = 30.0

_log: Final = structlog.get_logger(__name__)


class ThrottleTable:
    """client id → Throttle. One thread writes it, others read it: every change is one assignment of a dict entry."""

    def __init__(self) -> None:
        self._entries: dict[str, Throttle] = {}

    def of(self, client_id: ClientId) -> Throttle | None:
        """Says why this client may not be sent to now; None = it may."""
        if not self._entries:
            return None
        return self._entries.get(EVERYBODY) or self._entries.get(client_id)

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Reads the next record."""
        name = (key or b"").decode(errors="replace")
        if not value:
            self._entries.pop(name, None)
            return
        self._entries[name] = decode_throttle(value)

    def replace(self, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Reads the whole topic again, from its beginning."""
        fresh = ThrottleTable()
        for key, value in records:
            fresh.apply(key, value)
        self._entries = fresh._entries


class ThrottleFollower:
    """Keeps a ThrottleTable equal to the topic, in a thread of its own. A topic that does not exist throttles nobody.

    librdkafka wants the name of a consumer group, and asks who coordinates it, although this reader joins none and commits
    nothing. The group has the name of the topic.
    """

    def __init__(
        self, table: ThrottleTable, *, bootstrap_servers: str, topic: str, config: Mapping[str, Any], options: Mapping[str, Any]
    ) -> None:
        self._table = table
        self._topic = topic
        more = {
            **config,
            "group.id": topic,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "isolation.level": "read_committed",
            "fetch.error.backoff.ms": 100,
        }
        self._errors = ClientErrors()
        self._config = client_config(bootstrap_servers, options, self._errors, more)
        self._known = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inflight-throttle", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def wait_known(self, timeout_s: float) -> bool:
        """Waits until the topic has been read to its end once. False: not within the time."""
        return self._known.wait(timeout_s)

    def close(self, timeout_s: float = 1.0) -> None:
        self._stopping.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stopping.is_set():
            pause_s = _PAUSE_S
            try:
                pause_s = self._follow()
            except Exception as error:  # noqa: BLE001
                # Whatever it is, sending goes on with what is known, and a new consumer tries again.
                _log.warning("throttle_consumer_failed", error=str(error) or repr(error))
            self._stopping.wait(pause_s)

    def _follow(self) -> float:
        """Reads until something fails or we stop. Returns how long to pause before the next try, in seconds."""
        consumer = new_client(Consumer, self._config)
        try:
            numbers = self._partitions(consumer)
            if not numbers:
                self._table.replace(())
                self._known.set()
                return _MISSING_TOPIC_PAUSE_S
            consumer.assign([TopicPartition(self._topic, number, OFFSET_BEGINNING) for number in numbers])
            found: list[tuple[bytes | None, bytes | None]] = []
            deadline_s = time.monotonic() + _READ_TO_END_S
            is_at_end = False
            while not self._stopping.is_set():
                for message in consumer.consume(_MOST_RECORDS, _POLL_S):
                    if (error := message.error()) is not None:
                        numbers -= self._ended_partition(error, message)
                    elif is_at_end:
                        self._table.apply(message.key(), message.value())
                    else:
                        found.append((message.key(), message.value()))
                if not numbers and not is_at_end:
                    is_at_end = True
                    self._table.replace(found)
                    self._known.set()
                elif not is_at_end and time.monotonic() > deadline_s:
                    raise KafkaFailed(f"{self._topic} was not read to its end within {_READ_TO_END_S:g} s")
            return 0.0
        finally:
            consumer.close()

    def _partitions(self, consumer: Any) -> set[int]:
        """Returns the partitions of the topic; none without such a topic. Waits until a broker answers, or we stop."""
        while not self._stopping.is_set():
            try:
                topic = consumer.list_topics(timeout=_ANSWER_S).topics.get(self._topic)
                return set() if topic is None or topic.error is not None else set(topic.partitions)
            except KafkaException as error:
                consumer.poll(0)
                _log.debug("throttle_consumer_waits", reason=str(self._errors.failed("no broker answers", error)))
        return set()

    def _ended_partition(self, error: KafkaError, message: Any) -> set[int]:
        """Returns the partition whose end was reached. Raises KafkaFailed when another consumer is the cure."""
        if error.code() == KafkaError._PARTITION_EOF:
            return {message.partition()}
        if error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
            return set()  # nothing depends on the coordinator of a group without members
        raise KafkaFailed(f"{self._topic} cannot be read: {error.str()}")
