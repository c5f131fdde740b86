"""Kafka's own topics as a source: everything that Inflight has written and that the topics still keep.

One message is looked for with a consumer, without Spark. Questions in SQL are asked by Spark, which reads such ranges, too, and
makes the archive's columns of them: a condition, and the id of a dead letter, mean the same in both sources.
"""

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.archive.query import topics_of
from streaming.archive.rows import bound_table, dead_letter_rows, ledger_rows
from streaming.archive.tables import DEAD_LETTERS, LEDGER, RECEIPTS, bound_tables
from streaming.history.sources.bounds import Bounds
from streaming.history.sources.kafka_ranges import Range, complete_since_ms, described
from streaming.history.sources.kafka_reader import reading
from streaming.history.sources.kafka_rows import RowsOfMessage
from streaming.history.sources.source import MessageRows, of_client

if TYPE_CHECKING:
    from streaming.config.settings import Settings


class KafkaSource:
    """on_progress: called now and then with (records read, records to read), while `of_message` reads."""

    def __init__(
        self, settings: "Settings", bounds: Bounds, on_progress: Callable[[int, int], None] = lambda done, all_: None
    ) -> None:
        self._settings = settings
        self._bounds = bounds
        self._on_progress = on_progress
        self._topics = topics_of(settings)
        self._read: dict[str, list[Range]] = {}

    def of_message(self, message_id: str) -> MessageRows:
        bounds, topics = self._bounds, self._settings.topics
        names = [*self._topics[LEDGER.name], *self._topics[DEAD_LETTERS.name], *self._topics[RECEIPTS.name], topics.messages]
        found = RowsOfMessage(message_id, topics, bounds.client_id)
        with reading(self._settings) as reader:
            ranges = reader.ranges(names, client_id=bounds.client_id, since_ms=bounds.since_ms, max_records=bounds.max_records)
            self._remember(ranges)
            for record in reader.records(ranges, self._on_progress):
                found.add(record)
        return found.rows

    def table(self, spark: SparkSession, name: str, *, containing: str | None = None) -> DataFrame:
        """`dead_letters` of the client, and the whole `ledger`: it says what was replayed before, to whomever."""
        with reading(self._settings) as reader:
            if name == DEAD_LETTERS.name:
                bounds = self._bounds
                ranges = reader.ranges(
                    self._topics[name], client_id=bounds.client_id, since_ms=bounds.since_ms, max_records=bounds.max_records
                )
            else:
                ranges = reader.ranges(self._topics[name], since_ms=self._bounds.since_ms)
        self._remember(ranges)
        records = self._records(spark, ranges)
        if containing is not None:
            records = records.where(F.contains(F.col("value"), F.lit(containing.encode())))
        if name == DEAD_LETTERS.name:
            others = bound_table([spec.name for spec in bound_tables(self._settings)])
            rows = dead_letter_rows(records.where(others.isNull())).dropDuplicates(list(DEAD_LETTERS.key))
            return of_client(rows, self._bounds.client_id)
        return ledger_rows(records).dropDuplicates(list(LEDGER.key))

    def complete_since_ms(self, name: str) -> int | None:
        return complete_since_ms(one for topic in self._topics[name] for one in self._read.get(topic, ()))

    def described(self) -> Sequence[str]:
        servers = self._settings.kafka.bootstrap_servers
        return (f"from the topics of Kafka at {servers}:", *(f"  {described(ranges)}" for ranges in self._read.values()))

    def not_found(self, what: str) -> str:
        return f"no {what} in the topics of Kafka:\n" + "\n".join(self.described()[1:])

    def _remember(self, ranges: list[Range]) -> None:
        for topic in dict.fromkeys(one.topic for one in ranges):
            self._read[topic] = [one for one in ranges if one.topic == topic]

    def _records(self, spark: SparkSession, ranges: list[Range]) -> DataFrame:
        by_topic: dict[str, dict[str, tuple[int, int]]] = {}
        for one in ranges:
            by_topic.setdefault(one.topic, {})[str(one.partition)] = (one.start, one.end)
        starts, ends = (
            json.dumps({topic: {number: pair[place] for number, pair in parts.items()} for topic, parts in by_topic.items()})
            for place in (0, 1)
        )
        options = {
            "assign": json.dumps({topic: [int(number) for number in parts] for topic, parts in by_topic.items()}),
            "startingOffsets": starts,
            "endingOffsets": ends,
            "includeHeaders": "true",
            "failOnDataLoss": "false",  # retention may delete what was about to be read
            "kafka.isolation.level": "read_committed",
            **self._settings.kafka.spark_options(),
        }
        return spark.read.format("kafka").options(**options).load()
