"""Ties a checkpoint to the topics that its offsets are of: they say nothing about a topic that was deleted and made anew.

1. A checkpoint keeps the ids of its topics and of their Kafka (`inflight.topics`), written before its query first reads them. A
   checkpoint of a version without this file gets it at its next start.
2. Before each start of the query they are compared with Kafka's. With other ids nothing is read: new records would be skipped up
   to the old offsets, without an error.
3. The offsets must lie between the beginning and the end of each partition. Kafka may have deleted what was not read, or have
   lost the end of a partition with a disk.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from streaming.config.errors import KafkaUnreachable, RecordsGone, TopicsReplaced
from streaming.spark_internals.checkpoint import CheckpointFiles, Offsets, committed_offsets, planned_offsets
from streaming.topics import TopicReport

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_FILE: Final = "inflight.topics"
_log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointUse:
    """A query's use of its topics: it reads them into its checkpoint.

    lost: what is gone with the records, for people. cure: what to do if its topics were made anew or have lost records.
    accept: how to go on without records that Kafka has deleted; empty = not at all. is_loss_accepted: that was chosen.
    """

    lost: str
    cure: str
    accept: str = ""
    is_loss_accepted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneRecords:
    """Records of a partition that Kafka has deleted and a checkpoint has not read: from `first` on, `end` is the oldest left."""

    topic: str
    partition: int
    first: int
    end: int

    @property
    def count(self) -> int:
        """Returns the offsets between them: the number of records, with those of transactions' ends and of compaction."""
        return self.end - self.first

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} from {self.first} to {self.end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBounds:
    """Offsets of the oldest record and after the newest one, by topic and partition."""

    beginnings: Offsets
    ends: Offsets


class TopicIds(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file. cluster: id of Kafka. topics: ids by name. An empty id is unknown, and equal to any other."""

    cluster: str = ""
    topics: dict[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, report: TopicReport) -> "TopicIds":
        """Returns Kafka's ids of all topics in a report."""
        return cls(cluster=report.cluster_id, topics={topic.name: topic.topic_id for topic in report.topics})


def check_checkpoint_topics(files: CheckpointFiles, settings: "Settings", report: TopicReport, use: CheckpointUse) -> None:
    """Compares a checkpoint with the topics in Kafka. Call it before the query starts. A new checkpoint fits all.

    report: of the topics that exist. Raises TopicsReplaced, RecordsGone, KafkaUnreachable.
    """
    read = planned_offsets(files)
    if not read:
        return
    known = _recorded(files)
    if replaced := list(_replaced(read, known, report, settings.kafka.bootstrap_servers)):
        raise TopicsReplaced(
            f"the checkpoint {files.path()} does not fit the topics:\n{_lines(replaced)}\n"
            f"Its offsets are of other records, so nothing is read, and the checkpoint was not changed. {use.cure}"
        )
    bounds = topic_bounds(settings, read)
    if lost := list(_behind_the_end(read, bounds.ends)):
        was_made_anew = "it was made anew, or Kafka" if known is None else "it is the same topic, so Kafka"
        raise TopicsReplaced(
            f"Kafka ends before what the checkpoint {files.path()} has read:\n{_lines(lost)}\n{was_made_anew} has lost the "
            "newest records: with a disk, by an unclean leader election, or because an older copy of its data was put back. New "
            f"records at these offsets would be skipped, so nothing is read, and the checkpoint was not changed. {use.cure}"
        )
    gone = _before_the_beginning(committed_offsets(files), bounds.beginnings)
    if gone and not use.is_loss_accepted:
        cures = f"{use.accept} Or: {use.cure}" if use.accept else use.cure
        raise RecordsGone(
            f"Kafka no longer has what the checkpoint {files.path()} has not read:\n{_lines(map(str, gone))}\nThese records are "
            f"gone for {use.lost}: the retention of the topic has passed, or somebody has deleted records. Put back a newer copy "
            f"of the checkpoint if there is one (docs/operate/upgrade.md, A copy of the checkpoint). If there is none: {cures}"
        )


def gone_records(files: CheckpointFiles, settings: "Settings") -> list[GoneRecords]:
    """Returns what Kafka has deleted and the checkpoint has not read. Raises KafkaUnreachable."""
    committed = committed_offsets(files)
    return _before_the_beginning(committed, topic_bounds(settings, committed).beginnings) if committed else []


def record_checkpoint_topics(files: CheckpointFiles, report: TopicReport, topics: Iterable[str]) -> None:
    """Records the ids of the topics that the checkpoint reads from now on. Call `check_checkpoint_topics` before."""
    now = TopicIds.of(report)
    found = TopicIds(cluster=now.cluster, topics={topic: now.topics.get(topic, "") for topic in sorted(topics)})
    before = _recorded(files)
    if found == before:
        return
    files.write(_FILE, msgspec.json.encode(found))
    if before is None and planned_offsets(files):
        _log.info("checkpoint_topics_recorded", file=files.path(_FILE), topics=found.topics, cluster=found.cluster)


def topic_bounds(settings: "Settings", partitions: Offsets) -> TopicBounds:
    """Asks Kafka for both ends of these partitions, open transactions included. Raises KafkaUnreachable."""
    consumer: Any = None
    try:
        consumer = KafkaConsumer(**settings.kafka.client_options() | {"group_id": None, "metrics_enabled": False})
        asked = [TopicPartition(topic, number) for topic, numbers in partitions.items() for number in numbers]
        return TopicBounds(beginnings=by_topic(consumer.beginning_offsets(asked)), ends=by_topic(consumer.end_offsets(asked)))
    except KafkaError as error:
        raise KafkaUnreachable.of(settings.kafka.bootstrap_servers, error) from error
    finally:
        if consumer is not None:
            consumer.close()


def replaced_topics(before: TopicIds, now: TopicIds) -> list[str]:
    """Returns the topics that have another id now. Topics without a known id are the same."""
    return [topic for topic, old in before.topics.items() if _differ(old, now.topics.get(topic, ""))]


def _replaced(read: Offsets, known: TopicIds | None, report: TopicReport, servers: str) -> Iterator[str]:
    """Yields, for people, why the offsets are not those of Kafka's topics."""
    found, partitions = TopicIds.of(report), {topic.name: topic.partitions for topic in report.topics}
    if known is not None and _differ(known.cluster, found.cluster):
        yield (
            f"it was written with another Kafka (cluster {known.cluster}); {servers} is cluster {found.cluster}. If that is the "
            "wrong one, set kafka.bootstrap_servers"
        )
    for topic, offsets in read.items():
        up_to = ", ".join(f"{number}: {offset}" for number, offset in sorted(offsets.items()))
        if topic not in found.topics:
            yield f"{topic}: the checkpoint has read it, and the configuration does not name it (topics.prefix, exchanges)"
        elif known is not None and topic in replaced_topics(known, found):
            yield (
                f"{topic}: deleted and made anew (its id was {known.topics[topic]}, and is {found.topics[topic]}). The old "
                f"records are gone, also those that were not read. The checkpoint has read up to these offsets: {up_to}"
            )
        elif len(offsets) > partitions[topic]:
            yield f"{topic}: made anew: it has {partitions[topic]} partitions, and the checkpoint has read {len(offsets)}"


def _behind_the_end(read: Offsets, ends: Offsets) -> Iterator[str]:
    for topic, offsets in read.items():
        for number, offset in offsets.items():
            if (end := ends.get(topic, {}).get(number, offset)) < offset:
                yield f"{topic}-{number} ends at {end}, and was read up to {offset}"


def _before_the_beginning(read: Offsets, beginnings: Offsets) -> list[GoneRecords]:
    return [
        GoneRecords(topic=topic, partition=number, first=offset, end=oldest)
        for topic, offsets in read.items()
        for number, offset in offsets.items()
        if (oldest := beginnings.get(topic, {}).get(number, offset)) > offset
    ]


def _recorded(files: CheckpointFiles) -> TopicIds | None:
    """Returns None if the checkpoint is of a version without the file, or the file is damaged."""
    return files.decoded(_FILE, msgspec.json.Decoder(TopicIds).decode, otherwise="it is written anew")


def _differ(one: str, other: str) -> bool:
    return bool(one) and bool(other) and one != other


def by_topic(offsets: Mapping[TopicPartition, int]) -> dict[str, dict[int, int]]:
    """Returns offsets by topic and partition."""
    found: dict[str, dict[int, int]] = {}
    for (topic, number), offset in offsets.items():
        found.setdefault(topic, {})[number] = offset
    return found


def _lines(problems: Iterable[str]) -> str:
    return "\n".join(f"  {problem}" for problem in problems)
