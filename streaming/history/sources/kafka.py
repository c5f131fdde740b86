"""Gives Kafka's topics as a source: everything that Inflight has written and that the topics still keep.

A consumer looks for one message, without Spark. For SQL, Spark reads the same ranges and makes the archive's columns of them.
A condition and the id of a dead letter therefore mean the same in both sources.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.archive.spark_rows import bound_table, dead_letter_rows, ledger_rows
from streaming.archive.tables import DEAD_LETTERS, LEDGER, RECEIPTS, bound_tables, topics_of
from streaming.history.sources.generation import messages_generation
from streaming.history.sources.kafka_ranges import OffsetRange, complete_since_ms, described
from streaming.history.sources.kafka_reader import reading
from streaming.history.sources.kafka_rows import RowsOfMessage, letters_of, replays_of
from streaming.history.sources.source import MessageRows, Row, SourceLimits

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_MANY: Final = 200_000
"""Records that are read in a few seconds. Spark is quicker from some number of records on."""


class KafkaSource:
    """The topics of Kafka.

    Args:
        on_progress: Called repeatedly with (records read, records to read) while `of_message` reads.
    """

    def __init__(
        self, settings: "Settings", limits: SourceLimits, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._on_progress = on_progress
        self._topics = topics_of(settings)
        self._read: dict[str, list[OffsetRange]] = {}

    def of_message(self, message_id: str) -> MessageRows:
        topics = self._settings.topics
        names = [*self._topics[LEDGER.name], *self._topics[DEAD_LETTERS.name], *self._topics[RECEIPTS.name], topics.messages]
        # Backends choose the key of a publication, so with a client only what that client published can be found.
        of_routing = [topics.uplink] if self._limits.client_id else [topics.uplink, topics.publications]
        with reading(self._settings) as reader:
            is_position = message_id.startswith(f"{topics.messages}-")
            generation = messages_generation(self._settings, reader) if is_position else 0
            found = RowsOfMessage(message_id, topics, self._limits.client_id, generation=generation)
            if self._settings.routing.enabled:
                names += [name for name in of_routing if reader.has(name)]
            ranges = reader.ranges(names, self._limits)
            self._remember(ranges)
            for record in reader.records(ranges, self._on_progress):
                found.add(record)
        return found.rows

    def table(self, spark: SparkSession, name: str, *, containing: str | None = None) -> DataFrame:
        """Returns the client's `dead_letters`, or the whole `ledger`, because it says what was replayed to anybody."""
        limits = self._limits
        records = read_ranges(spark, self._settings, self._ranges(name))
        if containing is not None:
            records = records.where(F.contains(F.col("value"), F.lit(containing.encode())))
        if name != DEAD_LETTERS.name:
            return ledger_rows(records).dropDuplicates(list(LEDGER.key))
        others = bound_table([spec.name for spec in bound_tables(self._settings)])
        rows = dead_letter_rows(records.where(others.isNull())).dropDuplicates(list(DEAD_LETTERS.key))
        return rows if limits.client_id is None else rows.where(F.col("client_id") == F.lit(limits.client_id))

    def plain_letters(self) -> Iterator[Row] | None:
        ranges = self._ranges(DEAD_LETTERS.name)
        return None if _are_many(ranges) else self._plain_letters(ranges)

    def plain_replays(self) -> frozenset[str] | None:
        ranges = self._ranges(LEDGER.name)
        if _are_many(ranges):
            return None
        with reading(self._settings) as reader:
            return frozenset(replays_of(reader.records(ranges, self._on_progress)))

    def _plain_letters(self, ranges: list[OffsetRange]) -> Iterator[Row]:
        tables = {spec.name.encode() for spec in bound_tables(self._settings)}
        with reading(self._settings) as reader:
            yield from letters_of(reader.records(ranges, self._on_progress), self._limits.client_id, tables)

    def complete_since_ms(self, name: str) -> int | None:
        return complete_since_ms(one for topic in self._topics[name] for one in self._read.get(topic, ()))

    def described(self) -> Sequence[str]:
        servers = self._settings.kafka.bootstrap_servers
        return (f"from the topics of Kafka at {servers}:", *(f"  {described(ranges)}" for ranges in self._read.values()))

    def not_found(self, what: str) -> str:
        return f"no {what} in the topics of Kafka:\n" + "\n".join(self.described()[1:])

    def _ranges(self, name: str) -> list[OffsetRange]:
        """Returns what is read of a table: of the ledger all, because it says what was replayed to anybody."""
        limits = self._limits
        if name != DEAD_LETTERS.name:
            limits = SourceLimits(since_ms=limits.since_ms, max_records=0)
        with reading(self._settings) as reader:
            ranges = reader.ranges(self._topics[name], limits)
        self._remember(ranges)
        return ranges

    def _remember(self, ranges: list[OffsetRange]) -> None:
        for topic in dict.fromkeys(one.topic for one in ranges):
            self._read[topic] = [one for one in ranges if one.topic == topic]


def read_ranges(spark: SparkSession, settings: "Settings", ranges: Sequence[OffsetRange]) -> DataFrame:
    """Returns the records of some ranges, with the columns of Kafka's source."""
    partitions: dict[str, list[int]] = defaultdict(list)
    starts: dict[str, dict[str, int]] = defaultdict(dict)
    ends: dict[str, dict[str, int]] = defaultdict(dict)
    for one in ranges:
        partitions[one.topic].append(one.partition)
        starts[one.topic][str(one.partition)] = one.start
        ends[one.topic][str(one.partition)] = one.end
    options = {
        "assign": json.dumps(partitions),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "includeHeaders": "true",
        "failOnDataLoss": "false",  # retention may delete what was about to be read
        "kafka.isolation.level": "read_committed",
        **settings.kafka.spark_options(),
    }
    return spark.read.format("kafka").options(**options).load()


def _are_many(ranges: list[OffsetRange]) -> bool:
    return sum(one.count for one in ranges) > _MANY
