from streaming.spark_internals.micro_batches import CommittedBatch, TopicRead, last_committed_batch, set_batch_time, set_pause
from tests.unit.streaming.spark_internals.java_objects import QUERY


def test_the_last_micro_batch_is_read_from_the_querys_report() -> None:
    batch = last_committed_batch(QUERY)
    assert batch == CommittedBatch(
        batch_id=8,
        did_something=True,
        topics={
            "a.messages": TopicRead(records=4, left=3, end={0: 5, 1: 9}),
            "a.events": TopicRead(records=3, left=0, end={0: 3}),
        },
    )
    assert batch.end == {"a.messages": {0: 5, 1: 9}, "a.events": {0: 3}}


def test_a_spark_without_the_clocks_gives_a_reason() -> None:
    assert "streamingQuery" in str(set_pause(QUERY, lambda due_in_ms: None))
    assert "streamingQuery" in str(set_batch_time(QUERY, lambda: 0))
