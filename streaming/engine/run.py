"""The engine: one process, one Spark session, the query `sessions`, and beside it the query `archive` (streaming/archive).

Steps of a start, in this order:
1. check the topics;
2. write the record that gives the query a first micro-batch (streaming/engine/lifecycle/wake_up.py);
3. start Spark;
4. take the lock of the checkpoint, check that its format is known (streaming/engine/ownership/checkpoint_format.py) and its
   shape the configured one, and that no other engine works on the topics (streaming/engine/ownership/engine_group.py);
5. record the settings of its next micro-batches (streaming/engine/lifecycle/settings_log.py) and start the query; if topics have
   got more partitions, first one that reads the old ones to their end (streaming/engine/ownership/partitions.py);
6. after the first micro-batch, which also starts the timers of the sessions, say that the engine is ready;
7. start the query `archive`, which nobody waits for;
8. tell backends to wait whenever the engine cannot keep up (streaming/engine/watching/back_pressure.py);
9. end the connections of gateways and bridges that are gone (streaming/engine/leases/keeper.py).

From 5 on a watchdog ends the process when the query hangs (streaming/engine/watching/watchdog.py).

From 6 on the micro-batches follow the pace of streaming/engine/pacing. A configuration that changes is put in force between two
of them, by a stop and a start of the query alone (streaming/engine/lifecycle/reload.py). A stop ends the query before the rest.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Final

from streaming.archive import ArchiveKeeper
from streaming.config.sections import OFF
from streaming.config.settings import Settings
from streaming.config.topics import require_safe_topics
from streaming.engine.leases.keeper import LeaseKeeper, LeaseReport
from streaming.engine.lifecycle.pipeline import pipeline_settings
from streaming.engine.lifecycle.reload import Reloader
from streaming.engine.lifecycle.sessions_query import SessionsQuery, sessions_checkpoint
from streaming.engine.lifecycle.settings_log import FOLDER, SettingsLog
from streaming.engine.lifecycle.spark import start_spark
from streaming.engine.lifecycle.wake_up import write_wake_up
from streaming.engine.ownership.checkpoint import Offsets, check_state_partitions, lock_checkpoint
from streaming.engine.ownership.checkpoint_format import check_format, record_format
from streaming.engine.ownership.checkpoint_lineage import history_of
from streaming.engine.ownership.engine_group import EngineGroup, checkpoint_id, starting_offsets
from streaming.engine.ownership.partitions import Counts, Growth, PartitionWatch, growth, record_partitions
from streaming.engine.progress import BatchProgress, ProgressFile
from streaming.engine.spark_session import SparkJars
from streaming.engine.watching.back_pressure import BackPressure
from streaming.engine.watching.consumer_lag import ConsumerLag
from streaming.engine.watching.health import EngineHealth
from streaming.engine.watching.session_stats import Census, SessionStatsCollector
from streaming.engine.watching.watchdog import Watchdog
from streaming.spark_internals.checkpoint_files import HadoopFiles

_LOOK_S: Final = 0.1
_IDLE_LOOK_S: Final = 1.0


def run_engine(
    settings: Settings,
    *,
    jars: SparkJars | None,
    on_ready: Callable[[], None],
    stop: threading.Event,
    on_progress: Callable[[BatchProgress], None] = lambda batch: None,
    on_leases: Callable[[LeaseReport], None] = lambda report: None,
    on_lag: Callable[[Mapping[str, int]], None] = lambda lag: None,
    on_census: Callable[[Census], None] = lambda census: None,
    new_settings: Callable[[], Settings | None] = lambda: None,
    health: EngineHealth | None = None,
) -> None:
    """Runs the engine until `stop` is set. Returns when everything is stopped. A micro-batch that runs is finished if that takes
    no more than ten seconds, else it is executed again by the next start.

    jars: None under spark-submit, which brings them.
    on_ready: called once, when devices get answers. on_progress: called after every micro-batch. on_leases: called about once a
    second, on_lag every few seconds with the records that wait, by topic, on_census after each census; all on other threads.
    new_settings: called often; None = nothing is new. health: to watch from outside.
    Raises UnsafeTopics, KafkaUnreachable, CheckpointInUse, NewerCheckpoint, CheckpointMismatch, EngineRuns, UnreadableSettings
    before anything runs; QueryFailed when the query dies, NewerEvent when it has come to one; EngineFenced when another has
    taken over, PartitionsChanged when a topic has got more partitions.
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
        lock = lock_checkpoint(spark, location)  # 4
        check_format(files)
        check_state_partitions(files, settings.engine.state_partitions)
        with EngineGroup(settings, checkpoint_id(files)) as group:
            record_format(files)
            committed = group.committed()
            starting = {topic: starting_offsets(topic, count, committed) for topic, count in read.items()}
            log = SettingsLog(HadoopFiles(spark, location, FOLDER))
            grown = growth(files, settings, read)
            history = history_of(files, settings, committed)
            pipeline = pipeline_settings(settings, commands_partitions=partitions[settings.topics.commands], history=history)
            start = partial(SessionsQuery, spark, settings, log, pipeline, starting)
            if grown is not None and grown.ends:
                with _watched(settings, read, committed) as watch, start(grown.old) as old_query:  # 5
                    _read_to_the_end(old_query, grown, group, watch, stop)
                if stop.is_set():
                    return
            record_partitions(files, read)
            # Failures of the archive and of back-pressure are reported and are not ours.
            with (
                LeaseKeeper.of(settings, spark, location, on_report=on_leases) as leases,
                SessionStatsCollector.of(spark, location, interval_s=_census_interval_s(settings), on_census=on_census) as census,
                ArchiveKeeper(spark, settings) as archive,
                BackPressure.of(settings) as throttle,
                PartitionWatch(settings, read | {settings.topics.commands: pipeline.commands_partitions}) as partition_watch,
                _watched(settings, read, committed, on_lag) as watch,
                start(read) as query,  # 5
            ):
                running = _Running(
                    query=query,
                    group=group,
                    watch=watch,
                    partition_watch=partition_watch,
                    reloader=Reloader(settings, query, commands_partitions=pipeline.commands_partitions, history=history),
                    archive=archive,
                    throttle=throttle,
                    leases=leases,
                    census=census,
                    health=health,
                )
                hooks = _Hooks(on_ready=on_ready, on_progress=on_progress, new_settings=new_settings)
                running.follow(ProgressFile(settings.engine.data_dir), hooks, stop)
        del lock
    finally:
        spark.stop()


def _census_interval_s(settings: Settings) -> float:
    """0 where nobody would see it."""
    return 0 if settings.metrics.engine_port == OFF else settings.metrics.census_interval / 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class _Watch:
    """What looks at the query from outside."""

    lag: ConsumerLag
    watchdog: Watchdog

    def observe(self, batch: BatchProgress) -> None:
        self.lag.observe(batch.end_offsets)
        self.watchdog.observe()


@contextmanager
def _watched(
    settings: Settings, partitions: Counts, end: Offsets, on_lag: Callable[[Mapping[str, int]], None] = lambda lag: None
) -> Iterator[_Watch]:
    lag = ConsumerLag(settings, partitions, end, on_lag=on_lag)
    with lag, Watchdog(settings, kafka_answers=lag.kafka_answers) as watchdog:
        yield _Watch(lag=lag, watchdog=watchdog)


def _read_to_the_end(query: SessionsQuery, grown: Growth, group: EngineGroup, watch: _Watch, stop: threading.Event) -> None:
    """Returns when the query has read the old partitions, or at `stop`. Raises QueryFailed, EngineFenced."""
    while not stop.wait(_LOOK_S):
        watch.watchdog.look(query.work)
        for batch in query.new_batches():
            group.observe(batch.end_offsets)
            watch.observe(batch)
            if grown.is_read(batch.end_offsets):
                return
        group.check()
        query.check()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hooks:
    """Of `run_engine`."""

    on_ready: Callable[[], None]
    on_progress: Callable[[BatchProgress], None]
    new_settings: Callable[[], Settings | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Running:
    """The query, and what works beside it."""

    query: SessionsQuery
    group: EngineGroup
    watch: _Watch
    partition_watch: PartitionWatch
    reloader: Reloader
    archive: ArchiveKeeper
    throttle: BackPressure
    leases: LeaseKeeper
    census: SessionStatsCollector
    health: EngineHealth

    def follow(self, file: ProgressFile, hooks: _Hooks, stop: threading.Event) -> None:
        """Until `stop`; then the query is stopped. Raises what ends the engine."""
        ready, next_news_s = False, 0.0
        while not stop.wait(_LOOK_S):
            self._look(hooks)
            if not self.query.may_have_news() and time.monotonic() < next_news_s:
                continue
            next_news_s = time.monotonic() + _IDLE_LOOK_S
            if self._tell(file, hooks):
                if not ready:
                    ready = True
                    self._begin(hooks)
                self.query.keep_pace()
            self.query.check()
        self.query.stop()
        self._tell(file, hooks)

    def _look(self, hooks: _Hooks) -> None:
        """Often, whatever the query does."""
        self.health.look()
        self.watch.watchdog.look(self.query.work)
        self.group.check()
        self.partition_watch.check()
        if (new := hooks.new_settings()) is not None:
            self.reloader.take(new)

    def _begin(self, hooks: _Hooks) -> None:
        """After the first micro-batch."""
        hooks.on_ready()  # 6
        self.archive.start()  # 7
        self.throttle.start()  # 8
        self.leases.start()  # 9
        self.census.start()

    def _tell(self, file: ProgressFile, hooks: _Hooks) -> bool:
        """Hands on the micro-batches that have ended. False = there were none."""
        batches = self.query.new_batches()
        file.append(batches)
        for batch in batches:
            self.group.observe(batch.end_offsets)
            self.watch.observe(batch)
            self.throttle.observe(batch)
            self.leases.observe(batch)
            self.health.observe(batch)
            hooks.on_progress(batch)
        return bool(batches)
