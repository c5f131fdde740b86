"""Runs the engine: one process, one Spark session, the query `sessions`, and beside it the query `archive` (streaming/archive).

Steps of a start, in this order:
1. Check the topics.
2. Write the record that gives the query a first micro-batch (`write_wake_up`).
3. Start Spark.
4. Take the lock of the checkpoint. Check that its format is known (streaming/engine/ownership/checkpoint_format.py), that its
   shape is the configured one, and that no other engine runs on the topics (streaming/engine/ownership/engine_group.py).
5. Record the settings of the next micro-batches (streaming/engine/lifecycle/settings_log.py) and start the query. If topics have
   got more partitions, first run a query that reads the old ones to their end (streaming/engine/ownership/partitions.py).
6. After the first micro-batch, which also starts the timers of the sessions, report that the engine is ready.
7. Start the query `archive`, which the sessions do not wait for.
8. Ask backends to wait whenever the engine cannot keep up (streaming/engine/watching/back_pressure.py).
9. End the connections of gateways and bridges that are gone (streaming/engine/leases/keeper.py).

From step 5 on a watchdog ends the process when the query hangs (streaming/engine/watching/watchdog.py).

From step 6 on the micro-batches follow the pace of streaming/engine/pacing. A changed configuration takes effect between two of
them, by a stop and a start of the query alone (streaming/engine/lifecycle/reload.py). A stop ends the query before the rest.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from streaming.archive import ArchiveKeeper
from streaming.config.sections import OFF
from streaming.config.settings import Settings
from streaming.config.topics import require_safe_topics
from streaming.engine.kafka_access import write_wake_up
from streaming.engine.leases.keeper import LeaseKeeper, LeaseReport
from streaming.engine.lifecycle.reload import Reloader
from streaming.engine.lifecycle.sessions_query import SessionsQuery, sessions_checkpoint
from streaming.engine.lifecycle.settings_log import FOLDER, SettingsLog, pipeline_settings
from streaming.engine.ownership.checkpoint_format import check_format, record_format
from streaming.engine.ownership.checkpoint_lineage import checkpoint_lineage
from streaming.engine.ownership.engine_group import EngineGroup, checkpoint_id, starting_offsets
from streaming.engine.ownership.partitions import (
    AddedPartitions,
    PartitionCounts,
    PartitionWatch,
    added_partitions,
    record_partitions,
)
from streaming.engine.ownership.repartition import check_state_partitions, own_checkpoint
from streaming.engine.progress import BatchProgress, ProgressFile
from streaming.engine.spark_session import SparkJars, start_spark
from streaming.engine.watching.back_pressure import BackPressure
from streaming.engine.watching.consumer_lag import ConsumerLag
from streaming.engine.watching.health import EngineHealth
from streaming.engine.watching.session_stats import SessionStats, SessionStatsCollector
from streaming.engine.watching.watchdog import Watchdog
from streaming.spark_internals.checkpoint import HadoopFiles, Offsets

_POLL_S: Final = 0.1
_IDLE_POLL_S: Final = 1.0


def run_engine(
    settings: Settings,
    *,
    jars: SparkJars | None,
    on_ready: Callable[[], None],
    stop: threading.Event,
    on_progress: Callable[[BatchProgress], None] = lambda batch: None,
    on_leases: Callable[[LeaseReport], None] = lambda report: None,
    on_lag: Callable[[Mapping[str, int]], None] = lambda lag: None,
    on_session_stats: Callable[[SessionStats], None] = lambda stats: None,
    new_settings: Callable[[], Settings | None] = lambda: None,
    health: EngineHealth | None = None,
) -> None:
    """Runs the engine until `stop` is set. Returns when everything is stopped.

    A running micro-batch is finished if that takes at most ten seconds; otherwise the next start executes it again.

    Args:
        jars: None under spark-submit, which brings them.
        on_ready: Called once, when devices get answers.
        on_progress: Called after every micro-batch.
        on_leases: Called about once a second, on another thread.
        on_lag: Called every few seconds with the waiting records by topic, on another thread.
        on_session_stats: Called after each collection, on another thread.
        new_settings: Called often; returns None if nothing is new.
        health: To be watched from outside.

    Raises:
        UnsafeTopics, KafkaUnreachable, CheckpointInUse, NewerCheckpoint, CheckpointMismatch, EngineRuns, UnreadableSettings,
            RecordsGone: Before anything runs.
        QueryFailed: The query died; NewerEvent if such an event is the reason.
        EngineFenced: Another engine has taken over.
        PartitionsChanged: A topic has got more partitions.
    """
    health = health or EngineHealth(settings)
    report = require_safe_topics(settings)  # 1
    partitions = {topic.name: topic.partitions for topic in report.topics}
    read = {topic: partitions[topic] for topic in (settings.topics.messages, settings.topics.events)}
    write_wake_up(settings)  # 2
    spark = start_spark(settings, jars)  # 3
    try:
        location = sessions_checkpoint(settings)
        files = HadoopFiles(spark, location)
        lock = own_checkpoint(spark, location)  # 4
        check_format(files)
        check_state_partitions(files, settings.engine.state_partitions)
        with EngineGroup(settings, checkpoint_id(files)) as group:
            record_format(files)
            committed = group.committed()
            starting = {topic: starting_offsets(topic, count, committed) for topic, count in read.items()}
            log = SettingsLog(HadoopFiles(spark, location, FOLDER))
            added = added_partitions(files, settings, read)
            lineage = checkpoint_lineage(files, settings, committed)
            pipeline_of = partial(
                pipeline_settings, commands_partitions=partitions[settings.topics.commands], checkpoint_lineage=lineage
            )
            start = partial(SessionsQuery, spark, settings, log, pipeline_of(settings), starting)
            if added is not None and added.ends:
                with _watched(settings, read, committed) as watch, start(added.old) as old_query:  # 5
                    _read_to_the_end(old_query, added, group, watch, stop)
                if stop.is_set():
                    return
            record_partitions(files, read)
            counts = read | {settings.topics.commands: partitions[settings.topics.commands]}
            with ExitStack() as stack:
                enter = stack.enter_context
                # Failures of these are logged, and do not end the engine.
                leases = enter(LeaseKeeper.of(settings, spark, location, on_report=on_leases))
                interval_s = 0 if settings.metrics.engine_port == OFF else settings.metrics.census_interval / 1_000
                stats = enter(SessionStatsCollector.of(spark, location, interval_s=interval_s, on_stats=on_session_stats))
                archive = enter(ArchiveKeeper(spark, settings))
                throttle = enter(BackPressure.of(settings))
                partition_watch = enter(PartitionWatch(settings, counts))
                watch = enter(_watched(settings, read, committed, on_lag))
                query = enter(start(read))  # 5
                engine = _RunningEngine(
                    query=query,
                    group=group,
                    watch=watch,
                    partition_watch=partition_watch,
                    reloader=Reloader(settings, query, pipeline_of),
                    throttle=throttle,
                    leases=leases,
                    health=health,
                    file=ProgressFile(settings.engine.data_dir),
                    on_progress=on_progress,
                    new_settings=new_settings,
                )
                # 6 to 9
                engine.follow((on_ready, archive.start, throttle.start, leases.start, stats.start), stop)
        del lock
    finally:
        spark.stop()


@dataclass(frozen=True, slots=True, kw_only=True)
class _QueryWatch:
    """Watches the query from outside."""

    lag: ConsumerLag
    watchdog: Watchdog

    def observe(self, batch: BatchProgress) -> None:
        self.lag.observe(batch.end_offsets)
        self.watchdog.observe()


@contextmanager
def _watched(
    settings: Settings, partitions: PartitionCounts, end: Offsets, on_lag: Callable[[Mapping[str, int]], None] = lambda lag: None
) -> Iterator[_QueryWatch]:
    lag = ConsumerLag(settings, partitions, end, on_lag=on_lag)
    with lag, Watchdog(settings, kafka_answers=lag.kafka_answers) as watchdog:
        yield _QueryWatch(lag=lag, watchdog=watchdog)


def _read_to_the_end(
    query: SessionsQuery, added: AddedPartitions, group: EngineGroup, watch: _QueryWatch, stop: threading.Event
) -> None:
    """Returns when the query has read the old partitions, or at `stop`. Raises QueryFailed, EngineFenced."""
    while not stop.wait(_POLL_S):
        watch.watchdog.poll(query.work)
        for batch in query.new_batches():
            group.observe(batch.end_offsets)
            watch.observe(batch)
            if added.are_old_read(batch.end_offsets):
                return
        group.check()
        query.check()


@dataclass(frozen=True, slots=True, kw_only=True)
class _RunningEngine:
    """The query, and everything that reacts to its micro-batches."""

    query: SessionsQuery
    group: EngineGroup
    watch: _QueryWatch
    partition_watch: PartitionWatch
    reloader: Reloader
    throttle: BackPressure
    leases: LeaseKeeper
    health: EngineHealth
    file: ProgressFile
    on_progress: Callable[[BatchProgress], None]
    new_settings: Callable[[], Settings | None]

    def follow(self, after_first_batch: tuple[Callable[[], None], ...], stop: threading.Event) -> None:
        """Supervises the query until `stop`, then stops it. Raises what ends the engine.

        Args:
            after_first_batch: Called in this order after the first micro-batch.
        """
        next_news_s = 0.0
        while not stop.wait(_POLL_S):
            self._poll()
            if not self.query.may_have_news() and time.monotonic() < next_news_s:
                continue
            next_news_s = time.monotonic() + _IDLE_POLL_S
            if self._report_batches():
                for begin in after_first_batch:
                    begin()
                after_first_batch = ()
                self.query.keep_pace()
            self.query.check()
        self.query.stop()
        self._report_batches()

    def _poll(self) -> None:
        """Does what must happen often, whatever the query does."""
        self.health.beat()
        self.watch.watchdog.poll(self.query.work)
        self.group.check()
        self.partition_watch.check()
        if (new := self.new_settings()) is not None:
            self.reloader.reconfigure(new)

    def _report_batches(self) -> bool:
        """Passes on the micro-batches that have ended. Returns False if there were none."""
        batches = self.query.new_batches()
        self.file.append(batches)
        for batch in batches:
            self.group.observe(batch.end_offsets)
            self.watch.observe(batch)
            self.throttle.observe(batch)
            self.leases.observe(batch)
            self.health.observe(batch)
            self.on_progress(batch)
        return bool(batches)
