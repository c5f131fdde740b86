"""Aggregate statistics of the sessions of a running query, and Spark's signs of work."""

from dataclasses import replace

from state.settings import SessionSettings
from streaming.engine.watching.session_stats import SessionStats, collect_session_stats
from streaming.spark_internals.query_progress import executor_work
from tests.support.waiting import wait_until


def test_the_sessions_are_counted_in_the_checkpoint_while_the_query_runs(pipeline) -> None:
    pipeline.settings = replace(pipeline.settings, session=SessionSettings(prefetch=0))
    query = pipeline.start()
    pipeline.connect("connected", receive_maximum=2)
    for client_id in "connected", "connected", "connected", "away":
        pipeline.send_message(client_id, b"12345", ("mqtt-qos", b"1"))
    pipeline.publishes(2)
    pipeline.await_batches(1)  # before it there is nothing to read

    def counted() -> SessionStats | None:
        found = collect_session_stats(pipeline.spark, str(pipeline.checkpoint), now_s=lambda: 1_000.0)
        return found if found.queued == 2 else None

    census = wait_until(counted, "the last message is in", check=pipeline.check)
    assert census.oldest_unacknowledged_s is not None
    assert census.oldest_unacknowledged_s > 1.7e9
    assert census == SessionStats(
        sessions=2,
        connected=1,
        quarantined=0,
        inflight=2,
        queued=2,
        queued_bytes=12,  # a topic of one byte and a payload of five, twice
        oldest_unacknowledged_s=census.oldest_unacknowledged_s,
        taken_s=1_000.0,
    )

    def stages() -> tuple[int, ...] | None:
        found = executor_work(pipeline.spark, str(query.runId))
        return found if len(found) > 1 else None

    before = wait_until(stages, "the job, and its stages", check=pipeline.check)
    pipeline.await_batches(1)
    assert executor_work(pipeline.spark, str(query.runId)) != before
    assert executor_work(pipeline.spark, "another query") == ()
