"""Readers whose topic is deleted and created again while they run: nothing of the new one is skipped, or taken for new twice.

Each new log becomes longer than the old one was, so that no reader is told of it by an offset that does not exist.
"""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Producer

from inflight import Presence, Uplink
from inflight.readers.topic_follower import TopicFollower
from sinks.kafka import topic_ids
from sinks.kafka.tail import KafkaCommandTail
from sinks.routing.kafka_matcher import KafkaMatcher
from state.commands import SetPresence
from state.model import QoS
from state.records.presence import presence_record
from state.records.uplink import uplink_headers
from tests.integration.routing.routed_topics import PARTITIONS, RoutedTopics
from tests.support.kafka_topics import create_topics, recreate_topics
from tests.support.shared import SharedKafka
from tests.support.waiting import until, wait_until

pytestmark = [pytest.mark.servers, pytest.mark.timeout(60)]
OLD, NEW = 5, 60


@pytest.fixture(autouse=True)
def _ask_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_ids, "_ASK_S", 0.5)


def write(kafka: SharedKafka, topic: str, values: list[bytes], headers: Callable[[bytes], Any] = lambda value: None) -> None:
    producer: Any = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value, b"device", headers=headers(value), partition=0)
    assert producer.flush(60) == 0


def payloads(name: str, count: int) -> list[bytes]:
    return [b"%s-%d" % (name.encode(), number) for number in range(count)]


class Recreated:
    """A topic with some old records, that is recreated with more new ones."""

    def __init__(self, kafka: SharedKafka, name: str, headers: Callable[[bytes], Any] = lambda value: None) -> None:
        self._kafka, self.name, self._headers = kafka, name, headers
        create_topics(kafka.bootstrap_servers, name)

    def write_old(self) -> None:
        write(self._kafka, self.name, payloads("old", OLD), self._headers)

    def recreate(self) -> None:
        recreate_topics(self._kafka.bootstrap_servers, self.name)
        write(self._kafka, self.name, payloads("new", NEW), self._headers)


@pytest.mark.parametrize("begin", ["earliest", "latest"])
def test_a_backend_reads_a_recreated_uplink_from_its_beginning(kafka: SharedKafka, begin: Any) -> None:
    def headers(value: bytes) -> Any:
        return uplink_headers(client_id="device", inflight_id=value.decode(), topic="t", qos=QoS.AT_LEAST_ONCE)

    topic = Recreated(kafka, f"recreated-{begin}.uplink", headers)
    got: list[bytes] = []
    with Uplink(kafka.bootstrap_servers, group=topic.name, begin=begin, prefix=f"recreated-{begin}") as uplink:

        def reads() -> bool:
            write(kafka, topic.name, [b"ready"], headers)
            uplink._fetch(0.2)
            return uplink._fetched is not None

        wait_until(reads, "it reads what comes")
        topic.write_old()
        for message in uplink:
            got.append(message.payload)
            if len(got) == 1 + OLD:
                topic.recreate()
            elif len(set(got)) == 1 + OLD + NEW:
                break
    assert sorted(got) == sorted([b"ready", *payloads("old", OLD), *payloads("new", NEW)])


def test_a_follower_hands_over_every_record_of_a_recreated_topic(kafka: SharedKafka) -> None:
    topic = Recreated(kafka, "recreated-receipts")
    got: set[bytes] = set()
    follower = TopicFollower(
        topic.name, kafka.bootstrap_servers, {}, name="follower", handle=lambda message: got.add(message.value())
    )
    follower.start()
    try:
        topic.write_old()
        wait_until(lambda: got == set(payloads("old", OLD)), "it reads the old topic")
        topic.recreate()
        wait_until(lambda: got >= set(payloads("new", NEW)), "it reads the new topic whole")
    finally:
        follower.close()


def test_presence_reads_a_recreated_topic_and_tells_each_change_once(kafka: SharedKafka) -> None:
    topic = "recreated.presence"
    create_topics(kafka.bootstrap_servers, topic, cleanup_policy="compact")

    def connect(count: int, connection_id: int) -> None:
        producer: Any = Producer({"bootstrap.servers": kafka.bootstrap_servers, "linger.ms": 0})
        for number in range(count):
            command = SetPresence(
                online=True, since_ms=1, connection_id=connection_id, gateway="g", protocol_version=5, session_expiry_interval_s=0
            )
            record = presence_record(topic, f"c{number}", command)
            producer.produce(topic, record.value, record.key, headers=list(record.headers or ()))
        assert producer.flush(60) == 0

    connect(OLD, 1)
    with Presence(kafka.bootstrap_servers, topic=topic) as presence:
        assert len(presence.read()) == OLD
        changes = presence.changes(timeout_s=5)
        recreate_topics(kafka.bootstrap_servers, topic, cleanup_policy="compact")
        connect(NEW, 2)
        told = [next(changes) for _ in range(NEW)]
        assert sorted(each.client_id for each in told) == sorted(f"c{number}" for number in range(NEW))
        assert {each.connection_id for each in presence.read().values()} == {"2"}
        assert list(changes) == []


async def test_a_gateway_begins_anew_with_a_recreated_commands_topic(kafka: SharedKafka) -> None:
    topic = Recreated(kafka, "recreated.commands")
    events: list[str] = []

    class Listener:
        def partitions_assigned(self, partitions: frozenset[int]) -> None:
            events.append("assigned")

        def partitions_revoked(self, partitions: frozenset[int]) -> None:
            events.append("revoked")

        def commands(self, partition: int, values: list[bytes]) -> list[Callable[[], None]]:
            events.extend(value.decode() for value in values)
            return []

    tail = KafkaCommandTail(
        bootstrap_servers=kafka.bootstrap_servers, topic=topic.name, group_id=topic.name, group_instance_id=None,
        session_timeout_ms=6_000, fetch_max_wait_ms=100, options={},
    )  # fmt: skip
    tail.start(Listener())
    try:
        await until(lambda: events == ["assigned"], "the group has given its partition")
        await asyncio.to_thread(topic.write_old)
        await until(lambda: len(events) == 1 + OLD, "it reads the old topic")
        await asyncio.to_thread(topic.recreate)
        await until(lambda: events.count("assigned") == 2, "connections end, and the partition comes again")
        assert "revoked" in events[: events.index("assigned", 1)]
        await asyncio.to_thread(write, kafka, topic.name, [b"last"])
        await until(lambda: "last" in events, "it reads on")
    finally:
        await tail.close(30)


@pytest.mark.promise("recreated-topic")
def test_a_matcher_routes_recreated_topics_whole_and_once(kafka: SharedKafka) -> None:
    topics = RoutedTopics(kafka.bootstrap_servers, "recreated-sources")
    settings = topics.settings
    topics.subscribe("client", "#")
    matcher = KafkaMatcher(settings, topics.host)
    matcher.start()
    try:
        wait_until(lambda: matcher.counters.partitions_owned == 3 * PARTITIONS, "the matcher owns partitions")
        for value in payloads("old", OLD):
            topics.publish("u", value)
            topics.send("p", value)
        assert len(topics.copies(at_least=2 * OLD)) == 2 * OLD
        recreate_topics(kafka.bootstrap_servers, settings.uplink_topic, settings.publications_topic, partitions=PARTITIONS)
        for value in payloads("new", NEW):
            topics.start_publishing("u", value)
        for value in payloads("new", NEW):
            topics.send("p", value)
        copies = topics.copies(at_least=2 * OLD + 2 * NEW)
        wait_until(lambda: not matcher.counters.lag, "nothing is left")
    finally:
        asyncio.run(matcher.close(30))
    copies = topics.copies()
    routed = [(copy.value, dict(copy.headers)["mqtt-topic"]) for copy in copies]
    assert sorted(routed) == sorted(
        (value, name) for name in (b"u", b"p") for value in payloads("old", OLD) + payloads("new", NEW)
    )


def test_a_matcher_that_was_away_routes_a_recreated_uplink_whole(kafka: SharedKafka) -> None:
    topics = RoutedTopics(kafka.bootstrap_servers, "recreated-away")
    topics.subscribe("client", "#")

    def route(count: int) -> list[bytes | None]:
        matcher = KafkaMatcher(topics.settings, topics.host)
        matcher.start()
        try:
            wait_until(lambda: matcher.counters.partitions_owned == 3 * PARTITIONS, "the matcher owns partitions")
            topics.publish("u", b"while it runs")
            return [copy.value for copy in topics.copies(at_least=count)]
        finally:
            asyncio.run(matcher.close(30))

    route(1)
    recreate_topics(kafka.bootstrap_servers, topics.settings.uplink_topic, partitions=PARTITIONS)
    for value in payloads("new", OLD):
        topics.publish("u", value)
    assert route(OLD + 2) == [b"while it runs", *payloads("new", OLD), b"while it runs"]


def test_publications_wait_for_an_engine_after_subscriptions_were_recreated(kafka: SharedKafka) -> None:
    topics = RoutedTopics(kafka.bootstrap_servers, "recreated-lists")
    topics.subscribe("client", "#")
    matcher = KafkaMatcher(topics.settings, topics.host)
    matcher.start()
    try:
        wait_until(lambda: matcher.counters.partitions_owned == 3 * PARTITIONS, "the matcher owns partitions")
        topics.publish("t", b"old")
        topics.copies(at_least=1)
        recreate_topics(
            kafka.bootstrap_servers, topics.settings.subscriptions_topic, partitions=PARTITIONS, cleanup_policy="compact"
        )
        wait_until(lambda: not matcher.has_tables(), "the tables are read anew")
        topics.publish("t", b"new")
        for number, client_id in enumerate(("client", "other"), start=1):
            topics.subscribe(client_id, "#")
            wait_until(lambda number=number: matcher.counters.clients == number, "the new topic is read")
        assert not matcher.has_tables(), "other lists may be missing"
        topics.mark_all()
        copies = topics.copies(at_least=3)
    finally:
        asyncio.run(matcher.close(30))
    assert sorted(copy.value or b"" for copy in copies) == [b"new", b"new", b"old"]
