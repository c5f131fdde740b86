"""Keeps the order of a client's records when `messages` or `events` get more partitions.

A key's partition follows from the number of partitions. With more of them, a client's next record may be in another partition
than its last, and there is no order between partitions. So:
1. The query reads those partitions with which the checkpoint began, and no others. The checkpoint records their number
   (`inflight.partitions`). Inflight 0.1.0 did not; then Spark's offset log tells it.
2. An engine that sees another number while it runs stops (`PartitionsChanged`). That includes `commands`: a gateway may already
   have connections in a partition that this engine does not know.
3. The next start first reads the old partitions to their present end, and then all (`AddedPartitions`).
Gateways and bridges stop by themselves, too (sinks/kafka/topic_partitions.py), and write to the new partitions after a restart.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import structlog
from kafka import KafkaAdminClient

from streaming.archive.tables import topics_of
from streaming.background import KafkaPoller
from streaming.checkpoint_topics import TopicIds, replaced_topics
from streaming.config.errors import TopicsReplaced
from streaming.config.settings import Settings
from streaming.engine.errors import PartitionsChanged
from streaming.engine.kafka_access import end_offsets
from streaming.spark_internals.checkpoint import CheckpointFiles, Offsets, planned_offsets
from streaming.topics import topic_id

PartitionCounts = Mapping[str, int]
"""Number of partitions by topic."""
_FILE: Final = "inflight.partitions"

_log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AddedPartitions:
    """Topics that have got more partitions since the checkpoint began.

    Attributes:
        old: The numbers of partitions with which it began.
        ends: Where the old partitions end, as far as records wait in them.
    """

    old: PartitionCounts
    ends: Offsets

    def are_old_read(self, offsets: Offsets) -> bool:
        """Returns True if a micro-batch that ends at these offsets leaves nothing in the old partitions."""
        return all(
            offsets.get(topic, {}).get(number, 0) >= end for topic, ends in self.ends.items() for number, end in ends.items()
        )


def added_partitions(files: CheckpointFiles, settings: Settings, actual: PartitionCounts) -> AddedPartitions | None:
    """Returns None if the checkpoint reads all partitions, as a new one does.

    Args:
        actual: The numbers of partitions of `messages` and `events` in Kafka.

    Raises:
        PartitionsChanged: A topic has fewer partitions than before.
        KafkaUnreachable: Kafka does not answer, or refuses.
    """
    old = recorded_partitions(files, tuple(actual))
    if old is None or all(old.get(topic, count) == count for topic, count in actual.items()):
        return None
    if lost := [topic for topic, count in actual.items() if count < old.get(topic, count)]:
        raise PartitionsChanged(
            f"{', '.join(lost)}: fewer partitions than the checkpoint {files.path()} has read. The topic was deleted and made "
            "anew, and its records are gone. Start with a new engine.checkpoint_location if you accept to lose the sessions, too"
        )
    read = planned_offsets(files)
    ends = {
        topic: {number: end for number, end in by_number.items() if end > read.get(topic, {}).get(number, 0)}
        for topic, by_number in end_offsets(settings, {topic: range(count) for topic, count in old.items()}).items()
    }
    _log.info("partitions_added", before=dict(old), now=dict(actual), waiting_in_old=ends)
    return AddedPartitions(old=old, ends=ends)


def recorded_partitions(files: CheckpointFiles, topics: tuple[str, ...]) -> dict[str, int] | None:
    """Returns the numbers with which the checkpoint began; None for a new one."""
    if (counts := _recorded(files)) is not None:
        return counts
    logged = {topic: len(offsets) for topic, offsets in planned_offsets(files).items() if topic in topics}
    return logged or None


def record_partitions(files: CheckpointFiles, counts: PartitionCounts) -> None:
    """Makes the checkpoint read these from now on. Writes only what has changed."""
    if counts != _recorded(files):
        files.write(_FILE, json.dumps(dict(counts)).encode())


def _recorded(files: CheckpointFiles) -> dict[str, int] | None:
    """Returns None if there is no readable file."""
    return files.decoded(_FILE, msgspec.json.Decoder(dict[str, int]).decode, otherwise="the offset log is asked")


class PartitionWatch(KafkaPoller):
    """Compares the topics with those of the start, every few seconds in a `with`: the numbers of partitions, and the ids.

    Args:
        counts: The number of partitions of each topic where it must stay the same.
        ids: The ids of all topics that are read by offset.
    """

    _unknown = "partitions_unknown"

    def __init__(self, settings: Settings, counts: PartitionCounts, ids: TopicIds) -> None:
        super().__init__("inflight-partitions")
        self._options = settings.kafka.client_options()
        self._counts = counts
        self._ids = ids
        self._changed: str | None = None
        self._replaced: str | None = None

    def check(self) -> None:
        """Raises PartitionsChanged, TopicsReplaced."""
        if self._replaced is not None:
            raise TopicsReplaced(self._replaced)
        if self._changed is not None:
            raise PartitionsChanged(self._changed)

    def _connect(self) -> Any:
        return KafkaAdminClient(**self._options)

    def _poll(self, client: Any) -> None:
        found = client.describe_topics(list(self._ids.topics))
        now = {topic["name"]: topic for topic in found if topic["partitions"]}
        self._replaced = self._replaced or replaced(self._ids, {name: topic_id(topic) for name, topic in now.items()})
        self._changed = self._changed or changed(self._counts, {name: len(topic["partitions"]) for name, topic in now.items()})


def watched_ids(settings: Settings, ids: TopicIds) -> TopicIds:
    """Returns the ids of all topics that an engine reads by offset, or writes to at its start only."""
    topics = settings.topics
    watched = {topics.messages, topics.events, topics.commands, topics.leases, topics.routes}
    if settings.routing.enabled:
        watched.add(topics.subscriptions)
    if settings.archive.enabled:
        watched.update(*topics_of(settings).values())
    return TopicIds(topics={topic: ids.topics[topic] for topic in sorted(watched)})


def replaced(before: TopicIds, now: Mapping[str, str]) -> str | None:
    """Returns the reason to stop, for people; None if no topic was made anew.

    Args:
        now: The present ids by name.
    """
    if topics := replaced_topics(before, TopicIds(topics=dict(now))):
        return (
            f"{', '.join(topics)}: deleted and made anew while the engine ran. It stops, because the new one has other offsets, "
            "and not what the engine had written. Start it again: it writes what it can, or says what is lost and what to do "
            "(docs/operate/troubleshoot.md, A topic was made anew)"
        )
    return None


def changed(before: PartitionCounts, now: PartitionCounts) -> str | None:
    """Returns the reason to stop, for people; None if nothing has changed."""
    for topic, count in before.items():
        if (found := now.get(topic, count)) != count:
            return (
                f"{topic} has {found} partitions now, and had {count} when this engine started. It stops, so that the order of "
                "each client's records is kept; start it again, and it first reads what waits in the old ones "
                "(docs/operate/partitions.md, Adding partitions)"
            )
    return None
