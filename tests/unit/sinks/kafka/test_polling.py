"""A consumer knows its partitions before it reads; one of a group stays the same while its broker is away."""

import threading
from typing import Any

import pytest
from kafka.errors import FencedInstanceIdError, KafkaConnectionError

from sinks.kafka import polling
from sinks.kafka.polling import poll, subscribe


class Consumer:
    def __init__(self, *outcomes: Any) -> None:
        self.outcomes = list(outcomes)

    def poll(self, timeout_ms: int) -> Any:
        assert timeout_ms == 200
        outcome = self.outcomes.pop(0)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


def test_a_broker_that_is_away_brings_nothing_and_the_next_poll_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polling, "_WITHOUT_BROKER_S", 0.0)
    consumer = Consumer(KafkaConnectionError("111 ECONNREFUSED"), {"partition": ["record"]})
    assert poll(consumer, 200) == {}
    assert poll(consumer, 200) == {"partition": ["record"]}


def test_every_other_error_is_one() -> None:
    with pytest.raises(FencedInstanceIdError):
        poll(Consumer(FencedInstanceIdError("another one")), 200)


class Forgetful:
    """Its first answers to `topics` lack the second topic."""

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
def test_a_consumer_knows_all_its_topics_after_subscribe(
    monkeypatch: pytest.MonkeyPatch, stopping: threading.Event | None
) -> None:
    monkeypatch.setattr(polling, "_METADATA_PAUSE_S", 0.0)
    consumer = Forgetful(3)
    assert subscribe(consumer, ["one", "two"], stopping=stopping)
    assert consumer.answers == -1


def test_whoever_stops_does_not_wait_for_a_topic_that_is_missing() -> None:
    stopping = threading.Event()
    stopping.set()
    assert not subscribe(Forgetful(1_000), ["one", "two"], stopping=stopping)
