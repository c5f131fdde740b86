"""What trace, dead-letters and replay need of the place that their rows come from."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.archive.tables import LEDGER

Row: TypeAlias = dict[str, Any]
"""By the names of the columns in streaming/archive/tables.py."""

LEDGER_COLUMNS: Final = [column for column in LEDGER.column_names if column not in ("date", "record_hash")]
DEAD_LETTER_COLUMNS: Final = [
    "dead_letter_id", "client_id", "message_id", "time", "reason", "deaths", "detail", "topic", "died_ms", "replays",
    "kafka_topic", "kafka_partition", "kafka_offset",
]  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRows:
    """What a source has about one message, each row once, in no order. ledger, dead_letters: with the columns above.

    receipts: client_id, outcome, outcome_ms, reason_code, attempts, detail, kafka_partition, kafka_offset. submitted: the records
    by which backends gave it to us: client_id, time_ms, kafka_topic, kafka_partition, kafka_offset. Both only where no table has
    said it.
    """

    ledger: list[Row] = field(default_factory=list)
    dead_letters: list[Row] = field(default_factory=list)
    receipts: list[Row] = field(default_factory=list)
    submitted: list[Row] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ledger or self.dead_letters or self.receipts or self.submitted)


class Source(Protocol):
    """Raises NoArchive, KafkaUnreachable."""

    def of_message(self, message_id: str) -> MessageRows:
        """Everything about one message; quick where no JVM is needed."""

    def table(self, spark: SparkSession, name: str, *, containing: str | None = None) -> DataFrame:
        """A table of the archive, with all its columns. containing: the question needs only rows with this text; there may be
        others. Of `dead_letters` those of the client, if one is named."""

    def complete_since_ms(self, name: str) -> int | None:
        """What happened before may be missing in `table`, which was called with that name; None = nothing is missing that
        somebody still has. Milliseconds since 1970."""

    def described(self) -> Sequence[str]:
        """Which source this is and how far back it reached, a line each, for people; after the question was asked."""

    def not_found(self, what: str) -> str:
        """What to say, and to do, when nothing was found."""


def of_client(rows: DataFrame, client_id: str | None) -> DataFrame:
    """The rows of one client; None = all."""
    return rows if client_id is None else rows.where(F.col("client_id") == F.lit(client_id))
