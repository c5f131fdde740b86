"""The command tail on a real broker: where it begins, what it commits, who has a partition."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import pytest
from kafka import KafkaAdminClient, KafkaProducer, TopicPartition

from sinks.kafka.group_instance import GroupInstanceTaken
from sinks.kafka.tail import KafkaCommandTail
from tests.support.kafka_topics import create_topics
from tests.support.shared import SharedKafka
from tests.support.waiting import until

PARTITIONS = 4
SESSION_TIMEOUT_MS = 6_000
LONG_TIMEOUT_MS = 100_000
"""The session time-out of a member that ends."""
AT_ONCE_S = 0.8 * LONG_TIMEOUT_MS / 1_000
"""Shorter than the time after which the group evicts a silent member, even on a slow machine."""


class Listener:
    """assignments: how often a partition came."""

    def __init__(self) -> None:
        self.owned: set[int] = set()
        self.assignments = 0
        self.values: list[bytes] = []
        self.certain: list[bytes] = []

    def partitions_assigned(self, partitions: frozenset[int]) -> None:
        assert not self.owned & partitions
        self.owned |= partitions
        self.assignments += len(partitions)

    def partitions_revoked(self, partitions: frozenset[int]) -> None:
        self.owned -= partitions

    def commands(self, partition: int, values: list[bytes]) -> list[Callable[[], None]]:
        self.values += values
        return [partial(self.certain.append, value) for value in values]


@pytest.fixture
def topic(kafka: SharedKafka, request: pytest.FixtureRequest) -> str:
    name = f"commands-{request.node.name.replace('_', '-')}"
    create_topics(kafka.bootstrap_servers, name, partitions=PARTITIONS)
    return name


@asynccontextmanager
async def tail(
    kafka: SharedKafka, topic: str, listener: Listener, *, name: str | None = None, session_timeout_ms: int = SESSION_TIMEOUT_MS
) -> AsyncIterator[KafkaCommandTail]:
    """Runs a tail in a consumer group with the topic's name. name: of a static member."""
    reader = KafkaCommandTail(
        bootstrap_servers=kafka.bootstrap_servers,
        topic=topic,
        group_id=topic,
        group_instance_id=name,
        session_timeout_ms=session_timeout_ms,
        fetch_max_wait_ms=20,
        options={},
    )
    reader.start(listener)
    try:
        yield reader
    finally:
        await reader.close(10)


def write(kafka: SharedKafka, topic: str, *values: bytes, partition: int = 0) -> None:
    producer = KafkaProducer(bootstrap_servers=kafka.bootstrap_servers)
    for value in values:
        producer.send(topic, value=value, partition=partition)
    producer.close()


def committed(kafka: SharedKafka, topic: str) -> dict[int, int]:
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    try:
        offsets = admin.list_group_offsets({topic: None})[topic]
    finally:
        admin.close()
    return {partition.partition: offset.offset for partition, offset in offsets.items()}


def all_of(listener: Listener) -> bool:
    return listener.owned == set(range(PARTITIONS))


async def test_it_begins_at_the_end_and_goes_on_where_it_was(kafka: SharedKafka, topic: str) -> None:
    write(kafka, topic, b"before anybody came")
    first, second = Listener(), Listener()
    async with tail(kafka, topic, first):
        await until(lambda: all_of(first), "it has its partitions")
        write(kafka, topic, b"1", b"2")
        await until(lambda: first.certain == [b"1", b"2"], "a commit has shown that the partition is still ours")
    assert committed(kafka, topic) == {0: 3, 1: 0, 2: 0, 3: 0}
    write(kafka, topic, b"3")
    async with tail(kafka, topic, second):
        await until(lambda: second.values, "the next process reads on")
    assert (first.values, second.values) == ([b"1", b"2"], [b"3"])


async def test_a_second_process_gets_partitions_and_the_first_keeps_the_others(kafka: SharedKafka, topic: str) -> None:
    first, second = Listener(), Listener()
    async with tail(kafka, topic, first):
        await until(lambda: all_of(first), "the first has all")
        async with tail(kafka, topic, second, session_timeout_ms=LONG_TIMEOUT_MS):
            await until(lambda: len(second.owned) == len(first.owned) == 2, "they share")
            assert not first.owned & second.owned
            assert first.assignments == PARTITIONS, "what it keeps it has not given up in between"
            for partition in range(PARTITIONS):
                write(kafka, topic, b"%d" % partition, partition=partition)
            await until(lambda: len(first.values + second.values) == PARTITIONS, "each record is read")
            assert {int(value) for value in first.values} == first.owned
        await until(lambda: all_of(first), "the first has all again, at once", within_s=AT_ONCE_S)


async def test_offsets_that_the_log_does_not_have_any_more_cost_no_new_record(kafka: SharedKafka, topic: str) -> None:
    """Retention has deleted what was committed, while nobody read."""
    listener = Listener()
    async with tail(kafka, topic, listener):
        await until(lambda: all_of(listener), "it has its partitions")
    write(kafka, topic, b"deleted", b"deleted, too")
    admin = KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers)
    admin.delete_records({TopicPartition(topic, 0): 2})
    admin.close()
    async with tail(kafka, topic, listener):
        await until(lambda: all_of(listener), "it has its partitions")
        write(kafka, topic, b"new")
        await until(lambda: listener.values, "it reads")
    assert listener.values == [b"new"]


async def test_a_name_is_taken_over_by_the_newest_process_and_the_older_one_ends(kafka: SharedKafka, topic: str) -> None:
    old, new = Listener(), Listener()
    async with tail(kafka, topic, old, name="gateway-0") as older:
        await until(lambda: all_of(old), "the older one has all")
        async with tail(kafka, topic, new, name="gateway-0") as newer:
            await until(lambda: all_of(new), "the newer one has all")
            await until(lambda: not old.owned, "the older one has none")
            with pytest.raises(GroupInstanceTaken, match="has taken the partitions over"):
                await until(lambda: older.check() or False, "it is told")
            newer.check()


async def test_a_restart_under_a_name_gets_its_partitions_back(kafka: SharedKafka, topic: str) -> None:
    stays, first, again = Listener(), Listener(), Listener()
    async with tail(kafka, topic, stays, name="stays"):
        async with tail(kafka, topic, first, name="restarts", session_timeout_ms=LONG_TIMEOUT_MS):
            await until(lambda: len(stays.owned) == len(first.owned) == 2, "they share")
            its = set(first.owned)
        async with tail(kafka, topic, again, name="restarts", session_timeout_ms=LONG_TIMEOUT_MS):
            await until(lambda: again.owned == its, "it has the same", within_s=AT_ONCE_S)
        assert len(stays.owned) == 2
