"""Partitions that wait for a client that is behind. With a broker: tests/integration/routing."""

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from sinks.kafka.librdkafka import ClientErrors
from sinks.kafka.throttles import ThrottleTable
from sinks.routing import kafka_matcher
from sinks.routing.kafka_matcher import _Routing
from sinks.routing.log_ends import Partition
from sinks.routing.matcher import RoutedRecord
from sinks.routing.metrics import MatcherCounters
from sinks.routing.routed_writer import ReadBatch
from sinks.routing.routing_tables import RoutingTables
from sinks.routing.settings import RoutingSettings
from sinks.routing.source_topics import SourceTopics
from state.model import QoS, Subscription
from state.records.routing import RECIPIENT_PREFIX
from state.records.subscriptions import SubscriptionList, encode_subscriptions
from state.records.throttle import encode_throttle
from state.records.uplink import uplink_headers
from tests.unit.sinks.routing.test_source_topics import Watch

SETTINGS = RoutingSettings()
SLOW, FAST = ("inflight.uplink", 0), ("inflight.uplink", 1)
LISTS = ("inflight.subscriptions", 0)


@dataclass
class Publication:
    offset: int
    headers: list[tuple[str, bytes]]
    value: bytes
    key: bytes | None = b"dev"
    timestamp: int = 1


@dataclass
class FakeSource:
    """The consumer: two records a poll of each partition that is not paused."""

    before_revoke: Callable[[], None]
    on_gone: Callable[[frozenset[Partition]], None]
    logs: dict[Partition, list[Publication]] = field(default_factory=lambda: defaultdict(list))
    owned: dict[Partition, int] = field(default_factory=dict)
    paused: set[Partition] = field(default_factory=set)
    at: dict[Partition, int] = field(default_factory=lambda: defaultdict(int))
    revoking: list[Partition] = field(default_factory=list)

    def poll(self, timeout_s: float, most: int) -> dict[Partition, list[Publication]]:
        if self.revoking:
            self.before_revoke()
            self.on_gone(frozenset(self.revoking))
            for partition in self.revoking:
                del self.owned[partition]
            self.revoking.clear()
        batches = {}
        for partition in self.owned.keys() - self.paused:
            if records := self.logs[partition][self.at[partition] : self.at[partition] + 2]:
                batches[partition] = records
                self.at[partition] += len(records)
        return batches

    def pause(self, partition: Partition) -> None:
        assert partition not in self.paused
        self.paused.add(partition)

    def resume(self, partition: Partition) -> None:
        self.paused.remove(partition)

    def finished(self, ends: Mapping[Partition, int]) -> None:
        self.owned.update({each: end for each, end in ends.items() if each in self.owned})

    def commit(self) -> None: ...

    def lag(self, positions: Mapping[Partition, int]) -> int:
        return sum(len(self.logs[each]) - position for each, position in positions.items())


class FakeWriter:
    """Kafka, which confirms at once."""

    has_unconfirmed = False

    def __init__(self) -> None:
        self.too_large: set[Any] = set()
        self.written: list[RoutedRecord] = []
        self._batches: list[ReadBatch] = []

    def begin(self, ends: Mapping[Partition, int]) -> ReadBatch:
        self._batches.append(ReadBatch(ends, 0.0, 0.0))
        return self._batches[-1]

    def write(self, record: RoutedRecord, batch: ReadBatch, position: Any) -> None:
        self.written.append(record)

    def end(self, batch: ReadBatch) -> None: ...
    def poll(self, timeout_s: float = 0) -> None: ...
    def flush(self, timeout_s: float) -> None: ...

    def finished(self) -> dict[Partition, int]:
        ends: dict[Partition, int] = {}
        for batch in self._batches:
            ends.update(batch.ends)
        self._batches.clear()
        return ends


class FakeReader:
    """The table reader, which has always read everything."""

    is_complete = has_subscriptions = True
    partitions = (LISTS,)

    def wait_for(self, ends: Any, deadline_s: float) -> bool:
        return True


class Bench:
    """The matcher's routing with two partitions of publications. `slow` subscribes to s, `fast` to f."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, max_wait_ms: int = 10_000) -> None:
        self.now_s = 1_000.0
        monkeypatch.setattr(kafka_matcher.time, "monotonic", lambda: self.now_s)
        monkeypatch.setattr(kafka_matcher, "log_offsets", lambda *_: {})
        counts: dict[str, int] = defaultdict(lambda: 2)
        monkeypatch.setattr(kafka_matcher, "partition_counts", lambda *_: counts)
        monkeypatch.setattr(kafka_matcher, "SourceConsumer", self._source)
        self.throttles = ThrottleTable()
        self.tables = RoutingTables()
        self.counters = MatcherCounters()
        self.writer = FakeWriter()
        watch = Watch()
        watch.ids = {SETTINGS.uplink_topic: "u", SETTINGS.publications_topic: "p", SETTINGS.subscriptions_topic: "s"}
        topics = SourceTopics(watch)
        for client_id in ("slow", "fast"):
            subscription = Subscription(topic_filter=client_id[0], qos=QoS.AT_LEAST_ONCE)
            listed = SubscriptionList(connection_id=1, version=1, subscriptions=(subscription,))
            self.tables.read_list(client_id.encode(), encode_subscriptions(listed), [])
        self.routing = _Routing(
            RoutingSettings(max_wait_ms=max_wait_ms),
            None,  # type: ignore[arg-type]
            FakeReader(),  # type: ignore[arg-type]
            self.tables,
            self.counters,
            topics,
            self.throttles,
            asking=None,
            errors=ClientErrors(),
            writer=self.writer,  # type: ignore[arg-type]
            now_ms=lambda: 1,
        )

    def _source(self, *_: Any, before_revoke: Any, on_gone: Any, **__: Any) -> FakeSource:
        self.source = FakeSource(before_revoke, on_gone, owned={SLOW: 0, FAST: 0, LISTS: 0})
        return self.source

    def publish(self, partition: Partition, topic: str, *payloads: bytes, qos: QoS = QoS.AT_LEAST_ONCE) -> None:
        for payload in payloads:
            headers = uplink_headers(client_id="dev", inflight_id=f"dev:{payload!r}", topic=topic, qos=qos)
            log = self.source.logs[partition]
            log.append(Publication(len(log), headers, payload))

    def throttle(self, *, is_progressing: bool = True) -> None:
        self.throttles.apply(b"slow", encode_throttle("", 1, is_progressing=is_progressing))

    def clear(self) -> None:
        self.throttles.apply(b"slow", None)

    def run(self, seconds: float = 0.0) -> list[tuple[str, bytes | None]]:
        """Polls some times, and returns what was routed meanwhile: client and payload."""
        self.now_s += seconds
        before = len(self.writer.written)
        for _ in range(10):
            self.routing.run()
        return [
            (name.removeprefix(RECIPIENT_PREFIX), record.value)
            for record in self.writer.written[before:]
            for name, _ in record.headers
            if name.startswith(RECIPIENT_PREFIX)
        ]


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_a_partition_waits_for_its_client_while_the_others_go_on(bench: Bench) -> None:
    bench.publish(SLOW, "f", b"0")
    bench.publish(SLOW, "s", b"1", b"2")
    bench.publish(SLOW, "f", b"3", b"4", b"5")
    bench.publish(FAST, "f", b"a", b"b", b"c")
    bench.throttle()
    routed = bench.run()
    assert [value for _, value in routed if value in (b"a", b"b", b"c")] == [b"a", b"b", b"c"]
    assert [value for _, value in routed if value not in (b"a", b"b", b"c")] == [b"0"]
    assert bench.source.owned[SLOW] == 1, "what waits is not committed"
    assert bench.source.owned[FAST] == 3
    assert bench.source.paused == {SLOW}
    assert bench.counters.partitions_waiting == 1
    assert bench.run(seconds=2.0) == []
    assert bench.counters.lag == 5
    bench.clear()
    assert bench.run() == [("slow", b"1"), ("slow", b"2"), ("fast", b"3"), ("fast", b"4"), ("fast", b"5")]
    assert bench.source.owned[SLOW] == 6
    assert not bench.source.paused
    bench.run(seconds=2.0)
    assert (bench.counters.partitions_waiting, bench.counters.lag) == (0, 0)
    assert bench.counters.publications == 9, "each is counted once"


def test_a_publication_goes_when_its_partition_has_waited_enough(bench: Bench) -> None:
    bench.publish(SLOW, "s", b"1")
    bench.throttle()
    assert bench.run() == []
    assert bench.run(seconds=9.9) == []
    assert bench.run(seconds=0.1) == [("slow", b"1")]
    bench.publish(SLOW, "s", b"2")
    assert bench.run(seconds=60.0) == [("slow", b"2")], "its throttle has not ended meanwhile"


@pytest.mark.parametrize("max_wait_ms", [0, 10_000])
def test_a_client_that_is_away_or_a_setting_of_zero_holds_up_nobody(monkeypatch: pytest.MonkeyPatch, max_wait_ms: int) -> None:
    bench = Bench(monkeypatch, max_wait_ms)
    bench.publish(SLOW, "s", b"1")
    bench.throttle(is_progressing=not max_wait_ms)
    assert bench.run() == [("slow", b"1")]


def test_a_publication_of_qos_0_waits_for_nobody(bench: Bench) -> None:
    bench.publish(SLOW, "s", b"1", qos=QoS.AT_MOST_ONCE)
    bench.throttle()
    assert bench.run() == [("slow", b"1")]


def test_a_partition_that_goes_while_it_waits_is_not_routed_here(bench: Bench) -> None:
    bench.publish(SLOW, "s", b"1", b"2")
    bench.throttle()
    bench.run()
    bench.source.revoking.append(SLOW)
    assert bench.run() == []
    assert SLOW not in bench.source.owned
    assert bench.counters.partitions_waiting == 0
    bench.clear()
    assert bench.run() == [], "its next owner reads it"


def test_lists_of_subscriptions_are_read_while_a_partition_waits(bench: Bench) -> None:
    bench.publish(SLOW, "s", b"1")
    bench.throttle()
    bench.run()
    listed = encode_subscriptions(SubscriptionList(connection_id=1, version=2))
    bench.source.logs[LISTS].append(Publication(0, [], listed, key=b"fast"))
    bench.run()
    assert bench.source.owned[LISTS] == 1
