"""Simulates Kafka: the topics of routing, each with the order that Kafka promises."""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sinks.kafka.partitioning import partition_of
from sinks.mqtt.connection.append_queue import Append, AppendTopic
from sinks.routing.matcher import PublicationSource, RoutedRecord
from state.records.record import Header, SinkRecord
from state.records.routing import RECIPIENT_PREFIX
from tests.properties.fast_path.steps import Shared, Step
from tests.properties.routing.account import Account
from tests.properties.routing.scenario import ROUTING

_UPLINKS: Final = 2
_LATEST_MS: Final = 30_000


class Logged(NamedTuple):
    """A record in a log. A matcher and a router read it as one of Kafka."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    timestamp: int

    @property
    def recipients(self) -> dict[str, bytes]:
        return {
            name.removeprefix(RECIPIENT_PREFIX): value or b"" for name, value in self.headers if name.startswith(RECIPIENT_PREFIX)
        }

    @property
    def message_headers(self) -> list[Header]:
        return [Header(name, value) for name, value in self.headers if not name.startswith(RECIPIENT_PREFIX)]


@dataclass
class Topic:
    """A partition. records: those that compaction has left. end: the offset of the next record."""

    shared: Shared
    records: list[Logged] = field(default_factory=list)
    end: int = 0

    def append(self, key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
        self.records.append(Logged(self.end, key, value, headers, self.shared.now_ms))
        self.end += 1

    def between(self, start: int, end: int) -> list[Logged]:
        return [record for record in self.records if start <= record.offset < end]

    def compact(self, end: int) -> None:
        """Keeps the last record of each key below an offset, and of those a tombstone for a while only."""
        last = {record.key: record.offset for record in self.records if record.offset < end}
        self.records = [record for record in self.records if record.offset >= end or record.offset == last[record.key]]


class Kafka:
    """sources: what the matchers read publications from, and its log."""

    def __init__(self, shared: Shared, account: Account) -> None:
        self._shared, self._account = shared, account
        self.messages, self.subscriptions, self._publications = Topic(shared), Topic(shared), Topic(shared)
        self._uplinks = [Topic(shared) for _ in range(_UPLINKS)]
        self.sources: list[tuple[PublicationSource, Topic]] = [
            (PublicationSource(topic=ROUTING.uplink_topic, partition=number, topic_id="u", is_uplink=True), log)
            for number, log in enumerate(self._uplinks)
        ]
        publications = PublicationSource(topic=ROUTING.publications_topic, partition=0, topic_id="p", is_uplink=False)
        self.sources.append((publications, self._publications))
        self._dead: list[deque[Callable[[], None]]] = []

    # --- what is written ------------------------------------------------------------------------------------------------------

    def publish(self, topic: str, key: bytes, value: bytes, headers: list[tuple[str, bytes | None]]) -> None:
        """Appends to `uplink` or to `publications`."""
        log = self._uplinks[partition_of(key, _UPLINKS)] if topic == ROUTING.uplink_topic else self._publications
        log.append(key, value, headers)
        self._account.appended(value.decode())

    def write(self, record: SinkRecord) -> None:
        """Appends a record of the engine."""
        headers = [(header.key, header.value) for header in record.headers or ()]
        if record.topic == ROUTING.subscriptions_topic:
            self.subscriptions.append(record.key, record.value, headers)
        else:
            self.publish(record.topic, record.key, record.value or b"", headers)

    def write_routed(self, record: RoutedRecord) -> None:
        assert record.topic == ROUTING.messages_topic
        self.messages.append(record.key, record.value, record.headers)

    # --- what dead processes have written -------------------------------------------------------------------------------------

    def may_land_later(self, writes: deque[Callable[[], None]]) -> None:
        """Records that a process which is gone has sent: they get into the log in their order, or are lost."""
        if writes:
            self._dead.append(writes)

    def next_steps(self) -> Iterator[Step]:
        for writes in self._dead:
            yield Step(3, "a dead process's record lands", lambda writes=writes: self._land(writes))
            yield Step(1, "a dead process's records are lost", lambda writes=writes: self._dead.remove(writes))
        if self._shared.scenario.compacts and len(self.subscriptions.records) > 1:
            for end in {self.subscriptions.end, self.subscriptions.end - 1}:
                yield Step(1, "subscriptions are compacted", lambda end=end: self.subscriptions.compact(end))

    def _land(self, writes: deque[Callable[[], None]]) -> None:
        writes.popleft()()
        if not writes:
            self._dead.remove(writes)


class ClientLog:
    """Kafka as the connections and the engine of one client see it. events, messages, routes, late: as in fast_path/kafka.py;
    event_times: of the events."""

    def __init__(self, client_id: str, shared: Shared, kafka: Kafka) -> None:
        self.client_id = client_id
        self._shared, self._kafka = shared, kafka
        self.events: list[bytes] = []
        self.event_times: list[int] = []
        self.routes: list[int | None] = [None]
        self.late: list[tuple[int, Append]] = []

    @property
    def messages(self) -> list[Logged]:
        return self._kafka.messages.records

    def append(self, append: Append) -> None:
        key = append.key or self.client_id.encode()
        headers: list[tuple[str, bytes | None]] = list(append.headers or ())
        if append.topic is AppendTopic.EVENTS:
            self.events.append(append.value)
            self.event_times.append(self._shared.now_ms)
        elif append.topic is AppendTopic.UPLINK:
            self._kafka.publish(ROUTING.uplink_topic, key, append.value, headers)
        else:
            assert append.topic is AppendTopic.SUBSCRIPTIONS
            self._kafka.subscriptions.append(key, append.value, headers)

    def may_come_late(self, *appends: Append) -> None:
        if self._shared.scenario.copies_land_late:
            self.late += [(self._shared.now_ms + _LATEST_MS, append) for append in appends]

    def next_steps(self) -> Iterator[Step]:
        self.late = [late for late in self.late if late[0] >= self._shared.now_ms]
        for index in range(min(3, len(self.late))):
            yield Step(4, f"{self.client_id}: a late append lands", lambda index=index: self.append(self.late.pop(index)[1]))
