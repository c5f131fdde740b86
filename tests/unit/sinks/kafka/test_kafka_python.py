"""sinks.kafka.kafka_python. With a broker that dies: tests/integration/gateway/test_gateway_kafka.py."""

import threading

import pytest
from kafka.errors import IllegalStateError, KafkaConnectionError, KafkaTimeoutError

from sinks.kafka import kafka_python
from sinks.kafka.kafka_python import abandon, subscribe


class Sender:
    def __init__(self, calls: list[str]) -> None:
        self.calls = calls

    def force_close(self) -> None:
        self.calls.append("force_close")

    def join(self, timeout: float) -> None:
        self.calls.append("join")


class Producer:
    def __init__(self, error: Exception | None = None) -> None:
        self.calls: list[str] = []
        self.error = error
        self._sender = Sender(self.calls)
        self._closed = False

    def close(self, timeout: float) -> None:
        self.calls.append(f"close {timeout:g}")
        if self.error is not None:
            raise self.error
        self._closed = True


def test_an_abandoned_producers_thread_ends_before_the_producer_is_closed() -> None:
    producer = Producer()
    abandon(producer)
    assert producer.calls == ["force_close", "join", "close 0"]


@pytest.mark.parametrize("error", [KafkaTimeoutError("records"), IllegalStateError("batch")])
def test_the_destructor_of_one_that_cannot_be_closed_does_not_raise(error: Exception) -> None:
    producer = Producer(error)
    abandon(producer)
    assert producer._closed


class Forgetful:
    """A client whose first answers to `topics` lack the second topic."""

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.subscribed: list[str] = []

    def subscribe(self, topics: list[str], listener: object) -> None:
        self.subscribed = topics

    def topics(self) -> set[str]:
        assert self.subscribed, "what it learns before does not count"
        self.answers -= 1
        return {"one"} if self.answers >= 0 else {"one", "two", "other"}


@pytest.mark.parametrize("stopping", [None, threading.Event()])
def test_a_consumer_has_metadata_of_all_its_topics_after_subscribe(
    monkeypatch: pytest.MonkeyPatch, stopping: threading.Event | None
) -> None:
    monkeypatch.setattr(kafka_python, "_METADATA_PAUSE_S", 0.0)
    consumer = Forgetful(3)
    assert subscribe(consumer, ["one", "two"], stopping=stopping)
    assert consumer.answers == -1


def test_a_stop_ends_the_wait_for_a_missing_topic() -> None:
    stopping = threading.Event()
    stopping.set()
    assert not subscribe(Forgetful(1_000), ["one", "two"], stopping=stopping)


def test_the_reason_for_the_end_of_a_connection_is_read_before_it() -> None:
    """A broker refuses a login and closes at once; kafka-python would only say that the socket is disconnected."""
    ended = KafkaConnectionError("socket disconnected")
    reads = iter([(b"login refused", ended), (b"", ended)])
    assert kafka_python._data_before_the_end(lambda: next(reads)) == (b"login refused", None)
    assert kafka_python._data_before_the_end(lambda: next(reads)) == (b"", ended)
