"""Outcomes counted by the tasks that write them, and a checkpoint that does not mind."""

from collections import Counter
from dataclasses import replace

import pytest

from streaming.engine.operator.by_batch import BatchSettings, OperatorByBatch
from streaming.engine.operator.reported_counts import ReportedCounts
from streaming.engine.operator.reported_drops import Drops, ReportedDrops
from tests.spark.conftest import Pipeline
from tests.support.waiting import wait_until


def start_counting(pipeline: Pipeline) -> ReportedCounts:
    counts = ReportedCounts(pipeline.spark.sparkContext)
    pipeline.start(OperatorByBatch(BatchSettings(current=pipeline.settings), counts=counts.accumulator))
    return counts


@pytest.mark.servers
def test_outcomes_are_counted_from_the_restart_on_that_asks_for_it(pipeline) -> None:
    topics = pipeline.settings.topics
    pipeline.start()
    pipeline.connect("c", partition=1)
    pipeline.send_message("c", b"before", ("mqtt-qos", b"0"))
    pipeline.read(topics.receipts, 1)
    pipeline.await_batches(1)  # else the restart executes the receipt's micro-batch again, and counts it
    pipeline.stop()

    counts, found = start_counting(pipeline), Counter[str]()
    for number in range(3):
        pipeline.send_message("c", b"%d" % number, ("mqtt-qos", b"0"))
    pipeline.send_message("c", b"broken", ("mqtt-qos", b"7"))
    records = pipeline.read(topics.receipts, 5)
    assert len(records) == 5, "what is counted still arrives"

    def all_are_counted() -> bool:
        found.update(counts.pop())
        return found.total() >= 4

    wait_until(all_are_counted, "all outcomes are counted", check=pipeline.check)
    assert found == {"sent": 3, "invalid": 1}


def test_drops_are_counted_without_receipts_and_ledger(pipeline) -> None:
    session = replace(pipeline.settings.session, max_inflight=1, max_mqueue_len=1, max_backlog_bytes=0, prefetch=0)
    pipeline.settings = replace(pipeline.settings, session=session, receipts=False, ledger=False)
    drops, found = ReportedDrops(pipeline.spark.sparkContext), Drops()
    pipeline.connect("full")
    for number in range(5):
        pipeline.send_message("full", b"%d" % number, ("mqtt-qos", b"1"))
    pipeline.start(OperatorByBatch(BatchSettings(current=pipeline.settings), drops=drops.accumulator))

    def are_counted() -> bool:
        found.merge(drops.pop())
        return found.connected.total() + found.offline.total() >= 3

    wait_until(are_counted, "the drops are counted", check=pipeline.check)
    assert found == Drops(connected=Counter(maxlen=3), clients=("full",))


def test_what_is_sent_again_is_counted_by_what_it_was_for(pipeline) -> None:
    counts = start_counting(pipeline)
    pipeline.connect("c")
    for text in b"1", b'"transition":"replayed"':
        pipeline.send_message("c", text, ("mqtt-qos", b"1"), ("message-id", text))
    pipeline.publishes(2)
    pipeline.connect("c", connection_id=2)
    pipeline.publishes(4)
    pipeline.await_batches(2)
    assert counts.pop() == {"replayed": 2}
