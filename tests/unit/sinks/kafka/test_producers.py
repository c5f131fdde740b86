"""sinks.kafka.producers. With a broker that dies: tests/integration/gateway/test_gateway_kafka.py."""

import pytest
from kafka.errors import IllegalStateError, KafkaTimeoutError

from sinks.kafka.producers import abandon


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
def test_one_that_cannot_be_closed_is_marked_so_that_its_destructor_does_not_raise(error: Exception) -> None:
    producer = Producer(error)
    abandon(producer)
    assert producer._closed
