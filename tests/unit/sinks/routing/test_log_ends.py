from collections.abc import Sequence

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sinks.kafka.librdkafka import KafkaFailed
from sinks.routing.log_ends import END, log_offsets


class Client:
    """Fails with these errors, then answers."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)

    def offsets_for_times(self, asked: Sequence[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert timeout
        if self.errors:
            raise KafkaException(KafkaError(self.errors.pop(0)))
        return [TopicPartition(one.topic, one.partition, 7) for one in asked]


def test_a_broker_that_has_started_again_is_asked_again() -> None:
    assert log_offsets(Client(KafkaError.FENCED_LEADER_EPOCH), [("t", 0)], END) == {("t", 0): 7}


@pytest.mark.parametrize("errors", [(KafkaError._TIMED_OUT,), (KafkaError.FENCED_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH)])
def test_other_failures_are_left_to_a_new_client(errors: tuple[int, ...]) -> None:
    with pytest.raises(KafkaFailed, match="the ends of t are not known"):
        log_offsets(Client(*errors), [("t", 0)], END)
