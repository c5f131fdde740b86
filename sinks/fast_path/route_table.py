"""Knows where other gateways hold connections with a fast path, and which `inflight.messages` the engine reads: the followed part
of the compacted topic `inflight.routes`.

Routes are read from the beginning of a partition when it is followed, and then as they come. What is not known yet, or not any
more, costs latency and nothing else.
"""

import contextlib
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import structlog
from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient

from sinks.kafka.librdkafka import METADATA_AGE_MS, ClientErrors, new_client, topic_id_of
from state.errors import UnreadableRecord
from state.records.routes import MESSAGES_KEY, MessagesTopic, Route, decode_announcement, decode_route

_log: Final = structlog.get_logger(__name__)
_POLL_S: Final = 0.5
_MOST_RECORDS: Final = 500
_ANSWER_S: Final = 5.0
_TOPIC_ID_S: Final = 5.0
"""How long a router may take a recreated topic for the old one."""
_RESTART_PAUSE_S: Final = 1.0


class RouteTable:
    """The routes by partition of `inflight.routes`. One thread changes it; any may ask.

    topic_id: of `inflight.messages` in Kafka; empty = unknown.
    """

    def __init__(self) -> None:
        self._routes: dict[int, dict[bytes, Route]] = {}
        self._tables: tuple[dict[bytes, Route], ...] = ()
        """Those of all partitions, replaced as a whole: the router's thread asks for each record that it reads."""
        self._announced: MessagesTopic | None = None
        self.topic_id = ""

    @property
    def partitions(self) -> frozenset[int]:
        return frozenset(self._routes)

    def follow(self, partition: int) -> None:
        """Start with a partition, which is read from its beginning."""
        self._routes.setdefault(partition, {})
        self._tables = tuple(self._routes.values())

    def leave(self, partition: int) -> None:
        self._routes.pop(partition, None)
        self._tables = tuple(self._routes.values())

    def read(self, partition: int, key: bytes | None, value: bytes | None) -> None:
        """The next record of a partition that is followed. One that is none of ours says that there is no route."""
        routes = self._routes.get(partition)
        if routes is None or key is None:
            return
        if key == MESSAGES_KEY:
            with contextlib.suppress(UnreadableRecord):
                self._announced = decode_announcement(value or b"")
            return
        routes.pop(key, None)
        if value is not None:
            with contextlib.suppress(UnreadableRecord):
                routes[key] = decode_route(value)

    @property
    def generation(self) -> int | None:
        """Returns the generation of `inflight.messages` for the engine.

        None means that the engine reads another topic of that name, so no message of this one may be offered. Without an
        announcement it is 0: engines of older versions make none.
        """
        announced, found = self._announced, self.topic_id
        if announced is None:
            return 0
        return announced.generation if not found or not announced.topic_id or found == announced.topic_id else None

    def of(self, key: bytes) -> Route | None:
        """Returns the route of a client; None = there is none.

        Args:
            key: The client id, encoded.
        """
        for routes in self._tables:
            if (route := routes.get(key)) is not None:
                return route
        return None


class RouteReader:
    """Fills a table from Kafka in a thread of its own. `follow` says of which partitions, from any thread.

    Args:
        group_id: The consumer group for librdkafka, which requires one. The reader joins no group and commits nothing.
    """

    def __init__(
        self,
        table: RouteTable,
        *,
        topic: str,
        messages_topic: str,
        group_id: str,
        config: Callable[[ClientErrors], Mapping[str, Any]],
    ) -> None:
        self._table = table
        self._messages_topic = messages_topic
        self._topic = topic
        self._group_id = group_id
        self._config = config
        self._wanted: frozenset[int] = frozenset()
        self._messages_partitions = 0
        self._asked: tuple[frozenset[int], int] | None = None
        self._ask_again_s = self._ask_id_s = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inflight-routes", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        self._thread.join(timeout_s)

    def follow(self, partitions: frozenset[int], of: int) -> None:
        """The routes of the clients whose messages are in these partitions, of so many."""
        self._wanted, self._messages_partitions = partitions, of

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._read()
            except Exception as error:  # noqa: BLE001 - whatever it was, a new consumer is the cure
                _log.warning("routes_consumer_failed", error=repr(error), action="a new consumer starts in a second")
            self._stopping.wait(_RESTART_PAUSE_S)

    def _read(self) -> None:
        reading = {"group.id": self._group_id, "enable.auto.commit": False, "auto.offset.reset": "earliest"}
        consumer = new_client(Consumer, {**self._config(ClientErrors()), **reading})
        admin = new_client(AdminClient, {**self._config(ClientErrors())})
        self._asked = None
        for partition in self._table.partitions:
            self._table.leave(partition)
        try:
            while not self._stopping.is_set():
                if not self._wanted and not self._table.partitions:
                    self._stopping.wait(_POLL_S)
                    continue
                self._assign(consumer)
                self._ask_topic_id(admin)
                first = consumer.poll(_POLL_S)
                for record in [] if first is None else [first, *consumer.consume(_MOST_RECORDS, 0)]:
                    if record.error() is None:
                        self._table.read(record.partition(), record.key(), record.value())
        finally:
            consumer.close()

    def _assign(self, consumer: Any) -> None:
        """A client's route has the number of its messages' partition, as long as both topics have as many partitions."""
        asked = self._wanted, self._messages_partitions
        if asked == self._asked and time.monotonic() < self._ask_again_s:
            return
        existing = frozenset(consumer.list_topics(self._topic, timeout=_ANSWER_S).topics[self._topic].partitions)
        self._asked = asked
        self._ask_again_s = time.monotonic() + (METADATA_AGE_MS / 1_000 if existing else _RESTART_PAUSE_S)
        wanted, messages_partitions = asked
        if wanted:
            wanted = wanted & existing if len(existing) == messages_partitions else existing
        followed = self._table.partitions
        for partition in followed - wanted:
            self._table.leave(partition)
        for partition in wanted - followed:
            self._table.follow(partition)
        if gone := [TopicPartition(self._topic, partition) for partition in sorted(followed - wanted)]:
            consumer.incremental_unassign(gone)
        if new := [TopicPartition(self._topic, partition, OFFSET_BEGINNING) for partition in sorted(wanted - followed)]:
            consumer.incremental_assign(new)

    def _ask_topic_id(self, admin: Any) -> None:
        """A topic that was recreated has another id. One that is not told, as while the topic is deleted, is asked for again."""
        if time.monotonic() < self._ask_id_s:
            return
        self._ask_id_s = time.monotonic() + _TOPIC_ID_S
        with contextlib.suppress(KafkaException):
            answers = admin.describe_topics(TopicCollection([self._messages_topic]), request_timeout=_ANSWER_S)
            self._table.topic_id = topic_id_of(answers[self._messages_topic].result())
