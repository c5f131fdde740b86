"""Reads what a running `inflight up` has written for backends, from the beginning of a topic to its present end."""

from typing import Any

import msgspec

from state.events import ClientDisconnected, ConnectionLost
from state.records.events import decode_events
from streaming.engine.progress import last_progress
from tests.integration.up.conftest import SharedUp
from tests.support.kafka_topics import ReadRecord, read_topic
from tests.support.waiting import wait_until


def records_of(up: SharedUp, topic: str, *, isolation_level: str = "read_committed") -> list[ReadRecord]:
    """Returns all records of a topic, each client's in order."""
    return read_topic(up.kafka, topic, isolation_level=isolation_level)


def ledger_of(up: SharedUp, message_id: str) -> list[dict[str, Any]]:
    """The rows of the ledger about a message, in the order of the session."""
    rows = [row for record in records_of(up, "inflight.ledger") for row in msgspec.json.decode(record.value or b"")]
    return [row for row in rows if row.get("message_id") == message_id]


def await_receipts(up: SharedUp, *message_ids: str) -> list[dict[str, Any]]:
    """The last receipts of these messages, in that order, once all are there."""

    def by_id(records: list[ReadRecord]) -> dict[str, dict[str, Any]]:
        receipts = [msgspec.json.decode(record.value or b"") for record in records]
        return {receipt["message_id"]: receipt for receipt in receipts}

    found = by_id(read_topic(up.kafka, "inflight.receipts", lambda records: by_id(records).keys() >= set(message_ids)))
    return [found[message_id] for message_id in message_ids]


def await_final_receipts(up: SharedUp, *message_ids: str) -> dict[str, list[dict[str, Any]]]:
    """Returns all final receipts by message id, as soon as each message has one."""

    def by_id(records: list[ReadRecord]) -> dict[str, list[dict[str, Any]]]:
        found: dict[str, list[dict[str, Any]]] = {message_id: [] for message_id in message_ids}
        for record in records:
            receipt = msgspec.json.decode(record.value or b"")
            if receipt["message_id"] in found and receipt["final"]:
                found[receipt["message_id"]].append(receipt)
        return found

    return by_id(read_topic(up.kafka, "inflight.receipts", lambda records: all(by_id(records).values())))


def await_gone(up: SharedUp, client_id: str) -> None:
    """Returns when the session knows that its client, whose socket is closed, is away: messages and events are two sources, and
    a message may be in an earlier micro-batch than the end of a connection that came before it.
    """

    def ends(records: list[ReadRecord]) -> list[ReadRecord]:
        own = [record for record in records if record.key == client_id.encode()]
        return own[-1:] if own and isinstance(decode_events(own[-1].value or b"")[0], ClientDisconnected | ConnectionLost) else []

    (end,) = ends(read_topic(up.kafka, "inflight.events", lambda found: bool(ends(found))))

    def is_taken() -> bool:
        batch = last_progress(up.data_dir)
        return batch is not None and batch.end_offsets["inflight.events"].get(end.partition, 0) > end.offset

    wait_until(is_taken, f"a micro-batch has taken the end of the connection of {client_id}")
