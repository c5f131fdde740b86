"""Runs the engine: one process, one Spark session, the query `sessions`, and beside it the query `archive` (streaming/archive).

Steps of a start, in this order:
1. Check the topics, and that the checkpoint fits them (streaming/engine/ownership/checkpoint_checks.py). One that is not on a
   local path is checked in step 4.
2. Write the record that gives the query a first micro-batch (`write_wake_up`). Its time shows whether the clock is right.
3. Start Spark, and its Python workers meanwhile (streaming/engine/lifecycle/early_workers.py).
4. Take the lock of the checkpoint, and join the group of the engines: no other one runs on the topics
   (streaming/engine/ownership/engine_group.py). With routing, write the subscriptions of stored sessions
   (streaming/engine/stored_subscriptions.py). A standby waits for the lock (streaming/engine/lifecycle/standby.py), and does
   steps 1 and 2 when it has it.
5. Record the settings of the next micro-batches (streaming/engine/lifecycle/settings_log.py) and start the query. If topics have
   got more partitions, first run a query that reads the old ones to their end (streaming/engine/ownership/partitions.py).
6. After the first micro-batch, which also starts the timers of the sessions, report that the engine is ready.
7. Start the query `archive`, which the sessions do not wait for.
8. Ask backends to wait whenever the engine cannot keep up (streaming/engine/watching/back_pressure.py).
9. End the connections of gateways and bridges that are gone (streaming/engine/leases/keeper.py).
10. Answer questions about the sessions for commands on this machine (streaming/engine/answers).
11. Record in the ledger what each micro-batch read (streaming/engine/batch_record.py).

From step 5 on a watchdog ends the process when the query hangs (streaming/engine/watching/watchdog.py).

From step 6 on the micro-batches follow the pace of streaming/engine/pacing. A changed configuration takes effect between two of
them, by a stop and a start of the query alone (streaming/engine/lifecycle/reload.py). A stop ends the query before the rest.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final, TypeAlias

import structlog

from state.records.routes import MessagesTopic, announcements
from streaming.archive.keeper import ArchiveKeeper
from streaming.checkpoint_topics import TopicIds, record_checkpoint_topics, recorded_generations
from streaming.config.settings import Settings
from streaming.engine.answers.server import AnswerServer
from streaming.engine.batch_record import BatchRecorder
from streaming.engine.kafka_access import require_right_clock, write_records, write_wake_up
from streaming.engine.leases.keeper import LeaseKeeper, LeaseReport
from streaming.engine.lifecycle.accepted_loss import go_on_without_lost_records
from streaming.engine.lifecycle.early_workers import start_workers_early
from streaming.engine.lifecycle.reload import Reloader
from streaming.engine.lifecycle.sessions_query import SessionsQuery
from streaming.engine.lifecycle.settings_log import FOLDER, SettingsLog, pipeline_settings
from streaming.engine.lifecycle.standby import Standby, own_as_standby
from streaming.engine.ownership.checkpoint_checks import check_before_spark, check_checkpoint, explaining_failures
from streaming.engine.ownership.checkpoint_format import record_format
from streaming.engine.ownership.checkpoint_lineage import checkpoint_lineage
from streaming.engine.ownership.engine_group import EngineGroup, checkpoint_id, starting_offsets
from streaming.engine.ownership.partitions import (
    AddedPartitions,
    PartitionCounts,
    PartitionWatch,
    added_partitions,
    record_partitions,
    watched_ids,
)
from streaming.engine.ownership.repartition import own_checkpoint
from streaming.engine.pacing.wake_ups import WakeUpReader
from streaming.engine.progress import BatchProgress, ProgressFile
from streaming.engine.spark_options import SparkJars
from streaming.engine.spark_session import start_spark
from streaming.engine.stored_subscriptions import announce_stored_subscriptions
from streaming.engine.watching.back_pressure import BackPressure
from streaming.engine.watching.consumer_lag import ConsumerLag, LagObserver
from streaming.engine.watching.dropped_messages import DropLog
from streaming.engine.watching.health import EngineHealth
from streaming.engine.watching.misplaced_records import PartitionerCheck
from streaming.engine.watching.session_stats import SessionStats, SessionStatsCollector
from streaming.engine.watching.watchdog import Watchdog
from streaming.settings import OFF
from streaming.spark_internals.checkpoint import CheckpointFiles, Offsets
from streaming.spark_internals.locations import is_local_path
from streaming.topics import TopicReport, dead_letter_topic_bytes, require_safe_topics

_log: Final = structlog.get_logger(__name__)
_POLL_S: Final = 0.1
_IDLE_POLL_S: Final = 1.0

BatchObserver: TypeAlias = Callable[[BatchProgress], None]


def run_engine(
    settings: Settings,
    *,
    jars: SparkJars | None,
    on_ready: Callable[[], None],
    stop: threading.Event,
    on_progress: BatchObserver = lambda batch: None,
    on_leases: Callable[[LeaseReport], None] = lambda report: None,
    on_lag: LagObserver = lambda lag, held: None,
    on_misplaced: Callable[[int], None] = lambda count: None,
    on_session_stats: Callable[[SessionStats], None] = lambda stats: None,
    new_settings: Callable[[], Settings | None] = lambda: None,
    health: EngineHealth | None = None,
    standby: Standby | None = None,
    accept_loss: bool = False,
) -> None:
    """Runs the engine until `stop` is set. Returns when everything is stopped.

    A running micro-batch is finished if that takes at most ten seconds; otherwise the next start executes it again.

    Args:
        jars: None under spark-submit, which brings them.
        on_ready: Called once, when devices get answers.
        on_progress: Called after every micro-batch.
        on_leases: Called about once a second, on another thread.
        on_lag: Called every few seconds, on another thread, with the waiting records by topic, and with those that open
            transactions hold back.
        on_misplaced: Called with the number of records of `inflight.messages` that were found in a wrong partition, on another
            thread.
        on_session_stats: Called after each collection, on another thread.
        new_settings: Called often; None = nothing is new.
        health: To be watched from outside.
        standby: If given, waits for an engine that works on the checkpoint, and takes over when it is gone.
        accept_loss: Goes on without unread records that are gone.

    Raises:
        UnsafeTopics, KafkaUnreachable, CheckpointInUse, NewerCheckpoint, CheckpointMismatch, EngineRuns, UnreadableSettings,
            TopicsReplaced, RecordsGone, EngineClockOff: Before anything runs.
        QueryFailed: The query died; NewerEvent if such an event is the reason.
        EngineFenced: Another engine has taken over.
        PartitionsChanged: A topic has got more partitions.
        TopicsReplaced: A topic was made anew.
    """
    health = health or EngineHealth(settings)
    report = _checked_topics(settings)  # step 1
    if standby is None:
        check_before_spark(settings, report, accept_loss=accept_loss)
        require_right_clock(write_wake_up(settings))  # step 2
    spark = start_spark(settings, jars)  # step 3
    try:
        location = settings.sessions_checkpoint
        files = CheckpointFiles(spark, location)
        if standby is None:
            start_workers_early(spark)
            lock = own_checkpoint(spark, location)  # step 4
        else:
            lock = own_as_standby(spark, settings, report, standby, stop)
            if stop.is_set():
                return
            report = _checked_topics(settings)
            require_right_clock(write_wake_up(settings))
        partitions, ids = report.partitions, TopicIds.of(report)
        read = {topic: partitions[topic] for topic in (settings.topics.messages, settings.topics.events)}
        if standby is not None or not is_local_path(location):
            check_checkpoint(files, settings, report, accept_loss=accept_loss)
        with explaining_failures(files, settings), EngineGroup(settings, checkpoint_id(files), ids.topics) as group:
            record_format(files)
            is_planned_anew = accept_loss and go_on_without_lost_records(spark, files, settings, report)
            record_checkpoint_topics(files, report, read)
            generations = recorded_generations(files)
            announced = MessagesTopic(
                topic_id=ids.topics.get(settings.topics.messages, ""), generation=generations.get(settings.topics.messages, 0)
            )
            write_records(settings, announcements(settings.topics.routes, partitions[settings.topics.routes], announced))
            committed = group.committed()
            starting = {topic: starting_offsets(topic, count, committed) for topic, count in read.items()}
            log = SettingsLog(CheckpointFiles(spark, location, FOLDER))
            added = added_partitions(files, settings, read)
            lineage = checkpoint_lineage(files, committed)
            announce_stored_subscriptions(spark, files, settings, ids, lineage)
            pipeline_of = partial(
                pipeline_settings,
                commands_partitions=partitions[settings.topics.commands],
                checkpoint_lineage=lineage,
                dead_letter_topic_bytes=dead_letter_topic_bytes(settings, report),
                generations=generations,
            )
            start = partial(SessionsQuery, spark, settings, log, pipeline_of(settings), starting, is_planned_anew=is_planned_anew)
            if added is not None and added.ends:
                with _watched(settings, read, committed) as (lag, watchdog), start(added.old) as query:  # step 5
                    checks = (lambda: watchdog.poll(query.work), group.check, query.check)
                    observers = (group.observe, lag.observe, watchdog.observe)
                    _read_to_the_end(query, added, stop, checks=checks, observers=observers)
                if stop.is_set():
                    return
            record_partitions(files, read)
            counts = read | {settings.topics.commands: partitions[settings.topics.commands]}
            interval_s = 0 if settings.metrics.engine_port == OFF else settings.metrics.census_interval / 1_000
            # Failures of the archive, the statistics and back-pressure are logged, and do not end the engine.
            with (
                LeaseKeeper.of(settings, spark, location, on_report=on_leases) as leases,
                SessionStatsCollector.of(spark, location, interval_s=interval_s, on_stats=on_session_stats) as stats,
                AnswerServer.of(spark, settings.engine.data_dir, location) as answers,
                BatchRecorder.of(settings, spark, location) as recorder,
                ArchiveKeeper(spark, settings) as archive,
                BackPressure.of(settings) as throttle,
                PartitionWatch(settings, counts, watched_ids(settings, ids)) as partition_watch,
                _watched(settings, read, committed, on_lag) as (lag, watchdog),
                PartitionerCheck(settings, partitions[settings.topics.messages], on_found=on_misplaced) as partitioners,
                WakeUpReader(settings.kafka.client_options(), settings.topics.wake_ups, lambda: leases.all_wake) as wake_ups,
                start(read, urgency=wake_ups) as query,  # step 5
            ):
                record = recorder.start if settings.engine.ledger else lambda: None
                reloader = Reloader(settings, query, pipeline_of)
                _follow(
                    query,
                    stop,
                    checks=(
                        health.beat,
                        lambda: watchdog.poll(query.work),
                        group.check,
                        partition_watch.check,
                        lambda: reloader.reconfigure(new_settings()),
                    ),
                    observers=(
                        *(group.observe, lag.observe, watchdog.observe, throttle.observe, leases.observe, health.observe),
                        *(recorder.observe, DropLog(settings.engine.data_dir).observe, partitioners.observe, on_progress),
                    ),
                    first_batch=(
                        *(on_ready, archive.start, throttle.start, leases.start, stats.start, answers.start, record),  # 6 to 11
                        *(wake_ups.start, query.start_timers),
                    ),
                    file=ProgressFile(settings.engine.data_dir),
                )
        del lock
    finally:
        spark.stop()


def _checked_topics(settings: Settings) -> TopicReport:
    report = require_safe_topics(settings)
    for warning in report.warnings:
        _log.warning("topic_settings", warning=warning)
    return report


@contextmanager
def _watched(
    settings: Settings, partitions: PartitionCounts, end: Offsets, on_lag: LagObserver = lambda lag, held: None
) -> Iterator[tuple[ConsumerLag, Watchdog]]:
    lag = ConsumerLag(settings, partitions, end, on_lag=on_lag)
    with lag, Watchdog(settings, kafka_answers=lag.kafka_answers) as watchdog:
        yield lag, watchdog


def _read_to_the_end(
    query: SessionsQuery,
    added: AddedPartitions,
    stop: threading.Event,
    *,
    checks: tuple[Callable[[], None], ...],
    observers: tuple[BatchObserver, ...],
) -> None:
    """Returns when the query has read the old partitions, or at `stop`. Raises QueryFailed, EngineFenced."""
    while not stop.wait(_POLL_S):
        for batch in query.new_batches():
            for observe in observers:
                observe(batch)
            if added.are_old_read(batch.end_offsets):
                return
        for check in checks:
            check()


def _follow(
    query: SessionsQuery,
    stop: threading.Event,
    *,
    checks: tuple[Callable[[], None], ...],
    observers: tuple[BatchObserver, ...],
    first_batch: tuple[Callable[[], None], ...],
    file: ProgressFile,
) -> None:
    """Supervises the query until `stop`, then stops it. Raises what ends the engine.

    Args:
        checks: Called often, whatever the query does.
        observers: Called for each micro-batch.
        first_batch: Called after the first micro-batch.
    """

    def report_batches() -> bool:
        batches = query.new_batches()
        file.append(batches)
        for batch in batches:
            for observe in observers:
                observe(batch)
        return bool(batches)

    next_news_s = 0.0
    while not stop.wait(_POLL_S):
        for check in checks:
            check()
        if not query.may_have_news() and time.monotonic() < next_news_s:
            continue
        next_news_s = time.monotonic() + _IDLE_POLL_S
        if report_batches():
            for begin in first_batch:
                begin()
            first_batch = ()
            query.keep_pace()
        query.check()
    query.stop()
    report_batches()
