"""Properties of Spark on which the state operator relies: GroupState, its timers, the file of progress.

If one of these tests fails after an upgrade, the unit tests of the operator prove nothing.
"""

import inspect
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from pyspark.sql.streaming.state import GroupState

from state.commands import AcceptConnection
from state.events import PubAckReceived
from state.records.record import SinkRecord
from state.settings import SessionSettings
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.sink_columns import frames_of
from streaming.engine.progress import ProgressFile, ProgressReader, last_progress
from tests.spark.conftest import Pipeline
from tests.support.waiting import wait_until

CONSTRUCTOR = {
    "optionalValue", "batchProcessingTimeMs", "eventTimeWatermarkMs", "timeoutConf", "hasTimedOut", "watermarkPresent", "defined",
    "updated", "removed", "timeoutTimestamp", "keyAsUnsafe", "valueSchema",
}  # fmt: skip


def test_a_group_state_can_be_built_as_the_unit_tests_do() -> None:
    assert set(inspect.signature(GroupState.__init__).parameters) - {"self"} == CONSTRUCTOR


def test_a_group_has_two_columns_and_its_state_starts_without_a_timer(pipeline: Pipeline) -> None:
    topics = pipeline.settings.topics

    def describe(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        facts = {
            "key": key,
            "columns": [list(frame.columns) for frame in frames],
            "types": {name: type(value).__name__ for name, value in vars(state).items()},
            "timer": state._timeout_timestamp,
            "exists": state.exists,
            "forked_by": Path(f"/proc/{os.getppid()}/cmdline").read_text(encoding="utf-8").split("\0"),
            "umask": os.umask(0o077),
            "without_tcp": os.environ.get("PYTHON_UNIX_DOMAIN_ENABLED"),
        }
        state.update((1, None, None, None, None, None, None, b"\x00\xff"))
        record = SinkRecord(topics.ledger, b"k", json.dumps(facts).encode())
        return frames_of([record])

    pipeline.start(describe)
    pipeline.send_message("client", b"p")
    (first,) = pipeline.read(topics.ledger, 1)
    facts = json.loads(first.value or b"")
    assert facts["key"] == ["client"]
    assert facts["columns"] == [["client_id", "record"]]
    assert (facts["exists"], facts["timer"]) == (False, -1)
    assert facts["types"]["_batch_processing_time_ms"] == "int"
    assert "streaming.engine.operator.worker_daemon" in facts["forked_by"]
    assert facts["without_tcp"] == "True"
    assert facts["umask"] == 0o077, "others could write to the daemon's socket"

    pipeline.send_message("client", b"p")
    facts = json.loads(pipeline.read(topics.ledger, 2)[1].value or b"")
    assert facts["exists"]
    assert facts["timer"] == -1


def test_a_call_at_the_deadline_resends_and_others_call_nobody(pipeline: Pipeline) -> None:
    pipeline.settings = PipelineSettings(
        topics=pipeline.settings.topics, commands_partitions=2, session=SessionSettings(retry_interval_ms=500)
    )
    pipeline.start()
    pipeline.connect("c")
    pipeline.send_message("c", b"p")
    with pipeline.calling("c"):
        sent = pipeline.publishes(3)
    assert [publish.dup for publish in sent[:3]] == [False, True, True]
    assert len({publish.packet_id for publish in sent}) == 1

    pipeline.send_event("c", PubAckReceived(connection_id=1, packet_id=sent[0].packet_id))
    pipeline.read(pipeline.settings.topics.receipts, 1)
    count = len(pipeline.commands(lambda found: True))
    pipeline.await_batches(10)
    assert pipeline.query is not None
    updated = [progress.stateOperators[0].numRowsUpdated for progress in pipeline.query.recentProgress[-8:]]
    assert updated == [0] * 8
    assert len(pipeline.commands(lambda found: len(found) >= count)) == count


def test_the_state_can_be_asked_for_live_sessions_while_the_query_runs(pipeline: Pipeline) -> None:
    pipeline.start()
    pipeline.connect("asked")
    pipeline.send_message("asked", b"12345")
    pipeline.commands(lambda found: any(isinstance(command, AcceptConnection) for command in found) and len(found) >= 2)
    pipeline.await_batches(1)
    rows = pipeline.spark.read.format("statestore").load(str(pipeline.checkpoint))
    (row,) = rows.select("key.*", "value.groupState.*").collect()
    assert (row.client_id, row.version, row.connected, row.inflight, row.queued) == ("asked", 1, True, 1, 0)


def test_progress_is_reported_once_for_each_micro_batch(pipeline: Pipeline, tmp_path) -> None:
    pipeline.send_message("c", b"p")  # before the start: Spark runs the first micro-batch even without records
    reader, file, seen = ProgressReader(pipeline.start()), ProgressFile(tmp_path), []

    def enough() -> bool:
        batches = reader.new()
        file.append(batches)
        seen.extend(batches)
        return len(seen) >= 5

    pipeline.await_batches(5)
    wait_until(enough, "progress of five micro-batches", check=pipeline.check)
    numbers = [batch.batch_id for batch in seen]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert all(batch.rows for batch in seen), "Spark runs no micro-batch without records"
    assert sum(batch.clients_updated for batch in seen) == 1
    assert last_progress(tmp_path) == seen[-1]
