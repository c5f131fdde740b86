"""The engine: one process, one Spark session, the query `sessions`, and beside it the query `archive` (streaming/archive).

Steps of a start, in this order:
1. check the topics;
2. write the record that gives the query a first micro-batch (streaming/engine/wake_up.py);
3. start Spark;
4. take the lock of the checkpoint, check that its shape is the configured one, and that no other engine works on the topics
   (streaming/engine/ownership/engine_group.py);
5. start the query;
6. after the first micro-batch, which also starts the timers of the sessions, say that the engine is ready;
7. start the query `archive`, which nobody waits for;
8. tell backends to wait whenever the engine cannot keep up (streaming/engine/back_pressure.py);
9. end the connections of gateways and bridges that are gone (streaming/engine/leases/keeper.py).

From 6 on the micro-batches follow the pace of streaming/engine/pacing.
"""

import os
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import structlog
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from state.dead_letters.exchanges import Exchanges
from state.dead_letters.policy import permitted
from state.records.settings import RecordLimits, Topics
from streaming.archive import ArchiveKeeper
from streaming.config.sections import OFF
from streaming.config.settings import Settings
from streaming.config.topics import require_safe_topics
from streaming.engine.back_pressure import BackPressure
from streaming.engine.errors import QueryFailed
from streaming.engine.intake.bounded_intake import BoundedIntake, Bounds
from streaming.engine.intake.waiting_records import WaitingRecords
from streaming.engine.leases.keeper import LeaseKeeper, LeaseReport
from streaming.engine.operator.lean_worker import why_off
from streaming.engine.operator.settings import PipelineSettings, Profile
from streaming.engine.outcome_counts import counted
from streaming.engine.ownership.checkpoint import check_state_partitions, lock_checkpoint
from streaming.engine.ownership.engine_group import EngineGroup, checkpoint_id, starting_offsets
from streaming.engine.pacing.engine_clock import EngineClock
from streaming.engine.pacing.paced_query import PacedQuery
from streaming.engine.progress import BatchProgress, ProgressFile, ProgressReader
from streaming.engine.query import read_records, sessions, sessions_writer
from streaming.engine.spark_session import SparkJars, SparkSettings, spark_session
from streaming.engine.wake_up import write_wake_up

_log: Final = structlog.get_logger(__name__)
_LOOK_S: Final = 0.1
_IDLE_LOOK_S: Final = 1.0
SESSIONS_CHECKPOINT: Final = "sessions"


def run_engine(
    settings: Settings,
    *,
    jars: SparkJars | None,
    on_ready: Callable[[], None],
    stop: threading.Event,
    on_progress: Callable[[BatchProgress], None] = lambda batch: None,
    on_leases: Callable[[LeaseReport], None] = lambda report: None,
) -> None:
    """Runs the engine until `stop` is set. Returns when everything is stopped; a micro-batch that was running is repeated at the
    next start.

    jars: None under spark-submit, which brings them.
    on_ready: called once, when devices get answers. on_progress: called after every micro-batch. on_leases: called about once a
    second, on another thread.
    Raises UnsafeTopics, KafkaUnreachable, CheckpointInUse, CheckpointMismatch, EngineRuns before anything runs; QueryFailed when
    the query dies, EngineFenced when another engine has taken over.
    """
    report = require_safe_topics(settings)  # 1
    partitions = {topic.name: topic.partitions for topic in report.topics}
    write_wake_up(settings)  # 2
    pipeline = pipeline_settings(settings, commands_partitions=partitions[settings.topics.commands])
    spark = start_spark(settings, jars)  # 3
    try:
        location = sessions_checkpoint(settings)
        lock = lock_checkpoint(spark, location)  # 4
        check_state_partitions(spark, location, settings.engine.state_partitions)
        with EngineGroup(settings, checkpoint_id(spark, location)) as group:
            committed = group.committed()
            starting = {
                topic: starting_offsets(topic, partitions[topic], committed)
                for topic in (settings.topics.messages, settings.topics.events)
            }
            query = start_sessions(spark, settings, pipeline, starting)  # 5
            try:
                with LeaseKeeper.of(settings, spark, location, on_report=on_leases) as leases:
                    _keep_running(
                        spark, settings, query, group, leases, on_ready=on_ready, stop=stop, on_progress=on_progress
                    )  # 6
            finally:
                query.stop()
        del lock
    finally:
        spark.stop()


def _keep_running(
    spark: SparkSession,
    settings: Settings,
    query: StreamingQuery,
    group: EngineGroup,
    leases: LeaseKeeper,
    *,
    on_ready: Callable[[], None],
    stop: threading.Event,
    on_progress: Callable[[BatchProgress], None],
) -> None:
    # Failures of the archive and of back-pressure are reported and are not ours.
    with (
        ArchiveKeeper(spark, settings) as archive,
        BackPressure.of(settings) as throttle,
        bounded_intake(spark, settings) as intake,
        paced(query, settings, intake, EngineClock()) as pace,
    ):

        def ready() -> None:
            on_ready()
            pace.start()
            archive.start()  # 7
            throttle.start()  # 8
            leases.start()  # 9

        def progress(batch: BatchProgress) -> None:
            group.observe(batch.end_offsets)
            throttle.observe(batch)
            leases.observe(batch)
            on_progress(batch)

        def may_have_news() -> bool:
            group.check()
            return pace.may_have_news()

        _watch(query, settings.engine.data_dir, ready, stop, progress, may_have_news)


def start_spark(settings: Settings, jars: SparkJars | None) -> SparkSession:
    """The Spark session of the engine as configured. jars: None under spark-submit, whose business the master is then, too."""
    engine = settings.engine
    logs = engine.data_dir.absolute() / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    return spark_session(
        SparkSettings(
            checkpoint_location=settings.checkpoint_location,
            log_file=logs / "spark.log",
            master=None if jars is None else spark_master(settings),
            state_partitions=engine.state_partitions,
            driver_memory=engine.driver_memory,
            extra={key: _spark_value(value) for key, value in engine.spark.items()},
        ),
        jars,
    )


def spark_master(settings: Settings) -> str:
    """Spark's master: with the archive on, `local[*]` gets a slot for one task more than the sessions have state partitions.

    A task of the archive runs for seconds. On a machine with few cores it would hold a slot that the sessions' next micro-batch
    needs; with a slot of its own the operating system shares the core between the two.
    """
    if settings.engine.master != "local[*]" or not settings.archive.enabled:
        return settings.engine.master
    return f"local[{max(len(os.sched_getaffinity(0)), settings.engine.state_partitions + 1)}]"


def start_sessions(
    spark: SparkSession, settings: Settings, pipeline: PipelineSettings, starting_offsets: Mapping[str, str]
) -> StreamingQuery:
    """Starts the query `sessions`; it runs until it is stopped or dies. starting_offsets: for a new checkpoint, by topic."""
    kafka_options = settings.kafka.spark_options()
    records = read_records(
        spark,
        pipeline,
        kafka_options=kafka_options,
        max_offsets_per_trigger=bounds(settings).safe_limit,
        starting_offsets=starting_offsets,
    )
    say_worker_path(pipeline)
    rows = sessions(records, pipeline)
    return sessions_writer(
        rows if settings.metrics.engine_port == OFF else counted(rows, pipeline),
        pipeline,
        kafka_options=kafka_options,
        checkpoint_location=sessions_checkpoint(settings),
        trigger_interval_ms=settings.engine.trigger_interval_ms,
    ).start()


def paced(query: StreamingQuery, settings: Settings, intake: BoundedIntake, clock: EngineClock) -> PacedQuery:
    """The query, to be started with the pace of the configuration. intake, clock: of the engine."""
    return PacedQuery(
        query,
        settings.kafka.client_options(),
        trigger_interval_ms=settings.engine.trigger_interval_ms,
        idle_trigger_interval_ms=settings.engine.idle_trigger_interval_ms,
        intake=intake,
        clock=clock,
    )


def bounds(settings: Settings) -> Bounds:
    """What a micro-batch takes at most of `messages`, and of `events`."""
    engine = settings.engine
    return Bounds(
        max_records=engine.max_offsets_per_trigger,
        max_bytes=engine.max_bytes_per_trigger,
        largest_bytes=engine.max_record_bytes,
    )


def bounded_intake(spark: SparkSession, settings: Settings) -> BoundedIntake:
    """Keeps the micro-batches of the query `sessions` within their bounds."""
    bounds_ = bounds(settings)
    return BoundedIntake(bounds_, WaitingRecords(spark, settings.kafka.spark_options(), max_bytes=bounds_.max_bytes))


def say_worker_path(pipeline: PipelineSettings) -> None:
    """Tells the log which path the Python workers take (streaming/engine/operator/lean_worker.py)."""
    reason = why_off() if pipeline.lean_worker else "engine.lean_worker = false"
    if reason is None:
        _log.info("python_workers", path="lean")
    else:
        _log.info("python_workers", path="stock", reason=reason)


def sessions_checkpoint(settings: Settings) -> str:
    """Where the sessions are: a directory of its own, each query has one."""
    return f"{settings.checkpoint_location.rstrip('/')}/{SESSIONS_CHECKPOINT}"


def pipeline_settings(settings: Settings, *, commands_partitions: int) -> PipelineSettings:
    """The part of the configuration that the Python workers need. commands_partitions: as Kafka has them."""
    engine, topics = settings.engine, settings.topics
    return PipelineSettings(
        commands_partitions=commands_partitions,
        topics=Topics(
            messages=topics.messages,
            events=topics.events,
            commands=topics.commands,
            uplink=topics.uplink,
            receipts=topics.receipts,
            dead_letters=topics.dead_letters,
            ledger=topics.ledger,
            throttle=topics.throttle,
        ),
        session=settings.session.to_session_settings(),
        profiles=tuple(Profile(pattern=pattern, session=session) for pattern, session in settings.session_profiles),
        policies=permitted(
            [policy.to_policy() for policy in settings.policies],
            [permission.to_permission() for permission in settings.permissions],
        ),
        exchanges=Exchanges(declared=tuple(exchange.to_exchange() for exchange in settings.exchanges)),
        limits=RecordLimits(
            max_payload_bytes=engine.max_payload_bytes,
            max_headers_bytes=engine.max_headers_bytes,
            max_record_bytes=engine.max_record_bytes,
            max_client_id_bytes=settings.gateway.max_client_id_bytes,
        ),
        receipts=engine.receipts,
        ledger=engine.ledger,
        lean_worker=engine.lean_worker,
    )


def _watch(
    query: StreamingQuery,
    data_dir: Path,
    on_ready: Callable[[], None],
    stop: threading.Event,
    on_progress: Callable[[BatchProgress], None],
    may_have_news: Callable[[], bool],
) -> None:
    """Follows the query until `stop`. Raises QueryFailed when it ends by itself."""
    reader, file, ready = ProgressReader(query), ProgressFile(data_dir), False
    next_look_s = 0.0
    while not stop.wait(_LOOK_S):
        if not may_have_news() and time.monotonic() < next_look_s:
            continue
        next_look_s = time.monotonic() + _IDLE_LOOK_S
        batches = reader.new()
        file.append(batches)
        for batch in batches:
            on_progress(batch)
        if batches and not ready:
            ready = True
            on_ready()
        if not query.isActive:
            raise QueryFailed(_explanation(query))


def _explanation(query: StreamingQuery) -> str:
    error = query.exception()
    cause = "nobody said why" if error is None else str(error).split("=== Streaming Query ===")[0].strip()
    return (
        f"the query {query.name!r} died: {cause}\n"
        "Nothing is lost: start the engine again and it goes on where it was. If it dies again with the same words, look at "
        "logs/spark.log in the data directory and at docs/operations.md."
    )


def _spark_value(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
