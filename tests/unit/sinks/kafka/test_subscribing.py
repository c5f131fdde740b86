"""A consumer of kafka-python knows its partitions before it reads."""

import threading

import pytest

from sinks.kafka import subscribing
from sinks.kafka.subscribing import subscribe


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
    monkeypatch.setattr(subscribing, "_METADATA_PAUSE_S", 0.0)
    consumer = Forgetful(3)
    assert subscribe(consumer, ["one", "two"], stopping=stopping)
    assert consumer.answers == -1


def test_whoever_stops_does_not_wait_for_a_topic_that_is_missing() -> None:
    stopping = threading.Event()
    stopping.set()
    assert not subscribe(Forgetful(1_000), ["one", "two"], stopping=stopping)
