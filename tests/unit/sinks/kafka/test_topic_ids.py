"""sinks.kafka.topic_ids, with an administration that answers what the test says. With a broker: tests/integration/kafka."""

from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from sinks.kafka import topic_ids
from sinks.kafka.librdkafka import KafkaFailed
from sinks.kafka.topic_ids import TopicIdWatch, TopicRecreated


@dataclass
class Description:
    topic_id: str


class Admin:
    """confluent_kafka.admin.AdminClient. ids: by topic; one that is missing does not exist."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.ids = {"a": "1", "b": "2"}
        self.waiting: list[Future[Description]] = []
        self.asked = 0
        self.answers_at_once = True

    def describe_topics(self, topics: Any, request_timeout: float) -> dict[str, Future[Description]]:
        self.asked += 1
        futures = {}
        for topic in ("a", "b"):
            futures[topic] = Future[Description]()
            if topic in self.ids:
                futures[topic].set_result(Description(self.ids[topic]))
            else:
                futures[topic].set_exception(KafkaException(KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)))
        if not self.answers_at_once:
            futures["a"] = Future[Description]()
            self.waiting.append(futures["a"])
        return futures


class Site:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(topic_ids, "AdminClient", Admin)
        self.now_s = 0.0
        self.watch = TopicIdWatch(["a", "b"], "x:1", {}, monotonic=lambda: self.now_s)
        self.admin: Admin = self.watch._client

    def check_later(self) -> None:
        """Asks, and looks at the answer."""
        self.now_s += topic_ids._ASK_S
        self.watch.check()
        self.watch.check()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Site:
    return Site(monkeypatch)


def test_a_topic_with_another_id_is_named_once(site: Site) -> None:
    assert site.watch.ask() == frozenset()
    site.check_later()
    site.admin.ids["b"] = "3"
    with pytest.raises(TopicRecreated, match="b: deleted and created again") as raised:
        site.check_later()
    assert raised.value.topics == ("b",)
    assert site.watch.ids == {"a": "1", "b": "3"}
    site.check_later()
    site.admin.ids |= {"a": "4", "b": "5"}
    assert site.watch.ask() == {"a", "b"}
    assert site.watch.ask() == frozenset()


def test_it_asks_every_few_seconds_and_does_not_wait(site: Site) -> None:
    site.admin.answers_at_once = False
    for _ in range(3):
        site.watch.check()
    assert (site.admin.asked, site.watch.answers) == (1, 0)
    site.admin.waiting.pop().set_result(Description("1"))
    site.watch.check()
    assert (site.watch.ids, site.watch.answers) == ({"a": "1", "b": "2"}, 1)
    site.watch.check()
    assert site.admin.asked == 1
    site.now_s += topic_ids._ASK_S
    site.watch.check()
    assert site.admin.asked == 2


def test_a_deleted_topic_is_asked_for_until_it_is_there_again(site: Site) -> None:
    site.watch.ask()
    del site.admin.ids["a"]
    site.check_later()
    assert site.watch.ids == {"a": "1", "b": "2"}
    assert site.watch.answers == 1, "not all were compared"
    with pytest.raises(KafkaFailed, match="the topics are not described"):
        site.watch.ask()
    site.admin.ids["a"] = "9"
    with pytest.raises(TopicRecreated):
        site.check_later()


def test_brokers_that_give_no_ids_say_nothing(site: Site) -> None:
    site.admin.ids = {"a": "None", "b": "2"}
    site.watch.ask()
    site.admin.ids = {"a": "1", "b": "None"}
    assert site.watch.ask() == frozenset()
