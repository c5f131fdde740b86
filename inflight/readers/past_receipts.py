"""Searches `inflight.receipts` for receipts that were written before: after a restart of a backend, by message id."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

from confluent_kafka import Consumer, KafkaException, TopicPartition

from inflight.readers.topic_follower import check_error, offsets_of, reading_config
from sinks.kafka.group_consumer import polled
from sinks.kafka.librdkafka import ClientErrors, new_client
from sinks.kafka.partitioning import partition_of
from state.model import ClientId

_ANSWER_S: Final = 10.0
_POLL_S: Final = 1.0
_MOST_RECORDS: Final = 500
_AT_END: Final = -1
"""The offset that Kafka answers for a time after the newest record."""


class PastClient(NamedTuple):
    """A client whose receipts are looked for.

    Attributes:
        since_ms: Kafka stored the receipts at this time or later; milliseconds since 1970.
    """

    client_id: ClientId
    since_ms: int


def read_past(
    topic: str,
    bootstrap_servers: str,
    options: Mapping[str, Any],
    clients: Iterable[PastClient],
    *,
    handle: Callable[[Any], None],
    is_stopping: Callable[[], bool],
) -> None:
    """Hands every record of the clients' partitions to `handle`, from the earliest `since_ms` of a partition to its present end.

    One pass serves all clients, so a backend that restarts asks for all that it awaits at once. Raises KafkaFailed.
    """
    errors = ClientErrors()
    client = new_client(Consumer, reading_config(topic, bootstrap_servers, options, errors, {"enable.partition.eof": True}))
    try:
        ends = {number: end for number, (_, end) in offsets_of(client, topic, errors).items()}
        since: dict[int, int] = defaultdict(lambda: 1 << 62)
        for client_id, since_ms in clients:
            number = partition_of(client_id.encode(), len(ends))
            since[number] = min(since[number], since_ms)
        try:
            asked = [TopicPartition(topic, number, since_ms) for number, since_ms in since.items()]
            starts = {one.partition: one.offset for one in client.offsets_for_times(asked, timeout=_ANSWER_S)}
        except KafkaException as error:
            raise errors.failed(topic, error) from error
        unread = {number: start for number, start in starts.items() if start != _AT_END and start < ends[number]}
        client.assign([TopicPartition(topic, number, start) for number, start in unread.items()])
        while unread and not is_stopping():
            for message in polled(client, _POLL_S, _MOST_RECORDS):
                number, wrong = message.partition(), message.error()
                if wrong is not None:
                    check_error(wrong)
                elif message.offset() < ends[number]:
                    handle(message)
                # At the end of a partition the offset is that of the record that will come.
                if message.offset() + (wrong is None) >= ends[number]:
                    unread.pop(number, None)
    finally:
        client.close()
