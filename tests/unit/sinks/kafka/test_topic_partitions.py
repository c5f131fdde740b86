"""sinks.kafka.topic_partitions, on a producer that knows what the test tells it. In the event log: test_append.py."""

import asyncio

import pytest
from kafka.errors import KafkaTimeoutError

from sinks.kafka import topic_partitions
from sinks.kafka.topic_partitions import PartitionsAdded, TopicMissing, TopicPartitions
from tests.support.waiting import until


class Answering:
    """answers: of the next questions; the last one holds for all that follow."""

    def __init__(self, *answers: int | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[str] = []

    def partitions_for(self, topic: str) -> set[int]:
        self.asked.append(topic)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Exception):
            raise answer
        return set(range(answer))


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    for name in ("_METADATA_PAUSE_S", "_LOOK_S"):
        monkeypatch.setattr(topic_partitions, name, 0.001)
    return []


@pytest.fixture
def topics(told: list[str]) -> TopicPartitions:
    return TopicPartitions(lambda: told.append("added"))


def test_a_topic_that_was_created_a_moment_ago_is_waited_for(topics: TopicPartitions) -> None:
    topics.learn(Answering(KafkaTimeoutError("no metadata"), 0, 3), ["events"])
    assert topics.count("events") == 3


@pytest.mark.parametrize("answer", [0, KafkaTimeoutError("no metadata")])
def test_one_that_does_not_come_is_named(
    topics: TopicPartitions, monkeypatch: pytest.MonkeyPatch, answer: int | Exception
) -> None:
    monkeypatch.setattr(topic_partitions, "_METADATA_TIMEOUT_S", 0.01)
    with pytest.raises(TopicMissing, match="topic events does not exist, or may not be described") as missing:
        topics.learn(Answering(answer), ["events"])
    assert missing.value.__cause__ is (answer if isinstance(answer, Exception) else None)


def test_the_next_producer_knows_all_topics_whether_or_not_it_answers(topics: TopicPartitions) -> None:
    topics.learn(Answering(1), ["events", "uplink"])
    following = Answering(KafkaTimeoutError("no metadata"), 1)
    topics.fetch(following)
    assert following.asked == ["events", "uplink"]


def test_only_another_number_is_told_and_only_once(topics: TopicPartitions, told: list[str]) -> None:
    topics.learn(Answering(3), ["events"])

    async def main() -> None:
        producers = [None, Answering(3), Answering(KafkaTimeoutError("no metadata")), Answering(0), Answering(7)]
        topics.watch(lambda: producers.pop(0))
        await until(lambda: told, "the growth is noticed", within_s=20)
        assert not producers, "nothing before it counted"
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert told == ["added"]
    assert topics.count("events") == 3
    with pytest.raises(PartitionsAdded, match="events has 7 partitions now, and had 3 when this process started"):
        topics.check()


def test_who_has_stopped_does_not_look_any_more(topics: TopicPartitions, told: list[str]) -> None:
    topics.learn(Answering(3), ["events"])

    async def main() -> None:
        topics.watch(lambda: Answering(7))
        topics.stop()
        await asyncio.sleep(0.01)

    asyncio.run(main())
    assert told == []
    topics.check()
