"""The query `sessions` of an engine: started as configured, watched, and stopped between two micro-batches."""

from collections.abc import Mapping
from types import TracebackType
from typing import Final, Self

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from streaming.config.sections import OFF
from streaming.config.settings import Settings
from streaming.engine.errors import NewerEvent, QueryFailed
from streaming.engine.intake.bounded_intake import BoundedIntake, Bounds
from streaming.engine.intake.newer_events import newer_event
from streaming.engine.intake.waiting_records import WaitingRecords
from streaming.engine.lifecycle.settings_log import SettingsLog
from streaming.engine.lifecycle.wake_up import write_wake_up
from streaming.engine.operator.by_batch import BatchSettings, OperatorByBatch
from streaming.engine.operator.settings import PipelineSettings
from streaming.engine.outcome_counts import counted
from streaming.engine.ownership.engine_group import group_name
from streaming.engine.pacing.engine_clock import EngineClock
from streaming.engine.pacing.paced_query import PacedQuery
from streaming.engine.progress import BatchProgress, ProgressReader
from streaming.engine.query import read_records, sessions, sessions_writer
from streaming.spark_internals.executor_work import spark_work
from streaming.spark_internals.lean_worker import why_off

SESSIONS_CHECKPOINT: Final = "sessions"
_PATIENCE_S: Final = 10.0
"""How long a stop waits for the end of the micro-batch that runs."""
_log: Final = structlog.get_logger(__name__)


class SessionsQuery:
    """The query, running from its making to `stop` or the end of its `with`, with its pace after the first micro-batch."""

    def __init__(
        self,
        spark: SparkSession,
        settings: Settings,
        log: SettingsLog,
        pipeline: PipelineSettings,
        starting_offsets: Mapping[str, str],
        partitions: Mapping[str, int],
    ) -> None:
        """starting_offsets: for a new checkpoint, by topic. partitions: how many to read, by topic. Raises UnreadableSettings."""
        self._spark = spark
        self._settings = settings
        self._log = log
        self._starting_offsets = starting_offsets
        self._partitions = partitions
        self._left: list[BatchProgress] = []
        """Of the query before a restart."""
        self._has_run = self._is_paced = False
        self._clock = EngineClock()
        self._intake = bounded_intake(settings)
        self._start(pipeline)

    def restart(self, pipeline: PipelineSettings) -> None:
        """With other settings, from the next micro-batch on. Raises KafkaUnreachable; the query is stopped then."""
        self.stop()
        write_wake_up(self._settings)
        self._start(pipeline)

    def may_have_news(self) -> bool:
        """False when no micro-batch has ended since this was last asked."""
        return self._pace.may_have_news()

    def new_batches(self) -> list[BatchProgress]:
        """The micro-batches that have ended since the last call, oldest first. Also after `stop`."""
        batches = self._reader.new()
        self._has_run |= bool(batches)
        batches, self._left = self._left + batches, []
        return batches

    def work(self) -> object:
        """Changes while a micro-batch gets on. Raises Py4JError."""
        return spark_work(self._spark, str(self._query.runId))

    def keep_pace(self) -> None:
        """To be called after a micro-batch."""
        if self._has_run and not self._is_paced:
            self._is_paced = True
            self._pace.start()

    def check(self) -> None:
        """Raises QueryFailed when the query has ended by itself, NewerEvent where that is why."""
        if not self._query.isActive:
            raise _failure(self._query)

    def stop(self) -> None:
        """After the micro-batch that runs, if that ends within ten seconds; else it is executed again by the next start."""
        self._pace.stop(patience_s=_PATIENCE_S)
        self._left += self._reader.new()

    def _start(self, pipeline: PipelineSettings) -> None:
        in_force = self._log.put_in_force(pipeline)
        self._query = start_sessions(self._spark, self._settings, in_force, self._starting_offsets, self._partitions)
        self._reader = ProgressReader(self._query)
        self._pace = _paced(self._query, self._settings, self._intake, self._clock)
        self._has_run = self._is_paced = False

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pace.stop(patience_s=0)
        self._intake.close()


def start_sessions(
    spark: SparkSession,
    settings: Settings,
    in_force: BatchSettings,
    starting_offsets: Mapping[str, str],
    partitions: Mapping[str, int] | None = None,
) -> StreamingQuery:
    """Starts the query `sessions`; it runs until it is stopped or dies. starting_offsets: for a new checkpoint, by topic.
    partitions: of `read_records`.
    """
    pipeline = in_force.current
    kafka_options = settings.kafka.spark_options()
    records = read_records(
        spark,
        pipeline,
        kafka_options=kafka_options,
        max_offsets_per_trigger=bounds(settings).safe_limit,
        starting_offsets=starting_offsets,
        partitions=partitions,
    )
    say_worker_path(pipeline)
    rows = sessions(records, pipeline, OperatorByBatch(in_force))
    return sessions_writer(
        rows if settings.metrics.engine_port == OFF else counted(rows, pipeline),
        pipeline,
        kafka_options=kafka_options,
        checkpoint_location=sessions_checkpoint(settings),
        trigger_interval_ms=settings.engine.trigger_interval_ms,
    ).start()


def say_worker_path(pipeline: PipelineSettings) -> None:
    """Tells the log which path the Python workers take (streaming/spark_internals/lean_worker.py)."""
    reason = why_off() if pipeline.lean_worker else "engine.lean_worker = false"
    if reason is None:
        _log.info("python_workers", path="lean")
    else:
        _log.info("python_workers", path="stock", reason=reason)


def sessions_checkpoint(settings: Settings) -> str:
    """Where the sessions are: a directory of its own, each query has one."""
    return f"{settings.checkpoint_location.rstrip('/')}/{SESSIONS_CHECKPOINT}"


def bounds(settings: Settings) -> Bounds:
    """What a micro-batch takes at most of `messages`, and of `events`."""
    engine = settings.engine
    return Bounds(
        max_records=engine.max_offsets_per_trigger,
        max_bytes=engine.max_bytes_per_trigger,
        largest_bytes=engine.max_record_bytes,
    )


def bounded_intake(settings: Settings) -> BoundedIntake:
    """Keeps the micro-batches of the query within their bounds."""
    bounds_, kafka = bounds(settings), settings.kafka
    records = WaitingRecords(
        kafka.bootstrap_servers, kafka.librdkafka_options(), group_id=group_name(settings), max_bytes=bounds_.max_bytes
    )
    return BoundedIntake(bounds_, records)


def _paced(query: StreamingQuery, settings: Settings, intake: BoundedIntake, clock: EngineClock) -> PacedQuery:
    return PacedQuery(
        query,
        settings.kafka.client_options(),
        trigger_interval_ms=settings.engine.trigger_interval_ms,
        idle_trigger_interval_ms=settings.engine.idle_trigger_interval_ms,
        intake=intake,
        clock=clock,
    )


def _failure(query: StreamingQuery) -> QueryFailed:
    error = query.exception()
    cause = "nobody said why" if error is None else str(error).split("=== Streaming Query ===")[0].strip()
    if (newer := newer_event(cause)) is not None:
        return NewerEvent(newer)
    return QueryFailed(
        f"the query {query.name!r} died: {cause}\n"
        "Nothing is lost: start the engine again and it goes on where it was. If it dies again with the same words, look at "
        "logs/spark.log in the data directory and at docs/operations.md."
    )
