"""The worker without a Kafka: callbacks, deadlines and the end."""

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from inflight import Cause, Producer, ProducerClosed, SendFailed
from inflight.local.child_process import free_port
from tests.support.waiting import wait_until


@pytest.fixture
def producer() -> Iterator[Producer]:
    """Yields a Producer whose broker address has no listener."""
    options: dict[str, Any] = {"attempt_timeout_ms": 100, "max_attempts": 2, "throttle_timeout_ms": 0, "max_pending_messages": 2}
    made = Producer(f"127.0.0.1:{free_port()}", registry=CollectorRegistry(), **options)
    yield made
    made.close(0.0)


def test_a_send_ends_by_the_clock_when_no_broker_answers(producer: Producer) -> None:
    with pytest.raises(SendFailed, match="all 2 attempts failed") as caught:
        producer.send("client", "a/b", b"x")
    assert [attempt.cause for attempt in caught.value.attempts] == [Cause.TIME_OUT] * 2
    assert not caught.value.may_be_sent


def test_a_callback_may_send_but_does_not_wait_for_room(producer: Producer) -> None:
    again: list[Any] = []

    def send_three(_: Any) -> None:
        again.extend(producer.send_async("client", "a/b", b"again") for _ in range(3))

    first = producer.send_async("client", "a/b", b"x")
    first.add_done_callback(send_three)
    wait_until(lambda: len(again) == 3, "the callback is done")
    outcomes = [future.exception(10) for future in again]
    assert all(isinstance(outcome, SendFailed) for outcome in outcomes)
    assert sum("no room" in str(outcome) for outcome in outcomes) == 1


def test_whoever_closes_finds_all_callbacks_called(producer: Producer) -> None:
    called = threading.Event()

    def slowly(_: Any) -> None:
        time.sleep(0.2)
        called.set()

    producer.send_async("client", "a/b", b"x").add_done_callback(slowly)
    producer.close(5.0)
    assert called.is_set()
    with pytest.raises(ProducerClosed):
        producer.send("client", "a/b", b"x")


def test_closing_ends_the_threads() -> None:
    before = threading.active_count()
    made = Producer(f"127.0.0.1:{free_port()}", registry=CollectorRegistry(), throttle_timeout_ms=0)
    future = made.send_async("client", "a/b", b"x")
    made.close(0.1)
    assert "closed" in str(future.exception(0))
    wait_until(lambda: threading.active_count() <= before, "all threads end")
