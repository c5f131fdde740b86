"""A loop over `Uplink` gets publications, and its group continues at an offset."""

import asyncio

import pytest
import structlog
from confluent_kafka import KafkaError

from inflight.local.child_process import free_port
from inflight.readers import group_stream
from inflight.readers.group_stream import ReaderClosed
from inflight.readers.uplink import Uplink, uplink_message
from sinks.kafka.librdkafka import KafkaFailed
from state.model import PublishProperties, QoS
from state.records.uplink import uplink_headers
from tests.unit.inflight.readers.kafka_log import KafkaLog, Record, StoredRecord


def publication(payload: bytes, topic: str = "a/b", name: str | None = None) -> Record:
    headers = uplink_headers(client_id="lamp", inflight_id=name or payload.decode(), topic=topic, qos=QoS.AT_LEAST_ONCE)
    return b"lamp", payload, [*headers]


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> KafkaLog:
    return KafkaLog(monkeypatch)


def uplink(*topics: str) -> Uplink:
    return Uplink("nowhere:1", group="test", topics=topics)


def test_all_that_a_device_says_is_in_the_message() -> None:
    properties = PublishProperties(
        payload_format=1,
        content_type="text/plain",
        response_topic="back",
        correlation_data=b"\xff\x00",
        user_properties=(("a", "1"), ("a", "2")),
    )
    headers = uplink_headers(
        client_id="lamp", inflight_id="lamp:1:2", topic="up", qos=QoS.EXACTLY_ONCE, retain=True, expiry_interval_s=30,
        properties=properties, username="anna",
    )  # fmt: skip
    read = uplink_message(StoredRecord(7, (b"lamp", b"21.5", [*headers])))
    assert (read.client_id, read.topic, read.payload, read.qos, read.retain) == ("lamp", "up", b"21.5", 2, True)
    assert (read.inflight_id, read.username, read.expiry_interval_s) == ("lamp:1:2", "anna", 30)
    assert read.properties == properties
    assert (read.partition, read.offset, read.received_ms) == (0, 7, 1_700_000_000_007)


def test_a_reader_without_kafka_says_once_where_it_looked(
    log: KafkaLog, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(group_stream, "_SILENT_S", 0)
    monkeypatch.setattr(structlog, "is_configured", lambda: False)
    server = f"127.0.0.1:{free_port()}"
    with Uplink(server, group="test") as messages:
        for _ in range(3):
            messages._fetch(0)
    (said,) = [line for line in caplog.messages if line.startswith("kafka_does_not_answer")]
    assert f"{server}: Connection refused" in said
    assert "goes on trying" in said


@pytest.mark.promise("deliveries")
def test_an_offset_is_stored_when_the_body_has_ended(log: KafkaLog) -> None:
    log.records = [publication(b"1"), publication(b"2"), publication(b"3")]
    stored = []
    with uplink() as messages:
        for message in messages:
            stored.append(log.stored)
            if message.payload == b"3":
                messages.stop()
    assert (stored, log.stored, log.is_closed) == ([0, 1, 2], 3, True)


def read_one(log: KafkaLog) -> None:
    log.records = [publication(b"1")]
    with uplink() as messages:
        for _ in messages:
            messages.stop()
    assert log.is_closed


def test_what_was_handled_is_committed_though_the_group_rebalances(log: KafkaLog) -> None:
    log.refusals = [KafkaError.ILLEGAL_GENERATION, KafkaError.REBALANCE_IN_PROGRESS]
    read_one(log)
    assert (log.committed, log.refusals) == (1, [])


def test_a_reader_closes_if_its_last_commit_is_refused_for_good(log: KafkaLog) -> None:
    log.refusals = [KafkaError.GROUP_AUTHORIZATION_FAILED]
    read_one(log)
    assert log.committed == 0


def test_the_next_loop_begins_with_what_the_last_one_left(log: KafkaLog) -> None:
    log.records = [publication(b"1"), publication(b"2")]
    messages = uplink()
    for message in messages:
        if message.payload == b"2":
            break
    assert log.stored == 1
    assert next(iter(messages)).payload == b"2"
    assert log.stored == 1
    messages.close()
    assert [message.payload for message in first(uplink(), 1)] == [b"2"]


def test_copies_others_and_foreign_records_are_skipped(log: KafkaLog) -> None:
    foreign: Record = (b"lamp", b"?", [("mqtt-qos", b"9")])
    log.records = [publication(b"1"), publication(b"1"), publication(b"x", "c/d"), foreign, publication(b"2")]
    assert [message.payload for message in first(uplink("a/+"), 2)] == [b"1", b"2"]
    assert log.stored == 4


def first(messages: Uplink, count: int) -> list:
    return [next(messages) for _ in range(count)]


def test_async_for_gets_the_same_and_survives_a_cancelled_wait(log: KafkaLog) -> None:
    async def read() -> list[bytes]:
        found = []
        async with uplink() as messages:
            waiting = asyncio.ensure_future(anext(messages))
            await asyncio.sleep(0)
            waiting.cancel()
            log.records = [publication(b"1"), publication(b"2")]
            async for message in messages:
                found.append(message.payload)
                if message.payload == b"2":
                    messages.stop()
        return found

    assert asyncio.run(read()) == [b"1", b"2"]
    assert (log.stored, log.is_closed) == (2, True)


def test_what_kafka_refuses_for_ever_ends_the_loop(log: KafkaLog) -> None:
    log.errors = [KafkaError._FATAL]
    with uplink() as messages, pytest.raises(KafkaFailed):
        next(messages)
    with pytest.raises(ReaderClosed, match="make a new one"):
        next(messages)


def test_a_topic_filter_has_to_be_valid() -> None:
    with pytest.raises(ValueError, match="MQTT topic filters are allowed"):
        uplink("a/#/b")


def test_a_batch_is_stored_as_a_whole_after_its_body(log: KafkaLog) -> None:
    log.records = [publication(b"%d" % number) for number in range(5)]
    messages, seen = uplink(), []
    for batch in messages.batches(2, within_s=0.05):
        seen.append([message.payload for message in batch])
        if len(seen) == 2:
            break
    assert (seen, log.stored) == ([[b"0", b"1"], [b"2", b"3"]], 2)
    for batch in messages.batches(4, within_s=0.05):
        seen.append([message.payload for message in batch])
        messages.stop()
    assert (seen[2:], log.stored) == ([[b"2", b"3", b"4"]], 5)
