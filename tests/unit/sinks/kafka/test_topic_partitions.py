"""sinks.kafka.topic_partitions, on a client that knows what the test tells it. In the event log: test_append.py."""

import asyncio

import pytest

from sinks.kafka import topic_partitions
from sinks.kafka.librdkafka import KafkaFailed
from sinks.kafka.topic_partitions import PartitionsAdded, TopicMissing, TopicPartitions
from tests.support.waiting import until


class Answering:
    """answers: of the next questions; the last one holds for all that follow."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def partition_counts(self) -> dict[str, int]:
        """Topics without partitions are not there."""
        return {topic: count for topic in ("events", "uplink") if (count := self._next())}

    def partition_count(self, topic: str) -> int:
        self.asked.append(topic)
        return self._next()

    def _next(self) -> int:
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Half(Answering):
    """A client that lacks `uplink`."""

    def partition_counts(self) -> dict[str, int]:
        return {"events": self._next()}


NO_ANSWER = KafkaFailed("no broker answers")


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name in ("_METADATA_PAUSE_S", "_WATCH_INTERVAL_S"):
        monkeypatch.setattr(topic_partitions, name, 0.001)
    return []


@pytest.fixture
def topics(told: list[str]) -> TopicPartitions:
    return TopicPartitions(lambda: told.append("added"))


def test_a_topic_that_was_created_a_moment_ago_is_waited_for(topics: TopicPartitions) -> None:
    topics.learn(Answering(0, 0, 3), ["events"])
    assert topics.count("events") == 3


def test_one_that_does_not_come_is_named(topics: TopicPartitions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_partitions, "_METADATA_TIMEOUT_S", 0.01)
    with pytest.raises(TopicMissing, match="topic uplink does not exist, or may not be described"):
        topics.learn(Half(3), ["events", "uplink"])


def test_a_broker_that_does_not_answer_is_not_a_missing_topic(topics: TopicPartitions) -> None:
    with pytest.raises(KafkaFailed, match="no broker answers"):
        topics.learn(Answering(NO_ANSWER), ["events"])


def test_the_next_producer_is_asked_until_it_has_answered_for_all_topics(topics: TopicPartitions) -> None:
    topics.learn(Answering(1), ["events", "uplink"])
    following = Answering(1)
    topics.ask(following)
    assert following.asked == ["events", "uplink"]
    with pytest.raises(KafkaFailed):
        topics.ask(Answering(NO_ANSWER))


async def test_only_a_changed_number_is_reported_and_only_once(topics: TopicPartitions, told: list[str]) -> None:
    topics.learn(Answering(3), ["events"])
    clients = [None, Answering(3), Answering(NO_ANSWER), Answering(0), Answering(7)]
    topics.watch(lambda: clients.pop(0))
    await until(lambda: told, "the growth is noticed")
    assert not clients, "nothing before it counted"
    await asyncio.sleep(0.01)
    assert told == ["added"]
    assert topics.count("events") == 3
    with pytest.raises(PartitionsAdded, match="events has 7 partitions now, and had 3 when this process started"):
        topics.check()


async def test_a_stopped_watch_asks_no_more(topics: TopicPartitions, told: list[str]) -> None:
    topics.learn(Answering(3), ["events"])
    topics.watch(lambda: Answering(7))
    topics.stop()
    await asyncio.sleep(0.01)
    assert told == []
    topics.check()
