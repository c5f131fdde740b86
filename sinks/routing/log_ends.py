"""Asks Kafka where logs begin and end: one request to each broker for all partitions."""

import time
from collections.abc import Collection
from typing import Any, Final, TypeAlias

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sinks.kafka.librdkafka import KafkaFailed, reason_of

Partition: TypeAlias = tuple[str, int]
"""A topic and a number."""

END: Final = -1
BEGINNING: Final = -2
_ANSWER_S: Final = 10.0
_PATIENCE_S: Final = 10.0
_PAUSE_S: Final = 0.1
_NO_LEADER: Final = (KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.OFFSET_NOT_AVAILABLE)
"""Errors of a partition that was just made, or whose leader changes: it has a leader soon."""


def log_offsets(client: Any, partitions: Collection[Partition], which: int) -> dict[Partition, int]:
    """Returns the end or the beginning of each log. Blocks until all brokers have answered; a partition without a leader, as
    after its creation, is given some seconds.

    Args:
        client: A consumer that fetches nothing at the moment: a broker would answer a fetch that waits for records first.
        which: END or BEGINNING.

    Raises:
        KafkaFailed: A broker has not answered, or a partition has no leader for ten seconds.
    """
    # As a time, -1 stands for the end of a log and -2 for its beginning (ListOffsets).
    asked = [TopicPartition(topic, number, which) for topic, number in partitions]
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        try:
            found = _answered(client, asked)
        except KafkaException as error:
            if not _is_passing(error.args[0], deadline_s):
                topics = ", ".join(sorted({topic for topic, _ in partitions}))
                raise KafkaFailed(f"the ends of {topics} are not known: {reason_of(error)}") from error
        else:
            wrong = next((one for one in found if one.error is not None or one.offset < 0), None)
            if wrong is None:
                return {(one.topic, one.partition): one.offset for one in found}
            if not _is_passing(wrong.error, deadline_s):
                raise KafkaFailed(
                    f"the end of {wrong.topic}, partition {wrong.partition}, is not known: {wrong.error or 'no answer'}"
                )
        time.sleep(_PAUSE_S)


def _answered(client: Any, asked: list[TopicPartition]) -> Any:
    try:
        return client.offsets_for_times(asked, timeout=_ANSWER_S)
    except KafkaException as error:
        if error.args[0].code() != KafkaError.FENCED_LEADER_EPOCH:
            raise
        # A broker has restarted, or the leader has changed. librdkafka learns that from this error, but does not ask again.
        return client.offsets_for_times(asked, timeout=_ANSWER_S)


def _is_passing(error: KafkaError | None, deadline_s: float) -> bool:
    return error is not None and error.code() in _NO_LEADER and time.monotonic() < deadline_s
