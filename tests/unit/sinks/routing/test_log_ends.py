from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from sinks.kafka.librdkafka import KafkaFailed
from sinks.routing import log_ends
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


@pytest.mark.parametrize("error", [KafkaError.LEADER_NOT_AVAILABLE, KafkaError.NOT_LEADER_FOR_PARTITION])
def test_a_partition_that_was_just_made_is_asked_until_it_has_a_leader(error: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_ends, "_PAUSE_S", 0)
    assert log_offsets(Client(error, error), [("t", 0)], END) == {("t", 0): 7}
    without_leader = SimpleNamespace(topic="t", partition=0, offset=-1, error=KafkaError(error))
    client = Client()
    answers = [[without_leader], [TopicPartition("t", 0, 7)]]
    monkeypatch.setattr(client, "offsets_for_times", lambda *_, **__: answers.pop(0))
    assert log_offsets(client, [("t", 0)], END) == {("t", 0): 7}


def test_a_partition_without_a_leader_fails_after_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_ends, "_PATIENCE_S", 0)
    with pytest.raises(KafkaFailed, match="Leader not available"):
        log_offsets(Client(KafkaError.LEADER_NOT_AVAILABLE), [("t", 0)], END)


@pytest.mark.parametrize("errors", [(KafkaError._TIMED_OUT,), (KafkaError.FENCED_LEADER_EPOCH, KafkaError.FENCED_LEADER_EPOCH)])
def test_other_failures_are_left_to_a_new_client(errors: tuple[int, ...]) -> None:
    with pytest.raises(KafkaFailed, match="the ends of t are not known"):
        log_offsets(Client(*errors), [("t", 0)], END)
