"""sinks.routing.source_topics. With a broker: tests/integration/kafka/test_recreated_topics.py."""

from dataclasses import dataclass

import pytest

from sinks.kafka.topic_ids import TopicRecreated
from sinks.routing.source_topics import SourceTopics

PARTITION = ("uplink", 1)


@dataclass(frozen=True)
class Publication:
    offset: int
    timestamp: int


class Watch:
    """A TopicIdWatch. recreated: what the next question finds."""

    def __init__(self) -> None:
        self.ids = {"uplink": "1"}
        self.answers = 0
        self.recreated: frozenset[str] = frozenset()

    def ask(self) -> frozenset[str]:
        self.answers += 1
        recreated, self.recreated = self.recreated, frozenset()
        return recreated

    def check(self) -> None:
        if recreated := self.ask():
            raise TopicRecreated(recreated)


def routed(topics: SourceTopics, *publications: Publication) -> list[bool]:
    return [topics.was_routed(PARTITION, each) for each in publications]


def test_what_was_routed_before_it_was_noticed_is_left_out() -> None:
    watch = Watch()
    topics = SourceTopics(watch)
    topics.ask()
    proven, old, new, unconfirmed = (Publication(offset, 100 + offset) for offset in (4, 5, 6, 7))
    topics.note_routed(PARTITION, [proven])
    topics.check()
    topics.check()
    topics.note_routed(PARTITION, [old, new])
    topics.finished({PARTITION: 7})
    topics.note_routed(PARTITION, [unconfirmed])
    watch.recreated = frozenset(["uplink"])
    with pytest.raises(TopicRecreated):
        topics.check()
    assert not topics.has_routed_before
    topics.ask()
    assert topics.has_routed_before
    assert topics.recreated == {"uplink"}
    assert routed(topics, proven, new, unconfirmed) == [False, True, False]
    another_time = Publication(old.offset, 999)
    assert routed(topics, another_time) == [False], "the new log has another publication there"
    assert not topics.was_routed(("uplink", 2), new)


def test_new_clients_on_the_same_topics_route_everything_again() -> None:
    topics = SourceTopics(Watch())
    topics.ask()
    topics.note_routed(PARTITION, [Publication(1, 1)])
    topics.finished({PARTITION: 2})
    topics.ask()
    assert not topics.has_routed_before


def test_a_topic_that_is_recreated_twice_keeps_the_last_time_only() -> None:
    watch = Watch()
    topics = SourceTopics(watch)
    for offset in (1, 2):
        watch.recreated = frozenset(["uplink"])
        topics.ask()
        topics.note_routed(PARTITION, [Publication(offset, offset)])
        topics.finished({PARTITION: offset + 1})
    watch.recreated = frozenset(["uplink"])
    topics.ask()
    assert routed(topics, Publication(1, 1), Publication(2, 2)) == [False, True]
