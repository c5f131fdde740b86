"""Chooses the source of a question, and joins the archive with what it does not have yet: the newest records of Kafka."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from streaming.archive.tables import LEDGER
from streaming.config.errors import KafkaUnreachable
from streaming.history.delta_reader import is_table
from streaming.history.sources.delta import LEDGER_COLUMNS, DeltaSource, local_table
from streaming.history.sources.kafka import KafkaSource
from streaming.history.sources.source import MessageRows, Row, Source, SourceChoice, SourceLimits

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_MARGIN_MS: Final = 600_000
"""The partitions of a topic reach the archive at different times."""
_CONTENT: Final = [name for name in LEDGER_COLUMNS if name not in ("time", "kafka_partition", "kafka_offset")]
"""A record that was written twice has other offsets and the same content."""


def source_of(
    settings: "Settings",
    choice: SourceChoice,
    limits: SourceLimits,
    *,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
) -> Source:
    """Returns the chosen source. AUTO reads the archive together with the records that are newer than it.

    Args:
        on_progress: See KafkaSource.
    """
    ledger = local_table(settings.tables_location, LEDGER)
    # Only tables on this machine can be looked for; whether there are others, the configuration says.
    has_archive = settings.archive.enabled if ledger is None else is_table(ledger)
    if choice is SourceChoice.DELTA:
        return DeltaSource(settings, limits)
    if choice is SourceChoice.AUTO and has_archive:
        return MergedSource(settings, limits, on_progress)
    return KafkaSource(settings, limits, on_progress)


class MergedSource(DeltaSource):
    """The tables of the archive, and for one message what Kafka has since they were written."""

    def __init__(self, settings: "Settings", limits: SourceLimits, on_progress: Callable[[int, int], None]) -> None:
        super().__init__(settings, limits)
        self._on_progress = on_progress
        self._kafka: KafkaSource | None = None
        self._unreachable = ""

    def of_message(self, message_id: str) -> MessageRows:
        archived = super().of_message(message_id)
        newest_ms = self.newest_ms()
        # The engine's clock may be ahead of the brokers'.
        since_ms = 0 if newest_ms is None else min(newest_ms, time.time_ns() // 1_000_000) - _MARGIN_MS
        since_ms = max(self._limits.since_ms or 0, since_ms)
        self._kafka = KafkaSource(self._settings, replace(self._limits, since_ms=since_ms or None), self._on_progress)
        try:
            return merged(archived, self._kafka.of_message(message_id))
        except KafkaUnreachable as error:
            if not archived:
                raise
            self._kafka, self._unreachable = None, str(error)
            return archived

    def described(self) -> Sequence[str]:
        kafka = () if self._kafka is None else self._kafka.described()
        missing = (f"without what is newer: {self._unreachable}",) if self._unreachable else ()
        return (*super().described(), *kafka, *missing)

    def not_found(self, what: str) -> str:
        kafka = "" if self._kafka is None else f"\nand {self._kafka.not_found(what)}"
        return f"no {what} in {self._location},{kafka}"


def merged(archived: MessageRows, newer: MessageRows) -> MessageRows:
    """Returns the rows of both, each once."""
    return MessageRows(
        ledger=_with_new(archived.ledger, newer.ledger, _CONTENT),
        dead_letters=_with_new(archived.dead_letters, newer.dead_letters, ["dead_letter_id"]),
        receipts=newer.receipts,
        published=newer.published,
        submitted=newer.submitted,
    )


def _with_new(rows: list[Row], newer: list[Row], key: list[str]) -> list[Row]:
    known = {tuple(row[name] for name in key) for row in rows}
    return rows + [row for row in newer if tuple(row[name] for name in key) not in known]
