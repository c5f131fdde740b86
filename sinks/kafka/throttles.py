"""Follows the throttled clients: the table that the engine keeps in `inflight.throttle`, and a thread that follows it."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sinks.kafka.group_consumer import polled
from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, client_config, new_client
from sinks.library_log import LibraryLogger
from state.model import ClientId
from state.records.throttle import EVERYBODY, PARTITION, PARTITION_HOLDS_S, Throttle, decode_throttle, partition_key

_PAUSE_S: Final = 1.0
_MISSING_TOPIC_PAUSE_S: Final = 15.0
_ANSWER_S: Final = 1.0
_POLL_S: Final = 0.5
_MOST_RECORDS: Final = 500
_READ_TO_END_S: Final = 30.0
_NOT_WAITING: Final = (None, 0.0)

_log: Final = LibraryLogger(__name__)


class ThrottleTable:
    """client id → Throttle. One thread writes it, others read it: every change is one assignment of a dict entry."""

    def __init__(self) -> None:
        self._entries: dict[str, Throttle] = {}
        self._progressing: dict[str, Throttle] = {}
        """Those of clients that catch up, and that of all clients if it says so."""
        self._partitions: dict[str, tuple[Throttle, float]] = {}
        """Those of partitions that wait, with the times at which they hold no longer."""

    def of(self, client_id: ClientId) -> Throttle | None:
        """Says why this client may not be sent to now; None = it may.

        A throttle of all clients counts first, unless it says that they catch up and this client does not.
        """
        if not self._entries:
            return None
        everybody, own = self._entries.get(EVERYBODY), self._entries.get(client_id)
        if everybody is None or (everybody.is_progressing and own is not None and not own.is_progressing):
            return own
        return everybody

    @property
    def is_anybody_progressing(self) -> bool:
        """Returns True while a client is throttled that catches up, or all clients are, and catch up."""
        return bool(self._progressing)

    def progressing(self, client_id: ClientId) -> Throttle | None:
        """Returns the throttle of a client that catches up; None = there is no such throttle.

        Args:
            client_id: EVERYBODY = the throttle of all clients.
        """
        return self._progressing.get(client_id)

    @property
    def waits_any_partition(self) -> bool:
        """Returns False if `of_partition` is None for every partition."""
        return bool(self._partitions)

    def of_partition(self, topic: str, partition: int) -> Throttle | None:
        """Says why publications of a partition wait for a client that is connected and behind; None = they do not."""
        throttle, until_s = self._partitions.get(partition_key(topic, partition), _NOT_WAITING)
        return throttle if time.monotonic() < until_s else None

    def expire(self) -> bool:
        """Forgets partitions of which nobody has said for too long that they wait. Returns True if there were some."""
        now_s = time.monotonic()
        expired = [name for name, (_, until_s) in self._partitions.items() if now_s >= until_s]
        for name in expired:
            del self._partitions[name]
        return bool(expired)

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Reads the next record."""
        name = (key or b"").decode(errors="replace")
        if name.startswith(PARTITION):
            if value:
                self._partitions[name] = decode_throttle(value), time.monotonic() + PARTITION_HOLDS_S
            else:
                self._partitions.pop(name, None)
            return
        if not value:
            self._entries.pop(name, None)
            self._progressing.pop(name, None)
            return
        self._entries[name] = throttle = decode_throttle(value)
        if throttle.is_progressing:
            self._progressing[name] = throttle
        else:
            self._progressing.pop(name, None)

    def replace(self, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        """Reads the whole topic again, from its beginning. Of partitions that wait it hears again soon."""
        fresh = ThrottleTable()
        for key, value in records:
            fresh.apply(key, value)
        self._entries, self._progressing = fresh._entries, fresh._progressing


class ThrottleFollower:
    """Keeps a ThrottleTable equal to the topic, in a thread of its own. A topic that does not exist throttles nobody.

    librdkafka wants the name of a consumer group, and asks who coordinates it, although this reader joins none and commits
    nothing. The group has the name of the topic.

    Args:
        config: More settings of the consumer, by librdkafka's names.
        options: How the process logs in to Kafka.
        on_change: Called after each change of the table, in the follower's thread.
    """

    def __init__(
        self,
        table: ThrottleTable,
        *,
        bootstrap_servers: str,
        topic: str,
        config: Mapping[str, Any],
        options: Mapping[str, Any],
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._table = table
        self._on_change = on_change
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
        self._config = client_config(bootstrap_servers, options, ClientErrors(), more)
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
                # Sending continues with the throttles that are known, whatever the error is; a new consumer tries again.
                _log.warning("throttle_consumer_failed", error=str(error) or repr(error))
            self._stopping.wait(pause_s)

    def _follow(self) -> float:
        """Reads until something fails or we stop. Returns how long to pause before the next try, in seconds."""
        consumer = new_client(Consumer, self._config)
        try:
            ends = self._ends(consumer)
            if ends is None:
                self._replace(())
                return _MISSING_TOPIC_PAUSE_S
            consumer.assign([TopicPartition(self._topic, number, first) for number, (first, _) in ends.items()])
            unread = {number for number, (first, end) in ends.items() if first < end}
            found: list[tuple[bytes | None, bytes | None]] | None = []
            """Records that were read before the end of all partitions; None = the table is known."""
            deadline_s = time.monotonic() + _READ_TO_END_S
            while not self._stopping.is_set():
                if found is not None and not unread:
                    self._replace(found)
                    found = None
                if found is not None and time.monotonic() > deadline_s:
                    raise KafkaFailed(f"{self._topic} was not read to its end within {_READ_TO_END_S:g} s")
                has_changed = False
                for message in polled(consumer, _POLL_S, _MOST_RECORDS):
                    number, error = message.partition(), message.error()
                    if error is not None:
                        self._check(error)
                    elif found is None:
                        self._table.apply(message.key(), message.value())
                        has_changed = True
                    else:
                        found.append((message.key(), message.value()))
                    if (error is None and message.offset() + 1 >= ends[number][1]) or _is_end(error):
                        unread.discard(number)
                if self._table.expire() or has_changed:
                    self._on_change()
            return 0.0
        finally:
            consumer.close()

    def _replace(self, records: Iterable[tuple[bytes | None, bytes | None]]) -> None:
        self._table.replace(records)
        self._known.set()
        self._on_change()

    def _ends(self, consumer: Any) -> dict[int, tuple[int, int]] | None:
        """Returns the first offset and the end of each partition; None without such a topic. Waits until a broker answers."""
        while not self._stopping.is_set():
            try:
                topic = consumer.list_topics(timeout=_ANSWER_S).topics.get(self._topic)
                if topic is None or topic.error is not None:
                    break
                numbers = sorted(topic.partitions)
                return {each: consumer.get_watermark_offsets(TopicPartition(self._topic, each), _ANSWER_S) for each in numbers}
            except KafkaException:
                consumer.poll(0)  # calls `error_cb`
        return None

    def _check(self, error: KafkaError) -> None:
        """Raises KafkaFailed when another consumer is the cure. Nothing depends on the coordinator of a group without members."""
        if not _is_end(error) and error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:
            raise KafkaFailed(f"{self._topic} cannot be read: {error.str()}")


def _is_end(error: KafkaError | None) -> bool:
    return error is not None and error.code() == KafkaError._PARTITION_EOF
