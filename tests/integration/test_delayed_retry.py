"""Delayed retry as conf/policies.toml has it, on the real thing: `inflight up`, and devices that refuse on their sockets."""

import json
import time
from collections import defaultdict
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from inflight.demo.up import UpProcess
from streaming.config.resources import conf_file
from tests.integration.history_device import AnsweringDevice

pytestmark = [pytest.mark.integration, pytest.mark.spark, pytest.mark.timeout(300)]

REFUSED = 0x87
DELAY_S = 1.0
DEADLINE_S = 90.0
PARKED = "lamps.parked"


@pytest.fixture
def up(tmp_path: Path) -> Iterator[UpProcess]:
    """With the example of the documentation, whose delay is ten seconds there."""
    example = conf_file("policies.toml").read_text(encoding="utf-8")
    configuration = tmp_path / "policies.toml"
    configuration.write_text(example.replace('message_ttl = "10s"', f'message_ttl = "{DELAY_S:.0f}s"'), encoding="utf-8")
    assert "10s" not in configuration.read_text(encoding="utf-8")
    with UpProcess(tmp_path / "data", "--config", str(configuration)) as process:
        yield process


def records_of(servers: str, topic: str, count: int) -> list[tuple[dict[str, bytes], bytes]]:
    """(headers, value) of all records of a topic, as soon as there are `count`."""
    consumer = KafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False)
    found: list[tuple[dict[str, bytes], bytes]] = []
    deadline = time.monotonic() + DEADLINE_S
    try:
        consumer.assign([TopicPartition(topic, number) for number in sorted(consumer.partitions_for_topic(topic) or ())])
        consumer.seek_to_beginning()
        while len(found) < count:
            assert time.monotonic() < deadline, f"{len(found)} of {count} records in {topic}: {found}"
            for records in consumer.poll(timeout_ms=100).values():
                found += [(dict(record.headers), record.value) for record in records]
    finally:
        consumer.close()
    return found


def test_a_rejected_message_comes_back_after_the_delay_three_times_and_is_parked_then(up: UpProcess) -> None:
    arrivals: dict[str, list[float]] = defaultdict(list)

    def stubborn(topic: str, times: int) -> int:
        arrivals["lamp-stubborn"].append(time.monotonic())
        return REFUSED

    def moody(topic: str, times: int) -> int:
        arrivals["lamp-moody"].append(time.monotonic())
        return REFUSED if times < 3 else 0

    with AnsweringDevice(*up.mqtt, "lamp-stubborn", stubborn) as one, AnsweringDevice(*up.mqtt, "lamp-moody", moody) as other:
        producer = KafkaProducer(bootstrap_servers=up.kafka, acks="all")
        for client_id in ("lamp-stubborn", "lamp-moody"):
            headers = [("mqtt-topic", b"lamp/switch"), ("message-id", f"on-{client_id}".encode()), ("user-room", b"7")]
            producer.send("inflight.messages", key=client_id.encode(), value=b"on", headers=headers)
        producer.close(timeout=30)
        ((headers, value),) = records_of(up.kafka, PARKED, 1)
        other.await_count(3)
        receipts = [json.loads(value) for _, value in records_of(up.kafka, "inflight.receipts", 7 + 5)]

    assert (one.received, other.received) == ([b"on"] * 4, [b"on"] * 3)
    for times in arrivals.values():
        assert min(later - earlier for earlier, later in pairwise(times)) >= DELAY_S
    assert (value, headers["message-id"], headers["mqtt-topic"]) == (b"on", b"on-lamp-stubborn", b"lamp/switch")
    assert headers["user-room"] == b"7"
    deaths = [(death["queue"], death["reason"], death["count"]) for death in json.loads(headers["x-death"])]
    assert deaths == [("lamp-stubborn", "rejected", 4), ("delay/lamp-stubborn", "expired", 3)]
    assert (headers["x-first-death-queue"], headers["x-first-death-reason"]) == (b"lamp-stubborn", b"rejected")

    told = {
        message_id: [
            (receipt["client_id"], receipt["outcome"], receipt["final"])
            for receipt in sorted(receipts, key=lambda receipt: (receipt["deaths"], receipt["outcome_ms"]))
            if receipt["message_id"] == message_id
        ]
        for message_id in ("on-lamp-stubborn", "on-lamp-moody")
    }
    assert told["on-lamp-stubborn"] == [*a_round("lamp-stubborn") * 3, ("lamp-stubborn", "rejected", True)]
    assert told["on-lamp-moody"] == [*a_round("lamp-moody") * 2, ("lamp-moody", "delivered", True)]


def a_round(client_id: str) -> list[tuple[str, str, bool]]:
    """The receipts of a refusal and of the wait after it."""
    return [(client_id, "rejected", False), (f"delay/{client_id}", "expired", False)]
