"""A re-executed micro-batch writes the same records, and sessions survive SIGKILL of the engine."""

import shutil
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Self

import pytest
from pyspark.sql import DataFrame
from pyspark.sql.streaming.query import StreamingQuery

from state.commands import AcceptConnection
from state.events import ClientConnected, PubAckReceived, PublishReceived, PubRelReceived
from state.records.events import encode_event
from state.settings import RetryMqtt5, SessionSettings
from streaming.engine.lifecycle.settings_log import FOLDER, SettingsLog
from streaming.engine.operator.by_batch import OperatorByBatch
from streaming.engine.operator.pipeline import PipelineSettings, SessionProfile
from streaming.engine.operator.session_operator import Function
from streaming.engine.progress import ProgressReader, last_progress
from streaming.spark_internals.checkpoint import CheckpointFiles
from tests.spark.child_engine import Engine, engine
from tests.spark.conftest import Pipeline
from tests.spark.engine_topics import EngineTopics
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.micro_batches import await_batches
from tests.support.shared import SharedKafka
from tests.support.waiting import wait_until

pytestmark = pytest.mark.servers

CLIENTS = 20
OUTPUTS = ("commands", "uplink", "receipts", "dead_letters", "ledger")


def send_traffic(pipeline: Pipeline, round_number: int) -> None:
    """Sends input for every kind of output: connects, messages (some broken, some expired), acknowledgements, publications."""
    topics, send = pipeline.settings.topics, pipeline.producer.send
    for number in range(CLIENTS):
        key = b"client-%d" % number
        events = [
            ClientConnected(connection_id=round_number, commands_partition=number % 2, clean_start=False),
            PubAckReceived(connection_id=round_number, packet_id=1),
            PublishReceived(connection_id=round_number, packet_id=round_number, topic="up", payload=b"\xff%d" % round_number),
            PubRelReceived(connection_id=round_number, packet_id=round_number),
        ]
        for event in events:
            send(topics.events, encode_event(event), key=key)
        for qos in (b"0", b"1", b"2", b"7"):
            headers = [("mqtt-topic", b"t"), ("mqtt-qos", qos), ("expiration", b"3600000")]
            send(topics.messages, b"%d/%b" % (round_number, qos), key=key, headers=headers)
        send(topics.events, b"noise", key=key)
    send(topics.messages, b"for nobody", key=b"\xff", headers=[("mqtt-topic", b"t")])
    pipeline.producer.flush()


class Configured(Pipeline):
    """A pipeline whose settings come into force with the next micro-batch, as in the engine."""

    def start(
        self, function: Function | None = None, *, then: Callable[[DataFrame], DataFrame] = lambda rows: rows
    ) -> StreamingQuery:
        log = SettingsLog(CheckpointFiles(self.spark, str(self.checkpoint), FOLDER))
        return super().start(OperatorByBatch(log.put_in_force(self.settings)), then=then)

    @classmethod
    def like(cls, other: Pipeline, settings: PipelineSettings, checkpoint: Path) -> Self:
        return cls(other.spark, other.bootstrap_servers, settings, checkpoint)


def run_one_round(pipeline: Pipeline) -> int:
    """Runs the query until all that is in Kafka has been processed, which is one micro-batch; its number."""
    query, found = pipeline.start(), []
    reader = ProgressReader(query)

    def done() -> bool:
        found.extend(batch.batch_id for batch in reader.new() if batch.rows)
        return bool(found)

    # Not processAllAvailable: with time-outs a micro-batch always follows, and it would wait for the last one.
    wait_until(done, "a micro-batch with rows", check=pipeline.check)
    pipeline.await_batches(1)
    pipeline.stop()
    assert len(found) == 1
    return found[0]


Written = dict[tuple[str, int, bytes | None], list[ReadRecord]]


def output(pipeline: Pipeline) -> Written:
    """Returns all records by topic, partition and key. State partitions write at the same time, so only the order of the records
    of one key means anything.
    """
    found: Written = defaultdict(list)
    for name in OUTPUTS:
        topic = getattr(pipeline.settings.topics, name)
        for record in read_topic(pipeline.bootstrap_servers, topic):
            found[name, record.partition, record.key].append(record)
    return dict(found)


def new_since(before: Written, after: Written) -> Written:
    """Returns the records appended between the two."""
    appended = {where: records[len(before.get(where, ())) :] for where, records in after.items()}
    return {where: records for where, records in appended.items() if records}


def crashed_in(number: int, checkpoint: Path, copy: Path) -> Path:
    """A copy as of a crash: the records are in Kafka and the state is written, but the micro-batch is not in the commit log."""
    shutil.copytree(checkpoint, copy)
    for folder, first in (("commits", number), ("offsets", number + 1)):
        for path in (copy / folder).glob("[0-9]*"):
            if int(path.name) >= first:
                path.unlink()
    return copy


@pytest.mark.parametrize("lean_worker", [True, pytest.param(False, marks=pytest.mark.faults)])
@pytest.mark.promise("same-bytes-again")
def test_a_re_execution_under_other_settings_writes_the_same_bytes(pipeline: Pipeline, tmp_path: Path, lean_worker: bool) -> None:
    settings = replace(pipeline.settings, lean_worker=lean_worker)
    first = Configured.like(pipeline, settings, tmp_path / "first")
    send_traffic(first, 1)
    run_one_round(first)
    before = output(first)
    send_traffic(first, 2)
    number = run_one_round(first)
    written = output(first)
    copy = crashed_in(number, first.checkpoint, tmp_path / "copy")
    first.close()

    # In what is executed again, all of this would say something else, beginning with fewer commands under the same sequences.
    few = SessionSettings(max_inflight=1, prefetch=0, max_awaiting_rel=1, retry_mqtt5=RetryMqtt5.WAIT)
    limits = replace(settings.limits, max_payload_bytes=2)
    other = replace(
        settings, profiles=(SessionProfile(pattern="client-1*", session=few),), limits=limits, receipts=False, ledger=False
    )
    again = Configured.like(first, other, copy)
    assert run_one_round(again) == number
    repeated = output(again)
    assert new_since(written, repeated) == new_since(before, written)

    send_traffic(again, 3)
    assert run_one_round(again) > number
    following = new_since(repeated, output(again))
    assert {name for name, _, _ in following} == set(OUTPUTS) - {"receipts", "ledger"}
    again.close()


def stop_after_a_commit(checkpoint: Path) -> None:
    """Makes the checkpoint one of an engine that was not in the middle of a micro-batch when it was stopped."""
    committed = max(int(path.name) for path in (checkpoint / "commits").glob("[0-9]*"))
    for path in (checkpoint / "offsets").glob("[0-9]*"):
        if int(path.name) > committed:
            path.unlink()


def await_micro_batches(topics: EngineTopics, data_dir: Path, count: int) -> None:
    """Returns when the engine has committed `count` more."""

    def committed() -> int:
        last = last_progress(data_dir)
        assert last is not None
        return last.batch_id

    await_batches(topics.kafka, committed, count, topic=f"{topics.prefix}.events")


@pytest.mark.faults
@pytest.mark.promise("from-device-qos-2", "engine-timers")
def test_sessions_survive_sigkill_of_the_engine(kafka: SharedKafka, tmp_path: Path) -> None:
    topics = EngineTopics(kafka, "killed")
    settings = topics.settings(tmp_path) | {"session": {"max_inflight": 8, "prefetch": 0}}
    with engine(settings) as first:
        topics.connect(1)
        for number in range(12):
            topics.send(b"%d" % number)
        before = topics.sent(8)  # the window; four messages are in the queue
        first.kill()

    with engine(settings) as second:
        topics.connect(2)
        replayed = topics.sent(8, connection_id=2)
        found = topics.commands(lambda found: True)
        (accept,) = [c for c in found if isinstance(c, AcceptConnection) and c.connection_id == 2]
        assert accept.session_present
        assert [(p.packet_id, p.payload, p.dup) for p in replayed] == [(p.packet_id, p.payload, True) for p in before]
        for publish in replayed:
            topics.acknowledge(publish)
        after = topics.sent(12, connection_id=2)[8:]
        assert [publish.payload for publish in after] == [b"8", b"9", b"10", b"11"]
        for publish in after:
            topics.acknowledge(publish)
        # The micro-batch with the last receipt is committed when the one after it is.
        read_topic(kafka.bootstrap_servers, "killed.receipts", lambda records: len(records) >= 12)
        await_micro_batches(topics, tmp_path, 2)
        assert second.stop() == 0

    # Stopped just after a commit: no micro-batch is left to be executed again, and nothing new is in Kafka.
    stop_after_a_commit(tmp_path / "checkpoint" / "sessions")
    with engine(settings) as third:
        assert third.stop() == 0

    refused = Engine(settings | {"engine": settings["engine"] | {"state_partitions": 3}})
    assert "engine.state_partitions = 2, the configuration says 3" in refused.await_failure()
