"""Starts the query `sessions` of an engine as configured, watches it, and stops it between two micro-batches."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Final, Self

import msgspec
import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.checkpoint_topics import topic_bounds
from streaming.config.settings import Settings
from streaming.engine.errors import NewerEvent, QueryFailed
from streaming.engine.intake.batch_size import BatchBounds
from streaming.engine.intake.bounded_intake import BoundedIntake
from streaming.engine.intake.newer_events import newer_event
from streaming.engine.intake.record_log import record_reader
from streaming.engine.intake.set_aside import SetAside
from streaming.engine.intake.waiting_records import WaitingRecords
from streaming.engine.kafka_access import end_offsets, write_records, write_wake_up
from streaming.engine.lifecycle.settings_log import SettingsLog
from streaming.engine.operator.by_batch import BatchSettings, OperatorByBatch
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.reported_backlogs import ReportedBacklogs
from streaming.engine.operator.reported_counts import CLIENTS_QUARANTINED, Counts, ReportedCounts
from streaming.engine.operator.reported_deadlines import ReportedDeadlines
from streaming.engine.operator.reported_drops import Drops, ReportedDrops
from streaming.engine.ownership.checkpoint_lineage import new_lineage
from streaming.engine.pacing.engine_clock import EngineClock
from streaming.engine.pacing.paced_query import PacedQuery
from streaming.engine.pacing.session_timers import SessionTimers
from streaming.engine.pacing.wake_ups import Urgency
from streaming.engine.progress import RESENDS, BatchProgress, ProgressReader
from streaming.engine.query import read_records, sessions, sessions_writer
from streaming.settings import OFF
from streaming.spark_internals.checkpoint import CheckpointFiles, LoggedOffsets, Offsets, newest_batch_ms, parse_offsets
from streaming.spark_internals.lean_worker import why_off
from streaming.spark_internals.query_progress import executor_work

_DAY_MS: Final = 86_400_000
_PATIENCE_S: Final = 10.0
"""How long a stop waits for the end of the running micro-batch."""
_SPARKS_ADVICE: Final = re.compile(
    r"If you don't want your streaming query to fail on such cases.*?failOnDataLoss.*?false\W*", re.DOTALL
)
"""With that option records would be lost without a word."""
_log: Final = structlog.get_logger(__name__)


class SessionsQuery:
    """The query; it runs from construction to `stop` or the end of a `with`, under our pace after the first micro-batch."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        log: SettingsLog,
        pipeline: PipelineSettings,
        starting_offsets: Mapping[str, str],
        partitions: Mapping[str, int],
        urgency: Urgency | None = None,
        *,
        is_planned_anew: bool = False,
    ) -> None:
        """Starts the query.

        Args:
            starting_offsets: By topic, for a new checkpoint.
            partitions: By topic, how many to read.
            urgency: None = every record is urgent.
            is_planned_anew: See `SettingsLog.put_in_force`.

        Raises:
            UnreadableSettings: A micro-batch has to be executed again, and its settings cannot be read.
        """
        self._spark = spark
        self._settings = settings
        self._log = log
        self._starting_offsets = starting_offsets
        self._partitions = partitions
        self._urgency = urgency
        self._unreported: list[BatchProgress] = []
        """Micro-batches of the query before a restart."""
        self._has_run = self._is_paced = False
        self._clock = EngineClock(newest_batch_ms(CheckpointFiles(spark, settings.sessions_checkpoint)))
        hurry = (lambda: None) if urgency is None else urgency.hurry
        self._deadlines = ReportedDeadlines(spark.sparkContext)
        self._drops = ReportedDrops(spark.sparkContext)
        self._backlogs = ReportedBacklogs(spark.sparkContext)
        self._counts = ReportedCounts(spark.sparkContext)
        self._timers = SessionTimers.of(settings, spark, self._clock.now_ms, hurry=hurry)
        kafka, self._bounds = settings.kafka, batch_bounds(settings)
        records = WaitingRecords(kafka.client_options(), max_bytes=self._bounds.max_bytes)
        self._intake = BoundedIntake(self._bounds, records)
        self._set_aside = SetAside(
            LoggedOffsets(spark, settings.sessions_checkpoint),
            partial(record_reader, kafka.client_options()),
            partial(write_records, settings),
            self._first_offsets,
        )
        self._start(pipeline, is_shortened=self._shorten_plan(pipeline), is_planned_anew=is_planned_anew)

    def restart(self, pipeline: PipelineSettings) -> None:
        """Restarts the query with other settings. After a KafkaUnreachable the query is stopped."""
        self.stop()
        write_wake_up(self._settings)
        self._start(pipeline)

    def may_have_news(self) -> bool:
        """Returns False if no micro-batch has ended since the last call."""
        return self._pace.may_have_news()

    def new_batches(self) -> list[BatchProgress]:
        """Returns the micro-batches that have ended since the last call, oldest first. It works after `stop`, too."""
        batches = self._reader.new()
        self._has_run |= bool(batches)
        batches, self._unreported = self._unreported + batches, []
        if batches:
            batches[-1] = with_counts(with_drops(batches[-1], self._drops.pop()), self._counts.pop())
            if backlog_bytes := self._backlogs.total_bytes():
                batches = [msgspec.structs.replace(batch, backlog_bytes=backlog_bytes) for batch in batches]
        return batches

    def work(self) -> object:
        """Returns a value that changes while Spark works on a micro-batch. Raises SPARK_ERRORS."""
        return executor_work(self._spark, str(self._query.runId))

    def keep_pace(self) -> None:
        """Takes control of the pace once the query has run. Call it after each micro-batch."""
        if self._has_run and not self._is_paced and not self._is_shortened:
            self._is_paced = True
            self._pace.start()

    def start_timers(self) -> None:
        """Begins to call sessions whose deadline has come. Call it once, after the first micro-batch."""
        self._timers.start()

    def check(self) -> None:
        """Starts the query again after records that Spark could not read were set aside.

        Raises QueryFailed if the query has ended by itself for another reason, NewerEvent if such an event is the reason.
        """
        if self._is_shortened and self._has_run:
            self.stop()
            self._pass_over()
            write_wake_up(self._settings)
            self._start(self._pipeline)
        elif not self._query.isActive:
            failure = _failure(self._query)
            if not self._shorten_plan(self._pipeline):
                raise failure
            _log.warning("query_failed", error=str(failure).partition("\n")[0])
            self.stop()
            self._start(self._pipeline, is_shortened=True)

    def stop(self) -> None:
        """Stops after the running micro-batch if that ends within ten seconds; otherwise the next start executes it again."""
        self._pace.stop(patience_s=_PATIENCE_S)
        self._unreported += self._reader.new()

    def _start(self, pipeline: PipelineSettings, *, is_shortened: bool = False, is_planned_anew: bool = False) -> None:
        """Starts the query.

        Args:
            is_shortened: Only the planned micro-batch is executed (streaming/engine/intake/set_aside.py).
            is_planned_anew: See `SettingsLog.put_in_force`.
        """
        settings = self._settings
        self._pipeline, self._is_shortened = pipeline, is_shortened
        if is_shortened:
            pipeline = replace(pipeline, checkpoint_lineage=new_lineage())
            self._backlogs.forget()
        in_force = self._log.put_in_force(pipeline, is_planned_anew=is_shortened or is_planned_anew)
        self._query = start_sessions(
            self._spark,
            settings,
            in_force,
            self._starting_offsets,
            self._partitions,
            self._deadlines,
            self._drops,
            self._backlogs,
            self._counts,
            trigger_interval_ms=_DAY_MS if is_shortened else settings.engine.trigger_interval_ms,
        )
        self._reader = ProgressReader(self._query)
        self._pace = PacedQuery(
            self._query,
            settings.kafka.client_options(),
            trigger_interval_ms=settings.engine.trigger_interval_ms,
            idle_trigger_interval_ms=settings.engine.idle_trigger_interval_ms,
            intake=self._intake,
            clock=self._clock,
            urgency=self._urgency,
            lazy_ms=settings.engine.lazy_ms,
            timers=self._timers,
            pop_reports=self._deadlines.pop,
        )
        self._has_run = self._is_paced = False

    def _shorten_plan(self, pipeline: PipelineSettings) -> bool:
        try:
            return self._set_aside.shorten_plan(pipeline)
        except Exception as error:  # noqa: BLE001 - the query says then what is wrong
            _log.warning("plan_not_inspected", error=repr(error), action="the micro-batch is executed as it was planned")
            return False

    def _pass_over(self) -> None:
        try:
            ends = end_offsets(self._settings, {topic: range(count) for topic, count in self._partitions.items()})
            self._set_aside.pass_over(self._pipeline, ends)
        except Exception as error:  # noqa: BLE001 - the query fails at the record again, and that leads here again
            _log.warning("records_not_set_aside", error=repr(error), action="it is tried again")

    def _first_offsets(self) -> Offsets:
        """Returns the first offsets of a checkpoint without a committed micro-batch."""
        asked = {topic: dict.fromkeys(range(count), 0) for topic, count in self._partitions.items()}
        found = {topic: dict(offsets) for topic, offsets in topic_bounds(self._settings, asked).beginnings.items()}
        for text in self._starting_offsets.values():
            for topic, by_number in (parse_offsets(text) if text.startswith("{") else {}).items():
                found[topic] |= {number: offset for number, offset in by_number.items() if offset >= 0}
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pace.stop(patience_s=0)
        self._timers.__exit__(kind, error, trace)
        self._intake.close()


def start_sessions(
    spark: SparkSession,
    settings: Settings,
    in_force: BatchSettings,
    starting_offsets: Mapping[str, str],
    partitions: Mapping[str, int] | None = None,
    deadlines: ReportedDeadlines | None = None,
    drops: ReportedDrops | None = None,
    backlogs: ReportedBacklogs | None = None,
    counts: ReportedCounts | None = None,
    *,
    trigger_interval_ms: int | None = None,
) -> StreamingQuery:
    """Starts the query `sessions`; it runs until it is stopped or fails.

    Args:
        starting_offsets, partitions: See `read_records`.
        deadlines: Gets the deadlines of the sessions; None = nobody asks for them.
        drops: Gets what sessions drop; None = nobody asks for it.
        backlogs: Gets the large queues of sessions; None = nobody asks for them.
        counts: Gets the counts of what sessions write, if the engine has metrics; None = nobody asks for them.
        trigger_interval_ms: None = as configured.
    """
    pipeline = in_force.current
    kafka_options = settings.kafka.spark_options()
    records = read_records(
        spark,
        pipeline,
        kafka_options=kafka_options,
        max_offsets_per_trigger=batch_bounds(settings).safe_limit,
        starting_offsets=starting_offsets,
        partitions=partitions,
    )
    log_worker_path(pipeline)
    operator = OperatorByBatch(
        in_force,
        None if deadlines is None else deadlines.accumulator,
        None if drops is None else drops.accumulator,
        None if backlogs is None else backlogs.accumulator,
        None if counts is None or settings.metrics.engine_port == OFF else counts.accumulator,
    )
    return sessions_writer(
        sessions(records, pipeline, operator),
        pipeline,
        kafka_options=kafka_options,
        checkpoint_location=settings.sessions_checkpoint,
        trigger_interval_ms=settings.engine.trigger_interval_ms if trigger_interval_ms is None else trigger_interval_ms,
    ).start()


def with_drops(batch: BatchProgress, drops: Drops) -> BatchProgress:
    """Returns the report of the micro-batch with what its sessions have dropped."""
    if drops == Drops():
        return batch
    return msgspec.structs.replace(
        batch, dropped_connected=dict(drops.connected), dropped_offline=dict(drops.offline), dropped_for=drops.clients
    )


def with_counts(batch: BatchProgress, counts: Counts) -> BatchProgress:
    """Returns the report of the micro-batch with the counts of what its sessions have written."""
    if not counts:
        return batch
    outcomes = dict(counts)
    clients_quarantined = outcomes.pop(CLIENTS_QUARANTINED, 0)
    resends = {told: count for transition, told in RESENDS.items() if (count := outcomes.pop(transition, 0))}
    return msgspec.structs.replace(batch, outcomes=outcomes, resends=resends, clients_quarantined=clients_quarantined)


def log_worker_path(pipeline: PipelineSettings) -> None:
    """Logs which path the Python workers take (streaming/spark_internals/lean_worker.py)."""
    reason = why_off() if pipeline.lean_worker else "engine.lean_worker = false"
    if reason is None:
        _log.info("python_workers", path="lean")
    else:
        _log.info("python_workers", path="stock", reason=reason)


def batch_bounds(settings: Settings) -> BatchBounds:
    """Returns the most that a micro-batch reads of `messages`, and of `events`."""
    engine = settings.engine
    return BatchBounds(
        max_records=engine.max_offsets_per_trigger,
        max_bytes=engine.max_bytes_per_trigger,
        largest_bytes=engine.max_record_bytes,
    )


def _failure(query: StreamingQuery) -> QueryFailed:
    error = query.exception()
    cause = "Spark gave no reason" if error is None else str(error).split("=== Streaming Query ===")[0].strip()
    if (newer := newer_event(cause)) is not None:
        return NewerEvent(newer)
    return QueryFailed(
        f"the query {query.name!r} died: {_SPARKS_ADVICE.sub('', cause)}\n"
        "Start the engine again: it goes on from its last complete micro-batch. If it dies again with the same words, look at "
        "logs/spark.log in the data directory and at docs/operate/troubleshoot.md."
    )
