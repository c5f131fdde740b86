"""Topics of Kafka, as tests make and read them."""

from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Final

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition

from tests.support.waiting import DEADLINE_S, wait_until

_POLL_MS: Final = 50
_FETCH_MS: Final = 500
"""The time for which the broker holds a fetch without new records; it answers at once when there are some."""


@dataclass(frozen=True)
class ReadRecord:
    """A record as a consumer sees it. Equal without offset and timestamp_ms: what must be the same when it is written again."""

    partition: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    offset: int = field(compare=False)
    timestamp_ms: int = field(compare=False)


def to_the_end(records: list[ReadRecord]) -> bool:
    """Tells `read_topic` to read what is in the topic now."""
    return True


def read_topic(
    bootstrap_servers: str,
    topic: str,
    enough: Callable[[list[ReadRecord]], bool] = to_the_end,
    *,
    within_s: float = DEADLINE_S,
    check: Callable[[], object] = lambda: None,
    isolation_level: str = "read_committed",
) -> list[ReadRecord]:
    """Returns the records of a topic, by partition and offset, up to its present end at least and until they are `enough`.

    check: raises when waiting is useless. Raises AssertionError at the deadline.
    """
    found: dict[tuple[int, int], ReadRecord] = {}
    records: list[ReadRecord] = []
    with _consumer(bootstrap_servers, isolation_level) as consumer:
        partitions = [TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)

        def at_the_end() -> bool:
            return all(consumer.position(partition) >= end for partition, end in ends.items())

        def complete() -> bool:
            batches = consumer.poll(timeout_ms=_POLL_MS)
            for batch in batches.values():
                for record in batch:
                    found[record.partition, record.offset] = ReadRecord(
                        record.partition, record.key, record.value, tuple(record.headers), record.offset, record.timestamp
                    )
            if batches:
                records[:] = [found[position] for position in sorted(found)]
            return at_the_end() and enough(records)

        if at_the_end() and enough(records):
            return records
        wait_until(complete, lambda: f"enough records in {topic}; {len(records)}: {records[:5]}", within_s=within_s, check=check)
    return records


@contextmanager
def _consumer(bootstrap_servers: str, isolation_level: str) -> Iterator[KafkaConsumer]:
    consumer = KafkaConsumer(
        bootstrap_servers=bootstrap_servers,
        group_id=None,
        enable_auto_commit=False,
        isolation_level=isolation_level,
        fetch_max_wait_ms=_FETCH_MS,
    )
    try:
        yield consumer
    finally:
        consumer.close()


def create_topics(bootstrap_servers: str, *names: str, partitions: int = 1, **configs: str) -> None:
    """Creates the missing topics. Returns when they can be used. configs: of each topic, with `_` for `.`."""
    wanted = {name.replace("_", "."): value for name, value in configs.items()}
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        topic = {"num_partitions": partitions, "replication_factor": 1, "configs": wanted}
        if missing := set(names) - set(admin.list_topics()):
            admin.create_topics(dict.fromkeys(sorted(missing), topic), wait_for_metadata=True)
            with closing(KafkaConsumer(bootstrap_servers=bootstrap_servers)) as consumer:  # it asks until all leaders answer
                consumer.end_offsets([TopicPartition(name, number) for name in sorted(missing) for number in range(partitions)])
    finally:
        admin.close()


def recreate_topics(bootstrap_servers: str, *names: str, partitions: int = 1, **configs: str) -> None:
    """Deletes topics, and creates them again at once, empty."""
    admin = KafkaAdminClient(bootstrap_servers=bootstrap_servers)
    try:
        admin.delete_topics(list(names))
        wait_until(lambda: not set(names) & set(admin.list_topics()), "the topics are deleted")
    finally:
        admin.close()
    create_topics(bootstrap_servers, *names, partitions=partitions, **configs)
