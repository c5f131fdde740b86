"""A retained publication reaches each subscriber once, however far behind the matchers are, and the newest state is seen last.

The logs are lists, and time passes with every record. Tables and matchers are those of the product; one matcher reads `uplink`,
another `subscriptions`. The steps of both, of publishers' gateways and of subscribers come in any order. `make mutation` shows
that the model finds each part of the rule that is missing (sinks/routing/retained_once.py).
"""

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.routing.matcher import Matcher, PublicationSource, RoutedRecord
from sinks.routing.metrics import MatcherCounters
from sinks.routing.routing_tables import RoutingTables
from sinks.routing.settings import RoutingSettings
from state.model import QoS, Subscription
from state.records.subscriptions import SubscriptionList, encode_subscriptions
from state.records.uplink import uplink_headers

pytestmark = pytest.mark.no_cover

_TOPIC: Final = "state"
_UPLINK: Final = PublicationSource(topic="uplink", partition=0, topic_id="u", is_uplink=True)
_SUBSCRIPTIONS: Final = PublicationSource(topic="subscriptions", partition=0, topic_id="s", is_uplink=False)


class Logged(NamedTuple):
    """A record of Kafka. headers are those that matchers read."""

    offset: int
    key: bytes
    value: bytes
    headers: list[tuple[str, bytes | None]]
    timestamp: int


@dataclass
class Process:
    """The tables of a process, and how far it has read."""

    name: str
    lists: int = 0
    retained: int = 0
    tables: RoutingTables = field(default_factory=RoutingTables)


class Received(NamedTuple):
    payload: bytes
    is_retained: bool


class World:
    """One device publishes, others subscribe."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.lists: list[Logged] = []
        self.retained: list[Logged] = []
        self.uplink: list[Logged] = []
        self.underway: deque[Logged] = deque()
        self.published = 0
        self.matched = self.answered = 0
        self.matching, self.answering = Process("matches"), Process("answers")
        self.published_before: dict[str, int] = {}
        """By subscriber: how many publications had been begun when it had SUBACK."""
        self.received: dict[str, list[Received]] = {}

    def append(self, log: list[Logged], key: bytes, value: bytes, headers: list[tuple[str, bytes | None]]) -> None:
        self.now_ms += 1
        log.append(Logged(len(log), key, value, headers, self.now_ms))

    # --- what can happen ------------------------------------------------------------------------------------------------------

    def steps(self) -> Iterator[Callable[[], None]]:
        if self.published < 6:
            yield self.publish
        if self.underway:
            yield self.hand_on
        if len(self.lists) < 4:
            yield self.subscribe
        for process in (self.matching, self.answering):
            if process.lists < len(self.lists):
                yield lambda process=process: self.read_lists(process, process.lists + 1)
            if process.retained < len(self.retained):
                yield lambda process=process: self.read_retained(process, process.retained + 1)
        if self.matched < len(self.uplink):
            yield self.match
        if self.answered < len(self.lists):
            yield self.answer

    def publish(self) -> None:
        """The gateway appends what is retained. What is routed follows when Kafka has that, in the order of the publications."""
        self.published += 1
        payload = b"%d" % self.published
        headers = uplink_headers(
            client_id="dev", inflight_id=f"dev:{self.published}", topic=_TOPIC, qos=QoS.AT_LEAST_ONCE, retain=True
        )
        self.append(self.retained, _TOPIC.encode(), payload, [*headers])
        self.underway.append(Logged(0, b"dev", payload, [*headers], 0))

    def hand_on(self) -> None:
        record = self.underway.popleft()
        self.append(self.uplink, record.key, record.value, record.headers)

    def subscribe(self) -> None:
        client = f"sub{len(self.lists)}"
        asked = Subscription(topic_filter=_TOPIC, qos=QoS.EXACTLY_ONCE)
        listed = SubscriptionList(connection_id=1, version=1, subscriptions=(asked,), wanted=(_TOPIC,))
        self.append(self.lists, client.encode(), encode_subscriptions(listed), [])
        self.published_before[client] = self.published
        self.received[client] = []

    def read_lists(self, process: Process, end: int) -> None:
        for record in self.lists[process.lists : end]:
            process.tables.read_list(record.key, record.value, record.headers, record.timestamp)
        process.lists = max(process.lists, end)

    def read_retained(self, process: Process, end: int) -> None:
        for record in self.retained[process.retained : end]:
            process.tables.read_retained(record.key, record.value, record.headers, record.timestamp)
        process.retained = max(process.retained, end)

    def match(self) -> None:
        record, process = self.uplink[self.matched], self.matching
        self.matched += 1
        self.read_lists(process, len(self.lists))
        if process.tables.subscriptions.recent.retained_matters(record.timestamp):
            self.read_retained(process, len(self.retained))
        self.deliver(self.matcher_of(process).route(_UPLINK, record), is_retained=False)

    def answer(self) -> None:
        record, process = self.lists[self.answered], self.answering
        self.answered += 1
        self.read_lists(process, len(self.lists))
        self.read_retained(process, len(self.retained))
        client = record.key.decode()
        asked = Subscription(topic_filter=_TOPIC, qos=QoS.EXACTLY_ONCE)
        listed = SubscriptionList(connection_id=1, version=1, subscriptions=(asked,), wanted=(_TOPIC,))
        answer = self.matcher_of(process).answer(_SUBSCRIPTIONS, record.offset, client, listed, listed_ms=record.timestamp)
        self.deliver(answer, is_retained=True)

    def matcher_of(self, process: Process) -> Matcher:
        return Matcher(
            process.tables,
            RoutingSettings(),
            MatcherCounters(),
            messages_partitions=1,
            retained_partitions=1,
            now_ms=lambda: self.now_ms,
        )

    def deliver(self, records: Iterator[RoutedRecord] | list[RoutedRecord], *, is_retained: bool) -> None:
        for record in records:
            for client, received in self.received.items():
                if any(name.endswith(client) for name, _ in record.headers):
                    received.append(Received(record.value or b"", is_retained))

    # --- what must hold -------------------------------------------------------------------------------------------------------

    def run(self, choices: list[int]) -> None:
        for choice in choices:
            steps = list(self.steps())
            if not steps:
                break
            steps[choice % len(steps)]()
        while self.underway or self.matched < len(self.uplink) or self.answered < len(self.lists):
            next(step for step in self.steps() if step not in (self.publish, self.subscribe))()

    def check(self) -> None:
        for client, received in self.received.items():
            numbers = [int(each.payload) for each in received]
            assert len(numbers) == len(set(numbers)), f"{client} gets a publication twice: {received}"
            due = set(range(self.published_before[client] + 1, self.published + 1))
            assert due <= set(numbers), f"{client} misses what was published behind its SUBACK: {received}"
            if self.published:
                assert max(numbers, default=0) == self.published, f"{client} does not know the present state: {received}"
            assert sum(each.is_retained for each in received) <= 1


def run_retained(choices: list[int]) -> None:
    """Runs a history; raises AssertionError if a promise is broken."""
    world = World()
    world.run(choices)
    world.check()


@given(choices=st.lists(st.integers(0, 9_999), max_size=60))
@pytest.mark.promise("retained")
def test_a_retained_publication_comes_once(choices: list[int]) -> None:
    run_retained(choices)
