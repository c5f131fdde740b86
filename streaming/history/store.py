"""Answers questions about what has happened: four tables and the live sessions, as relations of DuckDB, without a JVM.

| relation | rows |
|---|---|
| `ledger`, `dead_letters`, `uplink`, `receipts` | of the archive, and of Kafka's records that it does not have yet, each once |
| `sessions` | one row per client whose session exists now, from the running engine, else from its checkpoint |

Payloads are binary; `payload_text` beside them is the same as text, null where it is not UTF-8. Without an archive all rows are
Kafka's, as far back as its topics reach.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from sinks.delta.spec import PARTITION, TableSpec
from streaming.archive.tables import LEDGER, TABLES, topics_of
from streaming.config.errors import KafkaUnreachable
from streaming.history.database import DEFAULT_TIMEOUT_S, Database, SqlAnswer
from streaming.history.delta_reader import DeltaRows, UnsupportedTable, is_table, open_rows
from streaming.history.documents import documents
from streaming.history.errors import BadQuestion, NoArchive
from streaming.history.questions import Question, checked_condition, checked_question
from streaming.history.relations import RecordSink, Relation
from streaming.history.session_relation import SESSION_COLUMNS, SESSIONS
from streaming.history.sources.kafka_ranges import OffsetRange, complete_since_ms, described
from streaming.history.sources.kafka_reader import KafkaReader, reading
from streaming.history.sources.source import SourceChoice, SourceLimits
from streaming.spark_internals.locations import is_local_path, local_path

if TYPE_CHECKING:
    from streaming.config.settings import Settings

_SPECS: Final = {spec.name: spec for spec in TABLES}
_MARGIN_MS: Final = 600_000
"""The partitions of a topic reach the archive at different times."""


class Store:
    """The relations, for the length of a `with`. A relation is loaded when a question first names it, and stays as it is then.

    Methods raise BadQuestion, NoArchive, KafkaUnreachable, NothingFound for a topic that does not exist, and what `sessions`
    raises.

    Args:
        sessions: Returns all live sessions as an Arrow table or dataset. It may write files to the directory that it is given.
        limits: `client_id` and `since_ms` hold for the tables too.
        on_progress: Called repeatedly with (records read, records to read).
    """

    def __init__(
        self,
        settings: "Settings",
        sessions: Callable[[Path], Any],
        *,
        choice: SourceChoice = SourceChoice.AUTO,
        limits: SourceLimits | None = None,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        timeout_s: float = DEFAULT_TIMEOUT_S,
    ) -> None:
        self._settings = settings
        self._sessions = sessions
        self._choice = choice
        self._limits = limits or SourceLimits()
        self._on_progress = on_progress
        self._database = Database(timeout_s=timeout_s)
        self._loaded: dict[str, Relation] = {}
        self._has_sessions = False
        self._unreachable = ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._database.__exit__(kind, error, trace)

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all relations."""
        return (*_SPECS, SESSIONS)

    def ask(self, question: str) -> SqlAnswer:
        """Returns the answer to one question in SQL."""
        checked = checked_question(question)
        if checked.is_list:
            return SqlAnswer(columns=("name",), rows=iter([(name,) for name in sorted(self.names)]))
        if checked.described is not None:
            return self._described(checked.described)
        self._load(checked)
        try:
            return self._database.ask(checked.text)
        except BadQuestion as error:
            raise self._explained(error) from error

    def where(
        self, name: str, condition: str | None, *, columns: str = "*", order: str, limit: int | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yields the rows of a relation for which a condition in SQL holds, as documents.

        Args:
            condition: Of people; None = all.
            columns, order: As after SELECT and ORDER BY.
        """
        checked = checked_condition("true" if condition is None else condition)
        self.load(name, *checked.relations)
        question = f'SELECT {columns} FROM "{name}" WHERE (\n{checked.text}\n) ORDER BY {order}'  # noqa: S608  # nosec B608
        return self.asked(name, question if limit is None else f"{question} LIMIT {limit}", condition)

    def asked(self, name: str, query: str, condition: str | None) -> Iterator[dict[str, Any]]:
        """Yields the answer to a query that has a condition of people over the rows of a relation; call `load` before."""
        try:
            return documents(self._database.ask(query))
        except BadQuestion as error:
            if condition is None:
                raise
            columns = ", ".join(row[0] for row in self._database.execute(f'DESCRIBE "{name}"'))
            raise BadQuestion(f"--where {condition}: {_sentence(error)} The columns are {columns}") from error

    def documents(self, query: str, parameters: Sequence[object] = ()) -> Iterator[dict[str, Any]]:
        """Yields the answer to a query of this program; call `load` before."""
        return documents(self._database.ask(query, parameters))

    def rows(self, query: str, parameters: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Returns the values of the same, by columns in order."""
        return self._database.execute(query, parameters)

    def load(self, *names: str, containing: bytes | None = None) -> None:
        """Loads relations. Unknown names are left out: they may be the question's own.

        Args:
            containing: Of Kafka's records only those are needed whose values have these bytes.
        """
        chosen = [
            Relation(spec=spec, archived=self._archived(spec), containing=containing)
            for name, spec in _SPECS.items()
            if name in names and name not in self._loaded
        ]
        self._load_tables(chosen)
        if SESSIONS in names and not self._has_sessions:
            self._database.register(SESSIONS, self._sessions(self._database.directory))
            self._has_sessions = True

    def complete_since_ms(self, name: str) -> int | None:
        """Returns since when a loaded table misses nothing, in ms since 1970; None = nothing is missing."""
        relation = self._loaded[name]
        return None if relation.archived is not None else complete_since_ms(relation.ranges)

    def described(self) -> Sequence[str]:
        """Returns lines for people: what was read and how far back it reached. Call it after the questions."""
        lines = []
        archived = [relation.archived for relation in self._loaded.values() if relation.archived is not None]
        if archived:
            days = [day for one in archived if one.days is not None for day in one.days]
            span = f", days {min(days)} to {max(days)}" if days else ""
            lines.append(f"from the archive's tables in {self._settings.tables_location}{span}")
        by_topic: dict[str, list[OffsetRange]] = {}
        for relation in self._loaded.values():
            for one in relation.ranges:
                by_topic.setdefault(one.topic, []).append(one)
        if by_topic:
            lines.append(f"from the topics of Kafka at {self._settings.kafka.bootstrap_servers}:")
            lines += [f"  {described(ranges)}" for ranges in by_topic.values()]
        if self._unreachable:
            lines.append(f"without what is newer: {self._unreachable}")
        return lines

    def _load(self, question: Question) -> None:
        self.load(*question.relations)

    def _load_tables(self, chosen: list[Relation]) -> None:
        if not chosen:
            return
        for relation in chosen:
            relation.open(self._database)
        if self._choice is not SourceChoice.DELTA:
            try:
                self._read_kafka(chosen)
            except KafkaUnreachable as error:
                if any(relation.archived is None for relation in chosen):
                    raise
                self._unreachable = str(error)
        for relation in chosen:
            relation.finish(self._database, self._condition(relation.spec))
            self._loaded[relation.spec.name] = relation

    def _read_kafka(self, chosen: list[Relation]) -> None:
        with reading(self._settings) as reader:
            for relation in chosen:
                relation.ranges = self._ranges(reader, relation)
            sink = RecordSink(self._settings, self._database, chosen)
            ranges = [one for relation in chosen for one in relation.ranges]
            for record in reader.records(ranges, self._on_progress):
                sink.add(record)
            sink.flush(chosen)

    def _ranges(self, reader: KafkaReader, relation: Relation) -> list[OffsetRange]:
        archived, newest_ms = relation.archived_until(self._database)
        since_ms = self._limits.since_ms
        if newest_ms is not None:
            # The engine's clock may be ahead of the brokers'.
            newer_ms = min(newest_ms, time.time_ns() // 1_000_000) - _MARGIN_MS
            since_ms = max(since_ms or 0, newer_ms)
        limits = replace(self._limits, since_ms=since_ms)
        if relation.containing is not None:
            limits = replace(limits, max_records=0, client_id=None)
        return reader.ranges(topics_of(self._settings)[relation.spec.name], limits, archived)

    def _archived(self, spec: TableSpec) -> DeltaRows | None:
        """Returns the rows of the archive; None if there is none, or if only Kafka is asked. Raises NoArchive."""
        if self._choice is SourceChoice.KAFKA:
            return None
        location = self._settings.tables_location
        table = f"{location.rstrip('/')}/{spec.name}"
        is_local = is_local_path(location)
        # Only tables on this machine can be looked for; whether there are others, the configuration says.
        if not (is_table(local_path(table)) if is_local else self._settings.archive.enabled):
            if self._choice is SourceChoice.DELTA:
                raise NoArchive.at(location)
            return None
        try:
            return open_rows(str(local_path(table)) if is_local else table, PARTITION)
        except UnsupportedTable as error:
            raise NoArchive.unreadable(table, error) from error

    def _condition(self, spec: TableSpec) -> str:
        parts = []
        if self._limits.since_ms is not None:
            parts.append(f"time >= epoch_ms({self._limits.since_ms})::TIMESTAMP AT TIME ZONE 'UTC'")
        if self._limits.client_id is not None and spec.name != LEDGER.name:
            quoted = self._limits.client_id.replace("'", "''")
            parts.append(f"client_id = '{quoted}'")
        return " AND ".join(parts)

    def _described(self, name: str) -> SqlAnswer:
        if name == SESSIONS:
            columns = SESSION_COLUMNS
        elif name in _SPECS:
            columns = _SPECS[name].columns
        else:
            raise self._explained(BadQuestion(f"there is no table {name}"))
        rows = []
        for column in columns:
            rows.append((column.name, column.sql_type, column.comment))
            if column.name == "payload":
                rows.append(("payload_text", "STRING", "payload as text, null if it is not UTF-8"))
        return SqlAnswer(columns=("column", "type", "meaning"), rows=iter(rows))

    def _explained(self, error: BadQuestion) -> BadQuestion:
        return BadQuestion(
            f'{_sentence(error)} The tables are: {", ".join(self.names)}; `inflight sql "DESCRIBE ledger"` shows columns'
        )


def _sentence(error: BadQuestion) -> str:
    text = str(error)
    return text if text.endswith("?") else f"{text}."
