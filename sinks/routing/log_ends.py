"""Asks Kafka where logs begin and end: one request to each broker for all partitions."""

from collections.abc import Collection
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sinks.kafka.librdkafka import KafkaFailed, reason_of

Partition: TypeAlias = tuple[str, int]
"""A topic and a number."""

END: Final = -1
BEGINNING: Final = -2
_ANSWER_S: Final = 10.0


def log_offsets(client: Any, partitions: Collection[Partition], which: int) -> dict[Partition, int]:
    """Returns the end or the beginning of each log. Blocks until all brokers have answered.

    Args:
        client: A consumer that fetches nothing at the moment: a broker would answer a fetch that waits for records first.
        which: END or BEGINNING.

    Raises:
        KafkaFailed: A broker has not answered, or a partition has no leader.
    """
    # As a time, -1 stands for the end of a log and -2 for its beginning (ListOffsets).
    asked = [TopicPartition(topic, number, which) for topic, number in partitions]
    try:
        try:
            found = client.offsets_for_times(asked, timeout=_ANSWER_S)
        except KafkaException as error:
            if error.args[0].code() != KafkaError.FENCED_LEADER_EPOCH:
                raise
            # A broker has restarted, or the leader has changed. librdkafka learns that from this error, but does not ask again.
            found = client.offsets_for_times(asked, timeout=_ANSWER_S)
    except KafkaException as error:
        topics = ", ".join(sorted({topic for topic, _ in partitions}))
        raise KafkaFailed(f"the ends of {topics} are not known: {reason_of(error)}") from error
    offsets = {}
    for one in found:
        if one.error is not None or one.offset < 0:
            raise KafkaFailed(f"the end of {one.topic}, partition {one.partition}, is not known: {one.error or 'no answer'}")
        offsets[one.topic, one.partition] = one.offset
    return offsets
