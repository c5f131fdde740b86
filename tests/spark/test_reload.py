"""A configuration that changes while the engine runs: policies of the new file hold from a micro-batch on, connections stay."""

import itertools
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from state.commands import AcceptConnection, SendPublish
from streaming.config.settings import load_settings
from streaming.engine.kafka_access import write_wake_up
from streaming.engine.lifecycle.reload import Reloader
from streaming.engine.lifecycle.sessions_query import SessionsQuery, sessions_checkpoint
from streaming.engine.lifecycle.settings_log import FOLDER, SettingsLog, pipeline_settings
from streaming.reload.configuration_watch import ConfigurationWatch
from streaming.spark_internals.checkpoint import CheckpointFiles
from streaming.topics import ensure_topics
from tests.spark.child_engine import READY_S
from tests.spark.engine_topics import EngineTopics
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.spark, pytest.mark.servers, pytest.mark.timeout(180)]

ROOT = Path(__file__).parents[2]
_numbers = itertools.count(1)


class Installation(EngineTopics):
    """Topics with a configuration file."""

    def __init__(self, kafka: SharedKafka, directory: Path) -> None:
        self.file = directory / "inflight.toml"
        super().__init__(kafka, f"reload-{next(_numbers)}")
        self._lines = (
            f'kafka.bootstrap_servers = "{self.kafka}"\ntopics.prefix = "{self.prefix}"\nengine.data_dir = "{directory}"\n'
            "topics.partitions.commands = 1\n"
        )
        self.configure("")
        ensure_topics(load_settings(self.file))

    def configure(self, text: str) -> None:
        self.file.write_text(self._lines + text, encoding="utf-8")


@pytest.fixture
def installation(kafka: SharedKafka, tmp_path: Path) -> Iterator[Installation]:
    made = Installation(kafka, tmp_path)
    yield made
    made.producer.close()


class Running:
    """Does step by step what streaming/engine/run.py does with query and configuration."""

    def __init__(self, watch: ConfigurationWatch, reloader: Reloader, query: SessionsQuery) -> None:
        self.batch_ids: list[int] = []
        self._watch, self._reloader, self._query = watch, reloader, query

    def look(self) -> bool:
        """Polls the configuration and the query once. Returns True if there were new settings."""
        if (new := self._watch.changed()) is not None:
            self._reloader.reconfigure(new)
        if batches := self._query.new_batches():
            self._query.keep_pace()
        self.batch_ids += [batch.batch_id for batch in batches]
        self._query.check()
        return new is not None

    def await_batches(self, count: int) -> None:
        target = len(self.batch_ids) + count
        wait_until(lambda: self.look() or len(self.batch_ids) >= target, "micro-batches")


@contextmanager
def running(spark: SparkSession, installation: Installation) -> Iterator[Running]:
    watch = ConfigurationWatch(installation.file, lambda: load_settings(installation.file))
    settings = watch.load()
    write_wake_up(settings)
    pipeline = pipeline_settings(settings, commands_partitions=1)
    log = SettingsLog(CheckpointFiles(spark, sessions_checkpoint(settings), FOLDER))
    with SessionsQuery(spark, settings, log, pipeline, starting_offsets={}, partitions={}) as query:
        yield Running(watch, Reloader(settings, query, partial(pipeline_settings, commands_partitions=1)), query)
        query.stop()


def test_a_changed_policy_holds_for_the_next_messages(spark: SparkSession, installation: Installation) -> None:
    with running(spark, installation) as engine:
        installation.connect(1, b"here")
        installation.send(b"1", b"here")
        installation.send(b"waits", b"away")  # without an end
        engine.await_batches(2)
        installation.configure('[[policies]]\nname = "short"\nclients = "away"\nmessage_ttl = "1s"\n')
        wait_until(engine.look, "the reload")
        engine.await_batches(2)
        installation.send(b"late", b"away")
        installation.send(b"2", b"here")
        engine.await_batches(3)
        assert installation.outcomes(1) == {"late": "expired"}
        commands = installation.commands(lambda found: len(found) >= 3)
        assert [type(command) for command in commands] == [AcceptConnection, SendPublish, SendPublish]
        assert [command.sequence for command in commands] == [1, 2, 3]
        assert {command.connection_id for command in commands} == {1}
        assert engine.batch_ids == sorted(set(engine.batch_ids))


@pytest.mark.faults
def test_a_running_engine_reloads_a_changed_file_and_continues(installation: Installation, tmp_path: Path) -> None:
    """Pace, archive, leases and backpressure continue, and a stop ends between two micro-batches."""
    log = tmp_path / "engine.log"
    command = [sys.executable, "-m", "inflight", "engine", "--config", str(installation.file)]
    command += ["--set", "archive.enabled=true", "--set", "session.max_inflight=7"]

    def said(event: str) -> list[str]:
        return [line for line in log.read_text(encoding="utf-8").splitlines() if event in line]

    with log.open("wb") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=ROOT)
    try:
        wait_until(lambda: said("ready engine") or process.poll() is not None, "the engine", within_s=READY_S)
        installation.connect(1, b"here")
        installation.send(b"1", b"here")
        installation.commands(lambda found: len(found) >= 2)
        installation.configure("[[policies]]\nname = 1\n")
        wait_until(lambda: said("settings_not_taken"), "the report")
        installation.configure('[[policies]]\nname = "short"\nclients = "away"\nmessage_ttl = "1s"\n')
        os.kill(process.pid, signal.SIGHUP)
        wait_until(lambda: len(said("settings_in_force")) == 2, "the new settings")
        assert "policies" in said("settings_changed")[0]
        installation.send(b"late", b"away")
        installation.send(b"2", b"here")
        assert installation.outcomes(1) == {"late": "expired"}
        commands = installation.commands(lambda found: len(found) >= 3)
        assert [(command.connection_id, command.sequence) for command in commands] == [(1, 1), (1, 2), (1, 3)]
        installation.configure("engine.trigger_interval_ms = 77\n")
        wait_until(lambda: said("settings_need_a_restart"), "the report")
        wait_until(lambda: len(said("settings_in_force")) == 3, "the policy is gone")
        assert not said("Traceback")  # before the stop, which interrupts a micro-batch of the archive
        process.send_signal(signal.SIGTERM)
        assert process.wait(READY_S) == 0
    finally:
        process.kill()
        process.wait()
    checkpoint = tmp_path / "checkpoint" / "sessions"
    planned, committed = (max(int(path.name) for path in (checkpoint / name).glob("[0-9]*")) for name in ("offsets", "commits"))
    assert planned == committed
