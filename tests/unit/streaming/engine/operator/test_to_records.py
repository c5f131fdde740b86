"""streaming/engine/operator/cells.py and streaming/engine/operator/to_records.py: cells in, commands out."""

import base64
import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from state.commands import (
    CloseConnection,
    DeadLetter,
    ForwardPublication,
    RecordTransition,
    SendPublish,
    SendReceipt,
    Transition,
)
from state.model import Message, Outcome, PublishProperties, QoS
from state.records.codec import decode_command_batch
from streaming.engine.operator.cells import Header, SinkRecord, decode_source_record, encode_sink_records
from streaming.engine.operator.message_headers import parse_message
from streaming.engine.operator.settings import PipelineSettings
from streaming.engine.operator.to_records import to_records

SETTINGS = PipelineSettings(commands_partitions=4)
NOW = 1_700_000_000_000


def publish(sequence: int, *, partition: int = 0, payload: bytes = b"p") -> SendPublish:
    return SendPublish(
        connection_id=1,
        partition=partition,
        sequence=sequence,
        packet_id=sequence,
        topic="t",
        payload=payload,
        qos=QoS.AT_LEAST_ONCE,
    )


def records_of(*commands, settings: PipelineSettings = SETTINGS) -> list[SinkRecord]:
    return to_records(commands, client_id="ü", now_ms=NOW, settings=settings)


@given(value=st.none() | st.binary(), headers=st.lists(st.tuples(st.text(), st.none() | st.binary())))
def test_a_cell_as_spark_writes_it_is_read_byte_for_byte(value: bytes | None, headers: list[tuple[str, bytes | None]]) -> None:
    def spark(fields: dict[str, object]) -> dict[str, object]:
        # to_json leaves nulls out and writes binary as base64.
        encoded = {key: base64.b64encode(v).decode() if isinstance(v, bytes) else v for key, v in fields.items()}
        return {key: v for key, v in encoded.items() if v is not None}

    cell = spark({"s": 1, "p": 2, "o": 3, "t": 4, "v": value, "k": b"\xff"})
    cell["h"] = [spark({"key": name, "value": content}) for name, content in headers]
    record = decode_source_record(json.dumps(cell).encode())
    assert (record.source, record.partition, record.offset, record.timestamp_ms) == (1, 2, 3, 4)
    assert (record.value, record.key) == (value, b"\xff")
    assert [(header.key, header.value) for header in record.headers] == headers


def test_an_outgoing_cell_is_the_json_that_spark_is_told_to_expect() -> None:
    full = SinkRecord("t", b"\xff", b"\x00", headers=(Header("h", b"\x01"),), partition=3)
    assert json.loads(encode_sink_records([full, SinkRecord("u", b"k", b"")])) == [
        {"topic": "t", "key": "/w==", "value": "AA==", "headers": [{"key": "h", "value": "AQ=="}], "partition": 3},
        {"topic": "u", "key": "aw==", "value": ""},
    ]


def test_gateway_commands_are_one_record_for_each_partition_and_keep_their_order() -> None:
    close = CloseConnection(connection_id=1, partition=2, sequence=9, reason_code=0x8E)
    records = records_of(publish(1), close, publish(2), publish(3))
    assert [(record.topic, record.partition, record.key) for record in records] == [
        ("inflight.commands", 0, "ü".encode()),
        ("inflight.commands", 2, "ü".encode()),
    ]
    batches = [decode_command_batch(record.value) for record in records]
    assert batches[0].commands == (publish(1), publish(2), publish(3))
    assert batches[1].commands == (close,)
    assert batches[0].client_id == "ü"


@given(st.lists(st.integers(0, 250_000), max_size=12))
def test_no_batch_of_commands_is_larger_than_a_record_may_be(sizes: list[int]) -> None:
    commands = [publish(number, payload=b"p" * size) for number, size in enumerate(sizes)]
    records = records_of(*commands)
    assert all(len(record.value) <= SETTINGS.max_record_bytes for record in records)
    assert [command for record in records for command in decode_command_batch(record.value).commands] == commands


def test_commands_for_a_partition_that_does_not_exist_are_not_written() -> None:
    assert records_of(publish(1, partition=4)) == []


def test_all_rows_of_a_client_are_one_ledger_record_unless_it_gets_too_large() -> None:
    rows = [RecordTransition(transition=Transition.SENT, time_ms=NOW, message_id="m" * 400) for _ in range(5_000)]
    (small,) = records_of(rows[0], RecordTransition(transition=Transition.CONNECTED, time_ms=NOW))
    assert json.loads(small.value) == [
        {"client_id": "ü", "batch_ms": NOW, "transition": "sent", "time_ms": NOW, "message_id": "m" * 400},
        {"client_id": "ü", "batch_ms": NOW, "transition": "connected", "time_ms": NOW},
    ]
    many = records_of(*rows)
    assert len(many) > 1
    assert all(len(record.value) <= SETTINGS.max_record_bytes for record in many)
    assert sum(len(json.loads(record.value)) for record in many) == 5_000


def test_receipts_and_ledger_can_be_switched_off() -> None:
    receipt = SendReceipt(
        message_id="m", client_id="ü", outcome=Outcome.DELIVERED, reason_code=0, attempts=1, accepted_ms=1, first_sent_ms=2,
        outcome_ms=3,
    )  # fmt: skip
    row = RecordTransition(transition=Transition.SENT, time_ms=NOW)
    quiet = PipelineSettings(commands_partitions=1, receipts=False, ledger=False)
    assert records_of(receipt, row, settings=quiet) == []
    (record,) = records_of(receipt)
    assert (record.topic, json.loads(record.value)["outcome"]) == ("inflight.receipts", "delivered")


def test_a_publication_goes_to_uplink_with_its_id() -> None:
    (record,) = records_of(ForwardPublication(publication_id="e-0-7", topic="up", payload=b"\xff", qos=QoS.EXACTLY_ONCE))
    assert (record.topic, record.value) == ("inflight.uplink", b"\xff")
    assert Header("inflight-id", b"e-0-7") in (record.headers or ())


def dead_letter(message: Message, detail: str = "") -> SinkRecord:
    (record,) = records_of(DeadLetter(message=message, reason=Outcome.EXPIRED, time_ms=NOW, detail=detail))
    return record


def test_a_dead_letter_has_its_history_and_is_the_message_again_when_it_is_sent_again() -> None:
    properties = PublishProperties(content_type="text/plain", correlation_data=b"\xff", user_properties=(("a", "b"),))
    message = Message(
        message_id="id-1", topic="a/b", payload=b"\x00", qos=QoS.EXACTLY_ONCE, retain=True, priority=7, accepted_ms=5,
        expires_at_ms=15, expiration_ms=10, properties=properties, headers=(("x-other", b"\xff"),),
    )  # fmt: skip
    record = dead_letter(message, "too late")
    headers = {header.key: header.value for header in record.headers or ()}
    assert json.loads(headers["x-death"] or b"") == [
        {
            "queue": "ü", "reason": "expired", "count": 1, "time": NOW, "exchange": "", "routing-keys": ["a/b"],
            "original-expiration": "10",
        }
    ]  # fmt: skip
    assert headers["x-first-death-reason"] == headers["x-last-death-reason"] == b"expired"
    assert headers["x-detail"] == b"too late"
    assert "expiration" not in headers
    again, explicit = parse_message(record.headers or (), payload=record.value, accepted_ms=5, default_message_id="other")
    assert explicit
    assert msgspec.structs.replace(again, headers=()) == msgspec.structs.replace(
        message, headers=(), expires_at_ms=None, expiration_ms=None
    )


def test_what_was_too_large_to_be_a_message_is_cut_to_a_record_that_kafka_takes() -> None:
    huge = tuple((f"h{number}", b"v" * 9_000) for number in range(90))
    record = dead_letter(Message(message_id="m", topic="t", payload=b"p" * 5_000_000, headers=huge))
    headers = record.headers or ()
    assert Header("x-truncated-from-bytes", b"5000000") in headers
    assert len(record.value) + sum(len(h.key) + len(h.value or b"") for h in headers) < SETTINGS.max_record_bytes
