"""The life of one message, from the ledger and the dead letters, in order.

Two readers give the same rows: for tables on a local path deltalake (under a second), for others Spark. What takes part:
1. every ledger row with the message id;
2. every dead letter with it, as the step `dead letter`, after the ledger row of the session that wrote it;
the order is time, then the session's own order within a micro-batch.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from streaming.archive.tables import DEAD_LETTERS, LEDGER, table_location
from streaming.engine.spark_session import is_local_path
from streaming.history.delta_reader import UnsupportedTable, is_table, rows_with
from streaming.history.errors import NoArchive, NothingFound

if TYPE_CHECKING:
    from streaming.config.settings import Settings
    from streaming.engine.spark_session import SparkJars

LEDGER_COLUMNS: Final = [column for column in LEDGER.column_names if column not in ("date", "record_hash")]
DEAD_LETTER_COLUMNS: Final = [
    "dead_letter_id", "client_id", "message_id", "time", "reason", "deaths", "detail", "topic", "died_ms", "replays",
    "kafka_topic", "kafka_partition", "kafka_offset",
]  # fmt: skip
DEAD_LETTER: Final = "dead letter"

_Rows: TypeAlias = tuple[list[dict[str, Any]], list[dict[str, Any]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One thing that happened to the message. packet_id, outcome: None = does not apply. attempt: 0 = does not apply."""

    time: datetime
    client_id: str
    step: str
    attempt: int = 0
    packet_id: int | None = None
    outcome: str | None = None
    reason_code: int = 0
    detail: str = ""

    def as_json(self) -> dict[str, Any]:
        return {
            "time": self.time.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "client_id": self.client_id,
            "step": self.step,
            "attempt": self.attempt,
            "packet_id": self.packet_id,
            "outcome": self.outcome,
            "reason_code": self.reason_code,
            "detail": self.detail,
        }


def trace(settings: "Settings", message_id: str, jars: Callable[[], "SparkJars"]) -> list[Step]:
    """The steps of a message, oldest first. Raises NoArchive, NothingFound."""
    ledger, letters = _read(settings, message_id, jars)
    if not ledger and not letters:
        every = settings.archive.trigger_interval_ms / 1_000
        raise NothingFound(
            f"no message {message_id!r} in {settings.tables_location}: the tables are up to about {every:.0f} s behind, so ask "
            "again; else check the id (`inflight send` prints it; without a message-id header it is topic-partition-offset)"
        )
    return in_order(ledger, letters)


def in_order(ledger: Iterable[dict[str, Any]], letters: Iterable[dict[str, Any]]) -> list[Step]:
    """Rows of both tables → steps, oldest first."""
    keyed = [
        ((row["batch_ms"], 0, row["kafka_partition"], row["kafka_offset"], row["row_index"]), _ledger_step(row)) for row in ledger
    ]
    keyed += [((row["died_ms"], 1, row["kafka_partition"], row["kafka_offset"], 0), _letter_step(row)) for row in letters]
    return [step for _, step in sorted(keyed, key=lambda item: item[0])]


def _ledger_step(row: dict[str, Any]) -> Step:
    return Step(
        time=_utc(row["time"]),
        client_id=row["client_id"],
        step=row["transition"],
        attempt=row["attempt"],
        packet_id=row["packet_id"],
        outcome=row["outcome"],
        reason_code=row["reason_code"],
        detail=row["detail"],
    )


def _letter_step(row: dict[str, Any]) -> Step:
    times = "the first time" if row["deaths"] <= 1 else f"{row['deaths']} deaths by now"
    return Step(
        time=datetime.fromtimestamp(row["died_ms"] / 1_000, UTC),
        client_id=row["client_id"],
        step=DEAD_LETTER,
        outcome=row["reason"],
        detail=f"{row['dead_letter_id']} in {row['kafka_topic']}, {times}",
    )


def _read(settings: "Settings", message_id: str, jars: Callable[[], "SparkJars"]) -> _Rows:
    tables = settings.tables_location
    if is_local_path(tables):
        ledger, letters = (Path(table_location(tables.removeprefix("file://"), spec)) for spec in (LEDGER, DEAD_LETTERS))
        if not is_table(ledger):
            raise NoArchive.at(tables)
        try:
            return (
                rows_with(ledger, "message_id", message_id, LEDGER_COLUMNS),
                rows_with(letters, "message_id", message_id, DEAD_LETTER_COLUMNS) if is_table(letters) else [],
            )
        except UnsupportedTable:
            pass  # Spark knows all of the protocol
    return _read_with_spark(settings, message_id, jars())


def _read_with_spark(settings: "Settings", message_id: str, jars: "SparkJars") -> _Rows:
    from streaming.history.session import HistorySession  # starts a JVM

    with HistorySession(settings, jars) as history:
        found = [
            history.table(spec.name).where(history.equals("message_id", message_id)).select(*columns).collect()
            for spec, columns in ((LEDGER, LEDGER_COLUMNS), (DEAD_LETTERS, DEAD_LETTER_COLUMNS))
        ]
        ledger, letters = ([row.asDict() for row in rows] for rows in found)
    return ledger, letters


def _utc(time: datetime) -> datetime:
    """deltalake gives times with their zone, Spark naive ones in the zone of this process; `astimezone` is right for both."""
    return time.astimezone(UTC)
