"""Reads what a running `inflight up` has written for backends, from the beginning of a topic to its present end."""

from typing import Any

import msgspec

from inflight.demo.up import UpProcess
from tests.support.kafka_topics import ReadRecord, read_topic


def records_of(up: UpProcess, topic: str, *, isolation_level: str = "read_committed") -> list[ReadRecord]:
    """Those of one client in order."""
    return read_topic(up.kafka, topic, isolation_level=isolation_level)


def ledger_of(up: UpProcess, message_id: str) -> list[dict[str, Any]]:
    """The rows of the ledger about a message, in the order of the session."""
    rows = [row for record in records_of(up, "inflight.ledger") for row in msgspec.json.decode(record.value or b"")]
    return [row for row in rows if row.get("message_id") == message_id]


def await_receipts(up: UpProcess, *message_ids: str) -> list[dict[str, Any]]:
    """The last receipts of these messages, in that order, once all are there."""

    def by_id(records: list[ReadRecord]) -> dict[str, dict[str, Any]]:
        receipts = [msgspec.json.decode(record.value or b"") for record in records]
        return {receipt["message_id"]: receipt for receipt in receipts}

    found = by_id(read_topic(up.kafka, "inflight.receipts", lambda records: by_id(records).keys() >= set(message_ids)))
    return [found[message_id] for message_id in message_ids]
