"""The queue of a client → `inflight.throttle` → the Producer, and the driver, with the real query."""

import dataclasses

import msgspec
from prometheus_client import CollectorRegistry

from inflight.producer import Producer
from state.events import PubAckReceived
from state.settings import BackoffSettings, SessionSettings
from streaming.engine.operator.by_batch import BatchSettings, OperatorByBatch
from streaming.engine.operator.reported_backlogs import LARGE_BYTES, ReportedBacklogs
from tests.support.waiting import DEADLINE_S, wait_until


def test_a_long_queue_throttles_its_client_only_until_it_is_short(pipeline) -> None:
    session = SessionSettings(max_mqueue_len=100, high_watermark=0.2, low_watermark=0.1, max_inflight=50)
    pipeline.settings = dataclasses.replace(pipeline.settings, session=session)
    topics = pipeline.settings.topics
    pipeline.start()
    with Producer(
        pipeline.bootstrap_servers,
        topic=topics.messages,
        throttle_topic=topics.throttle,
        max_attempts=1_000,
        backoff=BackoffSettings(initial_ms=100, max_ms=200),
        registry=CollectorRegistry(),
    ) as producer:
        for number in range(25):
            producer.send("slow", "t", b"x", message_id=f"before-{number}")
        wait_until(lambda: producer.throttled("slow") is not None, "the Producer hears of it", check=pipeline.check)
        held = [producer.send_async("slow", "t", b"x", message_id=f"held-{number}") for number in range(40)]
        free = [producer.send("fast", "t", b"x") for _ in range(20)]
        assert all(len(result.attempts) == 1 for result in free)
        assert not any(future.done() for future in held)

        # The device comes, and takes what there is.
        pipeline.connect("slow")
        for publish in pipeline.publishes(25)[:25]:
            pipeline.send_event("slow", PubAckReceived(connection_id=1, packet_id=publish.packet_id))
        results = [future.result(timeout=DEADLINE_S) for future in held]
    assert all(len(result.attempts) > 1 for result in results)
    assert [result.offset for result in results] == sorted(result.offset for result in results)
    records = [record for record in pipeline.read(topics.throttle, 2) if record.key == b"slow"]
    throttled, cleared = records[:2]
    assert msgspec.json.decode(throttled.value)["code"] == 530
    assert cleared.value is None
    receipts = [msgspec.json.decode(record.value) for record in pipeline.read(topics.receipts, 25)]
    assert {receipt["outcome"] for receipt in receipts} == {"delivered"}


def test_the_driver_hears_of_a_large_queue_until_it_is_short(pipeline) -> None:
    session = SessionSettings(max_inflight=1, prefetch=0)
    pipeline.settings = dataclasses.replace(pipeline.settings, session=session)
    backlogs = ReportedBacklogs(pipeline.spark.sparkContext)
    pipeline.connect("behind")
    for _ in range(8):
        pipeline.send_message("behind", b"x" * 200_000, ("mqtt-qos", b"1"))
    pipeline.start(OperatorByBatch(BatchSettings(current=pipeline.settings), backlogs=backlogs.accumulator))
    wait_until(lambda: backlogs.total_bytes() > LARGE_BYTES, "the driver hears of it", check=pipeline.check)
    for number in range(1, 4):
        publish = pipeline.publishes(number)[number - 1]
        pipeline.send_event("behind", PubAckReceived(connection_id=1, packet_id=publish.packet_id))
    wait_until(lambda: not backlogs.total_bytes(), "it hears that the queue is short", check=pipeline.check)
