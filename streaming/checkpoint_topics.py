"""Ties a checkpoint to the topics that its offsets are of: they say nothing about a topic that was deleted and made anew.

1. A checkpoint keeps the ids of its topics and of their Kafka (`inflight.topics`), written before its query first reads them. A
   checkpoint of a version without this file gets it at its next start.
2. Before each start of the query they are compared with Kafka's. With other ids nothing is read: new records would be skipped up
   to the old offsets, without an error.
3. The offsets must lie between the beginning and the end of each partition. Kafka may have deleted what was not read, or have
   lost the end of a partition with a disk.
4. A checkpoint that has gone on with a recreated topic counts that: the generation of the topic (`inflight.generations`). It
   makes the partitions of the topic other ones for the sessions (docs/decisions/0050-recreated-topics.md).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import msgspec
import structlog
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from streaming.config.errors import DamagedCheckpoint, KafkaUnreachable, RecordsGone, TopicsReplaced
from streaming.spark_internals.checkpoint import CheckpointFiles, Offsets, committed_offsets, planned_offsets
from streaming.topics import TopicReport

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_FILE: Final = "inflight.topics"
_GENERATIONS_FILE: Final = "inflight.generations"
_log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointUse:
    """A query's use of its topics: it reads them into its checkpoint.

    Attributes:
        lost: What is gone with the records, for people.
        cure: What to do if its topics were made anew or have lost records.
        accept: How to go on without the records that are gone; empty = not at all.
        is_loss_accepted: Going on without these records was chosen.
    """

    lost: str
    cure: str
    accept: str = ""
    is_loss_accepted: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class GoneRecords:
    """Records of a partition that Kafka has deleted and a checkpoint has not read: from `first` on, `end` is the oldest left.

    Attributes:
        is_recreated: They went with a topic that was deleted. Nobody knows where it ended: `end` is the least that it can have
            been.
    """

    topic: str
    partition: int
    first: int
    end: int
    is_recreated: bool = False

    @property
    def count(self) -> int:
        """Returns the offsets between them: the number of records, with those of transactions' ends and of compaction."""
        return self.end - self.first

    @property
    def count_text(self) -> str:
        """Returns the number for people."""
        if not self.is_recreated:
            return str(self.count)
        return f"unknown, at least {self.count}" if self.count else "unknown"

    def __str__(self) -> str:
        where = f"{self.topic}-{self.partition} from {self.first}"
        return f"{where} on, in the deleted topic ({self.count_text})" if self.is_recreated else f"{where} to {self.end}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicBounds:
    """Offsets of the oldest record and after the newest one, by topic and partition."""

    beginnings: Offsets
    ends: Offsets


class TopicIds(msgspec.Struct, frozen=True, kw_only=True):
    """The content of the file. An empty id is unknown, and equal to any other.

    Attributes:
        cluster: The id of Kafka.
        topics: The ids of the topics, by name.
    """

    cluster: str = ""
    topics: dict[str, str] = msgspec.field(default_factory=dict)

    @classmethod
    def of(cls, report: TopicReport) -> "TopicIds":
        """Returns Kafka's ids of all topics in a report."""
        return cls(cluster=report.cluster_id, topics={topic.name: topic.topic_id for topic in report.topics})


def check_checkpoint_topics(files: CheckpointFiles, settings: "Settings", report: TopicReport, use: CheckpointUse) -> None:
    """Compares a checkpoint with the topics in Kafka. Call it before the query starts. A new checkpoint fits all.

    Args:
        report: The report of the topics that exist.

    Raises:
        TopicsReplaced: The offsets are not those of the topics, which were made anew or have lost their newest records.
        RecordsGone: Kafka no longer has records that the checkpoint has not read.
        DamagedCheckpoint: A file of the checkpoint is damaged.
        KafkaUnreachable: Kafka does not answer, or refuses.
    """
    read = planned_offsets(files)
    recorded_generations(files)
    if not read:
        return
    known = _recorded(files)
    foreign = list(_foreign(read, known, report, settings.kafka.bootstrap_servers))
    recreated = _recreated(read, known, report)
    may_go_on = not foreign and bool(committed_offsets(files))
    if foreign or (recreated and not (may_go_on and use.is_loss_accepted)):
        raise TopicsReplaced(
            f"the checkpoint {files.path()} does not fit the topics:\n{_lines([*foreign, *recreated.values()])}\n"
            "Its offsets are of other records, so nothing is read, and the checkpoint was not changed. "
            f"{_cures(use) if may_go_on else use.cure}"
        )
    read = {topic: offsets for topic, offsets in read.items() if topic not in recreated}
    bounds = topic_bounds(settings, read)
    if lost := list(_behind_the_end(read, bounds.ends)):
        was_made_anew = "it was made anew, or Kafka" if known is None else "it is the same topic, so Kafka"
        raise TopicsReplaced(
            f"Kafka ends before what the checkpoint {files.path()} has read:\n{_lines(lost)}\n{was_made_anew} has lost the "
            "newest records: with a disk, by an unclean leader election, or because an older copy of its data was put back. New "
            f"records at these offsets would be skipped, so nothing is read, and the checkpoint was not changed. {use.cure}"
        )
    gone = _before_the_beginning({topic: committed_offsets(files).get(topic, {}) for topic in read}, bounds.beginnings)
    if gone and not use.is_loss_accepted:
        raise RecordsGone(
            f"Kafka no longer has what the checkpoint {files.path()} has not read:\n{_lines(map(str, gone))}\nThese records are "
            f"gone for {use.lost}: the retention of the topic has passed, or somebody has deleted records. Put back a newer copy "
            "of the checkpoint if there is one (docs/operate/upgrade.md, A copy of the checkpoint). If there is none: "
            f"{_cures(use)}"
        )


def gone_records(files: CheckpointFiles, settings: "Settings", report: TopicReport) -> list[GoneRecords]:
    """Returns what the checkpoint has not read and cannot read any more. Raises KafkaUnreachable.

    What is missing of a recreated topic is the rest of the old one, and what Kafka has deleted of the new one.
    """
    committed, planned = committed_offsets(files), planned_offsets(files)
    if not committed:
        return []
    recreated = recreated_topics(files, settings, report)
    kept = {topic: offsets for topic, offsets in committed.items() if topic not in recreated}
    rests = [
        GoneRecords(
            topic=topic, partition=number, first=offset, end=max(offset, planned[topic].get(number, 0)), is_recreated=True
        )
        for topic in recreated
        for number, offset in sorted(committed.get(topic, {}).items())
    ]
    from_zero = {topic: dict.fromkeys(beginnings, 0) for topic, beginnings in recreated.items()}
    return [
        *(_before_the_beginning(kept, topic_bounds(settings, kept).beginnings) if kept else ()),
        *rests,
        *_before_the_beginning(from_zero, recreated),
    ]


def recreated_topics(files: CheckpointFiles, settings: "Settings", report: TopicReport) -> Offsets:
    """Returns the topics that were recreated since the checkpoint read them, and where they begin. Raises KafkaUnreachable."""
    recreated = _recreated(planned_offsets(files), _recorded(files), report)
    asked = {topic: dict.fromkeys(range(report.partitions[topic]), 0) for topic in recreated}
    return topic_bounds(settings, asked).beginnings if asked else {}


def recorded_generations(files: CheckpointFiles) -> dict[str, int]:
    """Returns how often the checkpoint has gone on with a recreated topic, by topic. Raises DamagedCheckpoint."""
    data = files.read(_GENERATIONS_FILE)
    try:
        return {} if data is None else msgspec.json.decode(data, type=dict[str, int])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise DamagedCheckpoint(
            f"{files.path(_GENERATIONS_FILE)} is damaged: {error}. Without it new messages could be taken for old ones, so "
            "nothing is read, and the checkpoint was not changed. Put back a copy of the whole checkpoint "
            "(docs/operate/upgrade.md, A copy of the checkpoint)"
        ) from error


def count_recreated(files: CheckpointFiles, topics: Iterable[str]) -> None:
    """Begins the next generation of these topics."""
    generations = recorded_generations(files)
    generations |= {topic: generations.get(topic, 0) + 1 for topic in topics}
    files.write(_GENERATIONS_FILE, msgspec.json.encode(generations, order="sorted"))


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


def _foreign(read: Offsets, known: TopicIds | None, report: TopicReport, servers: str) -> Iterator[str]:
    """Yields, for people, why the offsets are not those of this Kafka, or of these topics."""
    found = TopicIds.of(report)
    if known is not None and _differ(known.cluster, found.cluster):
        yield (
            f"it was written with another Kafka (cluster {known.cluster}); {servers} is cluster {found.cluster}. If that is the "
            "wrong one, set kafka.bootstrap_servers"
        )
    for topic in read.keys() - found.topics.keys():
        yield f"{topic}: the checkpoint has read it, and the configuration does not name it (topics.prefix, exchanges)"


def _recreated(read: Offsets, known: TopicIds | None, report: TopicReport) -> dict[str, str]:
    """Returns the topics that were deleted and created again, and for people how that is known."""
    found, partitions = TopicIds.of(report), report.partitions
    texts: dict[str, str] = {}
    for topic, offsets in read.items():
        up_to = ", ".join(f"{number}: {offset}" for number, offset in sorted(offsets.items()))
        if topic not in partitions:
            continue
        if known is not None and topic in replaced_topics(known, found):
            texts[topic] = (
                f"{topic}: deleted and made anew (its id was {known.topics[topic]}, and is {found.topics[topic]}). The old "
                f"records are gone, also those that were not read. The checkpoint has read up to these offsets: {up_to}"
            )
        elif len(offsets) > partitions[topic]:
            texts[topic] = (
                f"{topic}: made anew: it has {partitions[topic]} partitions, and the checkpoint has read {len(offsets)}"
            )
    return texts


def _cures(use: CheckpointUse) -> str:
    return f"{use.accept} Or: {use.cure}" if use.accept else use.cure


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
