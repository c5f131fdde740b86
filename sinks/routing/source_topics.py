"""Knows which topics a matcher reads, and what it has routed of one that was recreated before it noticed that.

Until the ids of the topics are compared, a reader may go on in the new log at its old offset (sinks/kafka/topic_ids.py). What it
routed there has the old id in its source, so no session would recognize it when the new log is read from its beginning. It is
left out then. Offset and time tell such a publication from one of the old log.
"""

from array import array
from collections.abc import Iterable, Mapping
from typing import Protocol

from sinks.kafka.topic_ids import TopicRecreated
from sinks.routing.log_ends import Partition


class TimedRecord(Protocol):
    """A publication. timestamp: Milliseconds since 1970."""

    @property
    def offset(self) -> int: ...

    @property
    def timestamp(self) -> int: ...


class ComparedIds(Protocol):
    """A TopicIdWatch.

    Attributes:
        answers: How often all ids were compared.
    """

    ids: dict[str, str]
    answers: int

    def ask(self) -> frozenset[str]: ...

    def check(self) -> None: ...


class SourceTopics:
    """Survives the clients of a matcher. One thread calls all methods.

    Attributes:
        recreated: The topics that were recreated while this process ran.
    """

    def __init__(self, watch: ComparedIds) -> None:
        self.recreated: set[str] = set()
        self._watch = watch
        self._noticed: set[str] = set()
        self._answers = 0
        self._finished: dict[Partition, int] = {}
        self._newest: dict[Partition, array[int]] = {}
        self._older: dict[Partition, array[int]] = {}
        """Offset and time of each publication that was routed since the answer before the last one, one behind the other."""
        self._routed: dict[tuple[str, int, int], int] = {}

    @property
    def ids(self) -> Mapping[str, str]:
        return self._watch.ids

    def ask(self) -> None:
        """Blocks until the ids are known. Call it before new clients begin, and after the old ones have ended.

        Raises KafkaFailed.
        """
        self._noticed |= self._watch.ask()
        for topic in self._noticed:
            self._keep_routed(topic)
        self.recreated |= self._noticed
        self._noticed.clear()
        self._finished.clear()

    def check(self) -> None:
        """Raises TopicRecreated some seconds after a topic was recreated: new clients are the cure."""
        try:
            self._watch.check()
        except TopicRecreated as error:
            self._noticed.update(error.topics)
            raise
        if self._watch.answers != self._answers:
            self._answers = self._watch.answers
            self._older, self._newest = self._newest, {}

    def note_routed(self, partition: Partition, records: Iterable[TimedRecord]) -> None:
        """Notes publications that were routed, in the order of the log."""
        self._newest.setdefault(partition, array("q")).extend(
            value for each in records for value in (each.offset, each.timestamp)
        )

    def finished(self, ends: Mapping[Partition, int]) -> None:
        """Notes the offsets below which everything is confirmed."""
        self._finished.update(ends)

    @property
    def has_routed_before(self) -> bool:
        """Returns True if `was_routed` may be true of a publication."""
        return bool(self._routed)

    def was_routed(self, partition: Partition, record: TimedRecord) -> bool:
        """Returns True for a publication of a recreated topic that was routed before that was noticed."""
        return self._routed.get((*partition, record.offset)) == record.timestamp

    def _keep_routed(self, topic: str) -> None:
        self._routed = {position: time_ms for position, time_ms in self._routed.items() if position[0] != topic}
        for noted in (self._older, self._newest):
            for partition in [each for each in noted if each[0] == topic]:
                values, end = noted.pop(partition), self._finished.get(partition, 0)
                pairs = zip(values[::2], values[1::2], strict=True)
                self._routed |= {(*partition, offset): time_ms for offset, time_ms in pairs if offset < end}
