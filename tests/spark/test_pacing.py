"""The pace of micro-batches in a real Spark: none without need, and one at once for a record."""

import time
from collections.abc import Iterator

import pytest

from state.commands import SendPublish
from state.events import ClientConnected
from state.records.events import encode_event
from streaming.engine.pacing.paced_query import PacedQuery
from tests.spark.conftest import Pipeline

pytestmark = [pytest.mark.spark, pytest.mark.timeout(180)]

HOUR_MS = 3_600_000


@pytest.fixture
def paced(pipeline: Pipeline) -> Iterator[Pipeline]:
    """Started, with the longest of idle pauses; stopped in the engine's order."""
    query = pipeline.start()
    connected = ClientConnected(connection_id=1, commands_partition=0, clean_start=True, session_expiry_interval_s=3_600)
    pipeline.send(pipeline.settings.topics.events, encode_event(connected), key=b"c")
    pipeline.await_batches(1)
    kafka_options = {"bootstrap_servers": pipeline.bootstrap_servers}
    with PacedQuery(query, kafka_options, trigger_interval_ms=100, idle_trigger_interval_ms=HOUR_MS) as pace:
        pace.start()
        pipeline.pace = pace
        yield pipeline
    pipeline.stop()


def committed(pipeline: Pipeline) -> int:
    return max(int(path.name) for path in (pipeline.checkpoint / "commits").glob("[0-9]*"))


def await_a_pause_of(pipeline: Pipeline, pause_s: float) -> None:
    """Returns when no micro-batch has been committed for so long."""
    last, since, deadline = committed(pipeline), time.monotonic(), time.monotonic() + 60
    while time.monotonic() - since < pause_s:
        pipeline.check()
        assert time.monotonic() < deadline, "micro-batches go on without need"
        if committed(pipeline) != last:
            last, since = committed(pipeline), time.monotonic()
        time.sleep(0.01)


def test_a_record_starts_a_micro_batch_at_once_and_nothing_else_does(paced: Pipeline) -> None:
    """Pauses grow by a quarter: the first of two seconds comes after eight seconds in which nothing happened."""
    for number in range(1, 3):
        await_a_pause_of(paced, 2)
        sent = time.monotonic()
        paced.send_message("c", b"%d" % number)
        paced.commands(lambda found, n=number: sum(isinstance(command, SendPublish) for command in found) == n)
        # Without the record the pause would have gone on for as long again, and been followed by a longer one.
        assert time.monotonic() - sent < 2
    assert paced.pace.may_have_news()


def test_a_timer_fires_in_a_pause(paced: Pipeline) -> None:
    """A delayed retry, an expiry: here a message that expires after a second, in a session that nobody else calls."""
    paced.send_message("absent", b"short", ("expiration", b"1000"))
    (receipt,) = paced.read(paced.settings.topics.receipts, 1)
    assert b"expired" in (receipt.value or b"")
