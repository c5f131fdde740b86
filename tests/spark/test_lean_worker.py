"""The lean worker path in Spark's own workers: it runs, it answers as PySpark does, and one path goes on where the other stopped.

tests/unit/streaming/spark_internals/test_lean_worker.py says everything else, on streams that are made as these are.
"""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from state.commands import SendPublish
from state.events import PubAckReceived
from state.settings import SessionSettings
from streaming.engine.operator.session_operator import SessionOperator
from tests.spark.conftest import Pipeline, publishes_of
from tests.spark.lean_functions import Captured, Failing, LeanOnly
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.waiting import wait_until
from tests.unit.streaming.spark_internals.worker_replay import INPUT_SCHEMA, OFFSETS, Task, read_answer

pytestmark = pytest.mark.faults


def await_copies(pipeline: Pipeline, message_id: str, count: int) -> list[SendPublish]:
    """Returns the transmissions of this message, as soon as there are `count`."""

    def copies(commands: list[Any]) -> list[SendPublish]:
        return [publish for publish in publishes_of(commands) if publish.message_id == message_id]

    return copies(pipeline.commands(lambda found: len(copies(found)) >= count))


def await_receipts(pipeline: Pipeline, count: int) -> list[bytes]:
    """The different receipts, in the order of their first copies, as soon as there are `count`."""

    def different(records: list[ReadRecord]) -> list[bytes]:
        return list(dict.fromkeys(record.value or b"" for record in records))

    topic = pipeline.settings.topics.receipts
    return different(
        read_topic(pipeline.bootstrap_servers, topic, lambda found: len(different(found)) >= count, check=pipeline.check)
    )


def text(schema: pa.Schema) -> str:
    shown: str = schema.to_string(show_schema_metadata=False, show_field_metadata=False)
    return shown.replace(" not null", "")


def test_what_a_jvm_sends_is_answered_byte_for_byte_the_same(pipeline: Pipeline, tmp_path: Path) -> None:
    directory = tmp_path / "captured"
    directory.mkdir()
    pipeline.settings = replace(pipeline.settings, session=SessionSettings(retry_interval_ms=500), lean_worker=False)
    option = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = pipeline.spark.conf.get(option)
    pipeline.spark.conf.set(option, "7")
    try:
        clients = [f"client-{number}" for number in range(30)]
        for client in clients:
            pipeline.connect(client)
        for number in range(300):
            headers = [("mqtt-topic", b"t"), ("mqtt-qos", b"%d" % (number % 2))]
            key = clients[number % 3 if number % 2 else number % 30].encode()
            pipeline.producer.send(pipeline.settings.topics.messages, b"p" * (number % 50), key=key, headers=headers)
        pipeline.producer.send(pipeline.settings.topics.messages, b"to nobody")
        pipeline.producer.flush()
        pipeline.start(Captured(pipeline.settings, str(directory)))
        # Until sessions were called at their deadlines: what is not acknowledged is sent again.
        with pipeline.calling(*clients[:6]):
            pipeline.commands(lambda commands: sum(publish.dup for publish in publishes_of(commands)) > 5)
        # And data for a session that has a state.
        pipeline.send_message(clients[0], b"again", ("message-id", b"again"))
        await_copies(pipeline, "again", 1)
        pipeline.stop()
    finally:
        pipeline.spark.conf.set(option, before or "2000")
    streams = [path.read_bytes() for path in directory.glob("*.arrow")]
    assert json.loads((directory / "offsets.json").read_text()) == OFFSETS
    kinds = set()
    for stream in streams:
        reader = pa.ipc.open_stream(stream)
        table = reader.read_all()
        assert text(table.schema) == text(INPUT_SCHEMA)
        for state in table.column(2).to_pylist():
            if state is not None:
                assert not json.loads(state["properties"])["hasTimedOut"]
                kinds.add((state["object"] is not None, state["isLastChunk"]))
        answers = [
            Task(
                SessionOperator(replace(pipeline.settings, lean_worker=lean)), spark_sql_execution_arrow_maxRecordsPerBatch="7"
            ).run(stream)
            for lean in (False, True)
        ]
        assert answers[0] == answers[1]
        if answers[0]:
            read_answer(answers[0])
    assert {(False, True), (False, False), (True, True)} <= kinds


def test_each_path_goes_on_from_the_checkpoint_of_the_other(pipeline: Pipeline) -> None:
    pipeline.settings = replace(pipeline.settings, session=SessionSettings(retry_interval_ms=500, max_inflight=1))
    settings = pipeline.settings
    connected = False
    for number in range(1, 5):
        pipeline.settings = replace(settings, lean_worker=number % 2 == 1)
        pipeline.start()
        if not connected:
            pipeline.connect("c")
            connected = True
        pipeline.send_message("c", b"payload %d" % number, ("mqtt-qos", b"1"), ("message-id", b"m%d" % number))
        with pipeline.calling("c"):
            sent = await_copies(pipeline, f"m{number}", 2)
        acknowledged = PubAckReceived(connection_id=1, packet_id=sent[-1].packet_id)
        pipeline.stop()
        pipeline.settings = replace(settings, lean_worker=number % 2 == 0)
        copies = len(await_copies(pipeline, f"m{number}", 2))
        pipeline.start()
        # What the other path has sent is sent again by this one: the state row came over.
        with pipeline.calling("c"):
            await_copies(pipeline, f"m{number}", copies + 1)
        pipeline.send_event("c", acknowledged)
        receipts = await_receipts(pipeline, number)
        pipeline.stop()
    # A micro-batch that was stopped before its commit is executed again, here by the other path: a copy is the same bytes.
    found = [json.loads(value) for value in receipts]
    assert [receipt["message_id"] for receipt in found] == ["m1", "m2", "m3", "m4"]
    assert {receipt["outcome"] for receipt in found} == {"delivered"}


def test_an_exception_stops_the_query_and_the_next_query_runs(pipeline: Pipeline) -> None:
    topic = pipeline.settings.topics.ledger
    query = pipeline.start(Failing(topic))
    pipeline.send_message("client", b"p")
    wait_until(lambda: not query.isActive, "the end of the query")
    assert "the function failed on purpose" in str(query.exception())
    pipeline.stop()
    pipeline.start(LeanOnly(topic))
    assert (pipeline.read(topic, 1)[0].value or b"").startswith(b"1 ")


@pytest.mark.parametrize("option", ["spark.python.use.daemon=false", "spark.python.worker.reuse=false"])
def test_workers_without_a_daemon_use_the_lean_path(option: str, tmp_path: Path) -> None:
    """A Spark of its own: this is decided when it starts."""
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "1.txt").write_text("a\nb\na\n")
    command = [sys.executable, "-m", "tests.spark.lean_without_daemon", option, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr[-3_000:]
    assert sorted(json.loads(done.stdout.splitlines()[-1])) == ["a 2", "b 1"]
