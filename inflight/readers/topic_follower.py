"""Follows a topic from its end, without a consumer group, in a thread of its own: what answers to this process are read with."""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from sinks.kafka.group_consumer import polled
from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, client_config, new_client, partition_bounds, reason_of
from sinks.kafka.topic_ids import TopicIdWatch, TopicRecreated
from sinks.library_log import LibraryLogger

_ANSWER_S: Final = 10.0
_POLL_S: Final = 0.5
_PAUSE_S: Final = 0.5
_MOST_RECORDS: Final = 500
_NEW_PARTITIONS_S: Final = 30.0

_log: Final = LibraryLogger(__name__)


class TopicFollower:
    """Hands every record that is written after `start` to `handle`, on a thread of its own.

    A lost connection, or a consumer that fails, skips nothing. Partitions that are added later are read from their beginning, and
    so is a topic that was deleted and created again; some of its records may be handed over twice.

    Args:
        handle: Gets a message of librdkafka. What it raises is logged, and the next record follows.
    """

    def __init__(
        self, topic: str, bootstrap_servers: str, options: Mapping[str, Any], *, name: str, handle: Callable[[Any], None]
    ) -> None:
        self._topic = topic
        self._handle = handle
        self._errors = ClientErrors()
        self._config = reading_config(topic, bootstrap_servers, options, self._errors)
        self._ids = partial(TopicIdWatch, [topic], bootstrap_servers, options)
        self._next: dict[int, int] = {}
        """The offset of the next record of each partition."""
        self._starting = threading.Lock()
        self._started = threading.Event()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    @property
    def is_started(self) -> bool:
        return self._started.is_set()

    def start(self) -> None:
        """Returns when the present end of each partition is known. Quick after the first call. Raises KafkaFailed."""
        with self._starting:
            if self._started.is_set():
                return
            client = new_client(Consumer, self._config)
            try:
                self._next = {number: end for number, (_, end) in offsets_of(client, self._topic, self._errors).items()}
            finally:
                client.close()
            self._thread.start()
            self._started.set()

    def close(self, timeout_s: float = 2.0) -> None:
        self._stopping.set()
        if self._started.is_set():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        ids = self._ids()
        while not self._stopping.is_set():
            try:
                self._follow(ids)
            except TopicRecreated:
                self._next = {}
            except Exception as error:  # noqa: BLE001 - whatever it is, a new consumer continues where this one stopped
                _log.warning("follower_failed", topic=self._topic, error=str(error) or repr(error))
            self._stopping.wait(_PAUSE_S)

    def _follow(self, ids: TopicIdWatch) -> None:
        client = new_client(Consumer, self._config)
        try:
            client.assign([TopicPartition(self._topic, number, offset) for number, offset in self._next.items()])
            look_s = time.monotonic() + _NEW_PARTITIONS_S if self._next else 0
            while not self._stopping.is_set():
                ids.check()
                for message in polled(client, _POLL_S, _MOST_RECORDS):
                    if (wrong := message.error()) is not None:
                        check_error(wrong)
                        continue
                    self._next[message.partition()] = message.offset() + 1
                    self._handle_safely(message)
                if time.monotonic() > look_s:
                    look_s = time.monotonic() + _NEW_PARTITIONS_S
                    self._read_added(client)
        finally:
            client.close()

    def _handle_safely(self, message: Any) -> None:
        try:
            self._handle(message)
        except Exception as error:  # noqa: BLE001 - a foreign record must not end the answers to everybody
            _log.warning("record_skipped", topic=self._topic, offset=message.offset(), error=str(error) or repr(error))

    def _read_added(self, client: Any) -> None:
        try:
            known = client.list_topics(self._topic, timeout=_ANSWER_S).topics[self._topic].partitions
        except KafkaException:
            return  # asked again
        added = [TopicPartition(self._topic, number, 0) for number in sorted(known) if number not in self._next]
        if added:
            self._next |= {one.partition: 0 for one in added}
            client.incremental_assign(added)


def reading_config(
    topic: str, bootstrap_servers: str, options: Mapping[str, Any], errors: ClientErrors, more: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """Returns the settings of a consumer that joins no group; librdkafka wants the name of one."""
    config = {
        "group.id": topic,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "earliest",
        "isolation.level": "read_committed",
        "fetch.error.backoff.ms": 100,
        **(more or {}),
    }
    return client_config(bootstrap_servers, options, errors, config)


def offsets_of(client: Any, topic: str, errors: ClientErrors) -> dict[int, tuple[int, int]]:
    """Returns the first offset and the end of each partition. Raises KafkaFailed."""
    try:
        described = client.list_topics(topic, timeout=_ANSWER_S).topics[topic]
        if described.error is not None:
            raise KafkaFailed(f"{topic}: {described.error.str()}. `inflight topics` creates and checks the topics")
    except KafkaException as error:
        client.poll(0)  # calls `error_cb`
        raise errors.failed(topic, error) from error
    return {number: partition_bounds(client, topic, number) for number in sorted(described.partitions)}


def check_error(error: KafkaError) -> None:
    """Raises KafkaFailed when another consumer is the cure. Nothing depends on the coordinator of a group without members."""
    if error.code() not in (KafkaError._PARTITION_EOF, KafkaError.GROUP_AUTHORIZATION_FAILED):
        raise KafkaFailed(str(reason_of(KafkaException(error))))
