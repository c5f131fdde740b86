"""Reads what a running `inflight up` has written for backends, from the beginning of a topic to its present end."""

import time
from collections.abc import Callable
from typing import Any

import msgspec
from kafka import KafkaConsumer, TopicPartition

from inflight.demo.up import UpProcess

DEADLINE_S = 90.0


def records_of(up: UpProcess, topic: str, *, isolation_level: str = "read_committed") -> list[Any]:
    """Records of kafka-python, those of one client in order."""
    consumer = KafkaConsumer(bootstrap_servers=up.kafka, group_id=None, enable_auto_commit=False, isolation_level=isolation_level)
    try:
        partitions = [TopicPartition(topic, number) for number in consumer.partitions_for_topic(topic) or ()]
        consumer.assign(partitions)
        consumer.seek_to_beginning(*partitions)
        ends = consumer.end_offsets(partitions)
        deadline, found = time.monotonic() + DEADLINE_S, []
        while any(consumer.position(partition) < ends[partition] for partition in partitions):
            assert time.monotonic() < deadline, f"{topic} was not read to its end"
            for records in consumer.poll(timeout_ms=100).values():
                found += records
        return found
    finally:
        consumer.close()


def eventually(condition: Callable[[], Any], what: str, *, within_s: float = DEADLINE_S) -> Any:
    """The first true value of the condition. Raises AssertionError."""
    deadline = time.monotonic() + within_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"{what}: not within {within_s:g} s"
        time.sleep(0.05)
    return value


def ledger_of(up: UpProcess, message_id: str) -> list[dict[str, Any]]:
    """The rows of the ledger about a message, in the order of the session."""
    rows = [row for record in records_of(up, "inflight.ledger") for row in msgspec.json.decode(record.value)]
    return [row for row in rows if row.get("message_id") == message_id]


def await_receipts(up: UpProcess, *message_ids: str) -> list[dict[str, Any]]:
    """The receipts of these messages, in that order, once all are there."""

    def all_of_them() -> list[dict[str, Any]] | None:
        receipts = [msgspec.json.decode(record.value) for record in records_of(up, "inflight.receipts")]
        by_id = {receipt["message_id"]: receipt for receipt in receipts}
        return [by_id[message_id] for message_id in message_ids] if by_id.keys() >= set(message_ids) else None

    receipts: list[dict[str, Any]] = eventually(all_of_them, f"receipts of {', '.join(message_ids)}")
    return receipts
