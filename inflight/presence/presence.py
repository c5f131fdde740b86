"""`Presence`: which devices are connected, and what changes.

with Presence("127.0.0.1:9092") as presence:
    device = presence.get("thermostat-7")
    for change in presence:
        notify(change.client_id, change.status)
"""

import time
from collections import deque
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Final, Self

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition

from inflight.keywords import checked
from inflight.presence.model import ClientPresence
from inflight.presence.table import PresenceTable
from inflight.running_up import kafka_of_running_up
from sinks.kafka.group_consumer import polled
from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, client_config, headers_of, new_client
from sinks.kafka.security.librdkafka_client import from_python_names
from sinks.kafka.topic_ids import TopicIdWatch, TopicRecreated
from sinks.routing.log_ends import END, Partition, log_offsets
from state.errors import UnreadableRecord
from state.model import ClientId

_ANSWER_S: Final = 10.0
_POLL_S: Final = 0.5
_MOST_RECORDS: Final = 1_000


class Presence:
    """Reads `inflight.presence`. Use it from one thread, and close it, or use it as a context manager.

    The first call that needs the clients reads the topic from its beginning, later ones what is new. A reader that fails may be
    used again. When the topic was deleted and created again, what is known of a client holds until its next record.

    bootstrap_servers: `host:port`, several separated by commas; None = that of the `inflight up` that runs on `var/inflight` in
    the working directory, or on $INFLIGHT__ENGINE__DATA_DIR. topic: `PREFIX.presence`. timeout_s: how long one call may take.
    kafka_options: more settings for the client of Kafka, by librdkafka's names or kafka-python's.

    Methods raise KafkaFailed if Kafka does not answer in time, or refuses.
    """

    @checked()
    def __init__(
        self,
        bootstrap_servers: str | None = None,
        *,
        topic: str = "inflight.presence",
        timeout_s: float = 30.0,
        kafka_options: Mapping[str, Any] | None = None,
    ) -> None:
        self._topic = topic
        self._timeout_s = timeout_s
        self._table = PresenceTable()
        self._errors = ClientErrors()
        self._positions: dict[Partition, int] = {}
        """The offset of the next record of each partition."""
        self._changes: deque[ClientPresence] | None = None
        """The changes that are not yielded yet; None = nobody asks for changes."""
        config = {
            "group.id": topic,  # librdkafka wants one of a consumer that joins none, too
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "enable.partition.eof": True,
            "auto.offset.reset": "earliest",
            "fetch.wait.max.ms": 100,
            "fetch.error.backoff.ms": 100,
        }
        servers, options = bootstrap_servers or kafka_of_running_up(), from_python_names(kafka_options or {})
        self._consumer = new_client(Consumer, client_config(servers, options, self._errors, config))
        self._ids = TopicIdWatch([topic], servers, options)

    def read(self) -> dict[ClientId, ClientPresence]:
        """Returns all clients that have a session, online and offline, as they are now."""
        self._catch_up()
        return dict(self._table.clients)

    def get(self, client_id: ClientId) -> ClientPresence | None:
        """Returns one client as it is now; None if it has no session."""
        self._catch_up()
        return self._table.clients.get(client_id)

    @checked()
    def changes(self, timeout_s: float | None = None) -> Iterator[ClientPresence]:
        """Yields each change after this call, also of clients that are gone. Copies of a record are left out.

        Args:
            timeout_s: Ends the iteration when nothing has changed for this long; None = it never ends.
        """
        if self._changes is None:
            self._catch_up()
            self._changes = deque()
        return self._yield_changes(self._changes, timeout_s)

    def __iter__(self) -> Iterator[ClientPresence]:
        return self.changes()

    def close(self) -> None:
        self._consumer.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _yield_changes(self, changes: deque[ClientPresence], timeout_s: float | None) -> Iterator[ClientPresence]:
        quiet_since_s = time.monotonic()
        while True:
            while changes:
                yield changes.popleft()
                quiet_since_s = time.monotonic()
            left_s = _POLL_S if timeout_s is None else quiet_since_s + timeout_s - time.monotonic()
            if left_s <= 0:
                return
            try:
                self._ids.check()
            except TopicRecreated:
                self._begin_anew()
            self._poll(min(left_s, _POLL_S))

    def _catch_up(self) -> None:
        """Reads all that the topic has now."""
        deadline_s = time.monotonic() + self._timeout_s
        self._assign()
        if self._ids.ask():
            self._begin_anew()
        ends = log_offsets(self._consumer, self._positions, END)
        while not all(self._positions[partition] >= end for partition, end in ends.items()):
            if time.monotonic() > deadline_s:
                raise self._errors.failed(f"{self._topic} was not read to its end", TimeoutError(f"within {self._timeout_s:g} s"))
            self._poll(_POLL_S)

    def _assign(self) -> None:
        """Begins to read partitions that are not read yet."""
        try:
            found = self._consumer.list_topics(self._topic, timeout=_ANSWER_S).topics.get(self._topic)
        except KafkaException as error:
            self._consumer.poll(0)  # calls `error_cb`
            raise self._errors.failed(f"{self._topic}: no broker answers", error) from error
        if found is None or found.error is not None:
            raise KafkaFailed(
                f"topic {self._topic} does not exist, or may not be described; `inflight topics` creates it, and `topic=` names "
                "it if topics.prefix is another one"
            )
        new = [number for number in found.partitions if (self._topic, number) not in self._positions]
        if new:
            self._consumer.incremental_assign([TopicPartition(self._topic, number, OFFSET_BEGINNING) for number in new])
            self._positions |= {(self._topic, number): 0 for number in new}

    def _begin_anew(self) -> None:
        """Reads a topic from its beginning that was deleted and created again. Records that are read twice change nothing."""
        self._consumer.unassign()
        self._positions = {}
        self._assign()

    def _poll(self, timeout_s: float) -> None:
        for message in polled(self._consumer, timeout_s, _MOST_RECORDS):
            partition, error = (message.topic(), message.partition()), message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise self._errors.failed(f"{self._topic} cannot be read", KafkaException(error))
                self._positions[partition] = message.offset()  # behind records that compaction has removed
                continue
            self._positions[partition] = message.offset() + 1
            try:
                headers = headers_of(message)
            except UnreadableRecord:
                self._table.unreadable += 1
                continue
            change = self._table.apply(message.key(), message.value(), headers)
            if change is not None and self._changes is not None:
                self._changes.append(change)
