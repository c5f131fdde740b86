"""Defines what a question may be limited to, and what a trace needs of the place that rows come from.

Imports nothing heavy: the command line shows the limits as options.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, Protocol, TypeAlias

Row: TypeAlias = dict[str, Any]
"""Values by the names of the columns in streaming/archive/tables.py."""

DEFAULT_MAX_RECORDS: Final = 1_000_000


class SourceChoice(StrEnum):
    """Names the place that rows come from. AUTO: the archive where there is one, with what Kafka has since; else Kafka."""

    AUTO = "auto"
    DELTA = "delta"
    KAFKA = "kafka"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceLimits:
    """Limits how much of a source is read.

    Attributes:
        client_id: Only what is kept under this client; None = of all clients.
        since_ms: Only what was written later, ms since 1970.
        max_records: The newest records of Kafka, 0 = all.
    """

    client_id: str | None = None
    since_ms: int | None = None
    max_records: int = DEFAULT_MAX_RECORDS


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageRows:
    """The rows of a source about one message, each once, in no order.

    Attributes:
        ledger: Rows of the table `ledger`.
        dead_letters: Rows of the table `dead_letters`.
        receipts: Rows of the table `receipts`; only from a source that is no table.
        published: The publications that were routed: publisher, topic, share, time_ms, kafka_topic, kafka_partition,
            kafka_offset; only from a source that is no table.
        submitted: The records by which backends or matchers gave the message to us, one for each client: client_id, time_ms,
            kafka_topic, kafka_partition, kafka_offset; only from a source that is no table.
    """

    ledger: list[Row] = field(default_factory=list)
    dead_letters: list[Row] = field(default_factory=list)
    receipts: list[Row] = field(default_factory=list)
    published: list[Row] = field(default_factory=list)
    submitted: list[Row] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.ledger or self.dead_letters or self.receipts or self.published or self.submitted)


class Source(Protocol):
    """A place that the rows of one message come from. Methods raise NoArchive and KafkaUnreachable."""

    def of_message(self, message_id: str) -> MessageRows:
        """Returns everything about one message."""

    def described(self) -> Sequence[str]:
        """Returns lines for people: which source this is and how far back it reached. Call it after the question."""

    def not_found(self, what: str) -> str:
        """Returns what to say, and to do, when nothing was found."""
