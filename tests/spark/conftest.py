"""The tests of this directory share a Spark session; every test has its own topics and checkpoint."""

import itertools
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaProducer
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from inflight.local.spark_jars import spark_jars
from state.commands import GatewayCommand, SendPublish
from state.events import ClientConnected, DeadlineReached, LoggedEvent
from state.records.commands import decode_command_batch
from state.records.events import encode_event
from state.settings import Topics
from streaming.config.settings import Settings
from streaming.engine.kafka_access import TopicLog
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.session_operator import Function
from streaming.engine.pacing.deadline_index import DeadlineIndex
from streaming.engine.pacing.engine_clock import EngineClock
from streaming.engine.pacing.session_timers import SessionTimers, stored_timers
from streaming.engine.query import read_records, sessions, sessions_writer
from streaming.engine.spark_options import SparkSettings
from streaming.engine.spark_session import spark_session
from tests.support.kafka_topics import ReadRecord, create_topics, read_topic
from tests.support.micro_batches import await_batches
from tests.support.shared import SharedKafka
from tests.support.waiting import DEADLINE_S

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    directory = tmp_path_factory.mktemp("spark")
    settings = SparkSettings(
        checkpoint_location=str(directory), log_file=directory / "spark.log", master="local[2]", state_partitions=2
    )
    session = spark_session(settings, spark_jars())
    yield session
    session.stop()


def newest_batch(folder: Path) -> int:
    """The greatest number of a file in Spark's offset log or commit log, -1 if there is none."""
    return max((int(path.name) for path in folder.glob("[0-9]*")), default=-1)


def publishes_of(commands: list[GatewayCommand]) -> list[SendPublish]:
    return [command for command in commands if isinstance(command, SendPublish)]


@dataclass
class Pipeline:
    """The query `sessions` between topics of its own. Run it with `start`, or in a `with`; it is stopped at the end."""

    spark: SparkSession
    bootstrap_servers: str
    settings: PipelineSettings
    checkpoint: Path
    trigger_interval_ms: int = 300
    max_offsets_per_trigger: int = 10_000
    query: StreamingQuery | None = None
    producers: list[KafkaProducer] = field(default_factory=list)

    def __post_init__(self) -> None:
        create_topics(self.bootstrap_servers, *(getattr(self.settings.topics, name) for name in Topics.__slots__), partitions=2)
        self.producer = KafkaProducer(bootstrap_servers=self.bootstrap_servers, acks="all")

    def start(
        self, function: Function | None = None, *, then: Callable[[DataFrame], DataFrame] = lambda rows: rows
    ) -> StreamingQuery:
        """then: what is done with the rows before they are written."""
        kafka_options = {"kafka.bootstrap.servers": self.bootstrap_servers}
        records = read_records(
            self.spark, self.settings, kafka_options=kafka_options, max_offsets_per_trigger=self.max_offsets_per_trigger
        )
        self.query = sessions_writer(
            then(sessions(records, self.settings, function)),
            self.settings,
            kafka_options=kafka_options,
            checkpoint_location=str(self.checkpoint),
            trigger_interval_ms=self.trigger_interval_ms,
        ).start()
        return self.query

    def stop(self) -> None:
        if self.query is not None:
            self.query.stop()
            self.query = None

    def close(self) -> None:
        self.stop()
        self.producer.close()

    def send(self, topic: str, value: bytes | None, *, key: bytes | None, headers: Sequence[tuple[str, bytes]] = ()) -> None:
        """Appends one record and waits for its confirmation."""
        self.producer.send(topic, value, key=key, headers=list(headers)).get(DEADLINE_S)

    def send_message(self, client_id: str, payload: bytes, *headers: tuple[str, bytes], topic: str = "t") -> None:
        all_headers = [("mqtt-topic", topic.encode()), *headers]
        self.send(self.settings.topics.messages, payload, key=client_id.encode(), headers=all_headers)

    def send_event(self, client_id: str, event: LoggedEvent) -> None:
        self.send(self.settings.topics.events, encode_event(event), key=client_id.encode())

    def connect(self, client_id: str, *, connection_id: int = 1, partition: int = 0, **fields: Any) -> None:
        options = {"clean_start": False, "session_expiry_interval_s": 3_600, **fields}
        self.send_event(client_id, ClientConnected(connection_id=connection_id, commands_partition=partition, **options))

    def read(self, topic: str, count: int) -> list[ReadRecord]:
        """The first records of a topic, by partition and offset, as soon as there are `count`; fails if the query dies first."""
        return read_topic(self.bootstrap_servers, topic, lambda records: len(records) >= count, check=self.check)

    def commands(self, enough: Callable[[list[GatewayCommand]], bool]) -> list[GatewayCommand]:
        """Returns all gateway commands so far, as soon as they are `enough`."""

        def decoded(records: list[ReadRecord]) -> list[GatewayCommand]:
            return [command for record in records for command in decode_command_batch(record.value or b"").commands]

        records = read_topic(
            self.bootstrap_servers, self.settings.topics.commands, lambda found: enough(decoded(found)), check=self.check
        )
        return decoded(records)

    def publishes(self, count: int) -> list[SendPublish]:
        """Returns all PUBLISH commands so far, as soon as there are `count`."""
        return publishes_of(self.commands(lambda found: len(publishes_of(found)) >= count))

    def committed(self) -> int:
        """The number of the newest micro-batch in the commit log, -1 if there is none."""
        return newest_batch(self.checkpoint / "commits")

    def check(self) -> None:
        if self.query is not None and (error := self.query.exception()) is not None:
            raise AssertionError(f"the query died: {error}")

    def await_batches(self, count: int) -> None:
        """Returns when `count` more micro-batches have been committed."""
        events = self.settings.topics.events
        await_batches(self.bootstrap_servers, self.committed, count, topic=events, check=self.check)

    def call(self, client_id: str) -> None:
        """Calls a session whose deadline has come, as the engine's driver does."""
        self.send_event(client_id, DeadlineReached())

    @contextmanager
    def calling(self, *clients: str) -> Iterator[None]:
        """Calls these sessions five times a second. A call before the deadline changes nothing."""
        ended = threading.Event()

        def call() -> None:
            while not ended.wait(0.2):
                for client_id in clients:
                    self.call(client_id)

        thread = threading.Thread(target=call, name="calls")
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def session_timers(pipeline: Pipeline, clock: EngineClock, *, longest_pause_ms: int, limit: int = 0) -> SessionTimers:
    """The timers of a pipeline's sessions, as the engine has them. limit: of their index."""
    settings = Settings(kafka={"bootstrap_servers": pipeline.bootstrap_servers})
    log = TopicLog(settings, pipeline.settings.topics.events, client_id="timers", max_block_ms=5_000, delivery_timeout_ms=9_000)
    read_stored = partial(stored_timers, pipeline.spark, str(pipeline.checkpoint))
    return SessionTimers(DeadlineIndex(limit), log, read_stored, clock.now_ms, longest_pause_ms=longest_pause_ms)


@pytest.fixture
def topics() -> Topics:
    prefix = f"spark-{os.environ.get('PYTEST_XDIST_WORKER', 'only')}-{next(_numbers)}"
    return Topics(**{name: f"{prefix}.{name.replace('_', '-')}" for name in Topics.__slots__})


@pytest.fixture
def pipeline(spark: SparkSession, kafka: SharedKafka, topics: Topics, tmp_path: Path) -> Iterator[Pipeline]:
    settings = PipelineSettings(topics=topics, commands_partitions=2)
    made = Pipeline(spark, kafka.bootstrap_servers, settings, tmp_path / "checkpoint")
    yield made
    made.close()
