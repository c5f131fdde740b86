"""Watches that topics are not deleted and created again while they are read.

A consumer of librdkafka goes on at its offset then. If the new log is longer, it skips the new records below that offset without
an error. Only the topic's id says that this has happened.
"""

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, Final

from confluent_kafka import KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from sinks.kafka.librdkafka import ClientErrors, KafkaFailed, client_config, new_client, reason_of
from sinks.library_log import LibraryLogger

_log: Final = LibraryLogger(__name__)
_ASK_S: Final = 5.0
"""For at most this time a recreated topic is taken for the old one, if its log has become longer meanwhile."""
_ANSWER_S: Final = 10.0
_UNKNOWN: Final = ("", str(None))


class TopicRecreated(KafkaFailed):
    """Topics were deleted and created again: offsets that were read are of other records.

    Attributes:
        topics: Names of these topics.
    """

    def __init__(self, topics: Iterable[str]) -> None:
        self.topics = tuple(sorted(topics))
        super().__init__(f"{', '.join(self.topics)}: deleted and created again")


class TopicIdWatch:
    """Knows the ids of some topics. One thread calls all methods.

    Args:
        options: Options of librdkafka.

    Raises:
        KafkaFailed: A file or a value of the options is of no use.

    Attributes:
        ids: By topic, as far as known.
        answers: How often all of them were compared.
    """

    def __init__(
        self,
        topics: Iterable[str],
        bootstrap_servers: str,
        options: Mapping[str, Any],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.ids: dict[str, str] = {}
        self.answers = 0
        self._topics = list(topics)
        self._errors = ClientErrors()
        self._client: Any = new_client(AdminClient, client_config(bootstrap_servers, options, self._errors))
        self._monotonic = monotonic
        self._asked: Mapping[str, Future[Any]] = {}
        self._ask_again_s = monotonic()

    def ask(self) -> frozenset[str]:
        """Asks for the ids, and waits for the answer. Returns the topics that have another id than before. Raises KafkaFailed."""
        self._ask()
        try:
            for answer in self._asked.values():
                answer.result()
        except KafkaException as error:
            self._asked = {}
            raise self._errors.failed("the topics are not described", error) from error
        return self._compare()

    def check(self) -> None:
        """Asks every few seconds, and does not wait for the answer.

        Raises:
            TopicRecreated: Topics have other ids than before. It is raised once; the new ids hold from then on.
        """
        if not self._asked:
            if self._monotonic() >= self._ask_again_s:
                self._ask()
        elif all(answer.done() for answer in self._asked.values()) and (recreated := self._compare()):
            raise TopicRecreated(recreated)

    def _ask(self) -> None:
        self._ask_again_s = self._monotonic() + _ASK_S
        try:
            self._asked = self._client.describe_topics(TopicCollection(self._topics), request_timeout=_ANSWER_S)
        except KafkaException as error:
            raise KafkaFailed(f"the topics are not described: {reason_of(error)}") from error

    def _compare(self) -> frozenset[str]:
        asked, self._asked, found = self._asked, {}, dict[str, str]()
        for topic, answer in asked.items():
            with suppress(KafkaException):  # no broker answers, or there is no such topic at the moment
                found[topic] = str(answer.result().topic_id)
        known, self.ids = self.ids, self.ids | found
        self.answers += len(found) == len(asked)
        recreated = frozenset(topic for topic in found if is_another_topic(known.get(topic, ""), found[topic]))
        if recreated:
            _log.warning(
                "topic_recreated",
                topics=sorted(recreated),
                action="their readers begin anew; what they had not read of the old topics is gone",
            )
        return recreated


def is_another_topic(before: str, now: str) -> bool:
    """Returns True if the ids are known, and of different topics."""
    return before not in _UNKNOWN and now not in _UNKNOWN and before != now
