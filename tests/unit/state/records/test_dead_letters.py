"""The death history as Kafka headers, and receipts as JSON: the two public forms of dead lettering."""

import json
from pathlib import Path

import msgspec
import pytest

from state.commands import SendReceipt
from state.dead_letters.dead_letter import with_death
from state.model import Message, Outcome
from streaming.engine.operator.cells import Header
from streaming.engine.operator.death_headers import carried_headers, death_headers, parse_death_headers
from streaming.engine.operator.receipts import Receipt, receipt_records
from streaming.engine.operator.settings import PipelineSettings

SETTINGS = PipelineSettings(commands_partitions=1)
SCHEMA = Path(__file__).parents[4] / "docs" / "receipt.schema.json"
RECEIPT = SendReceipt(
    message_id="m",
    client_id="lamp",
    outcome=Outcome.DELIVERED,
    reason_code=0,
    attempts=1,
    accepted_ms=1,
    first_sent_ms=2,
    outcome_ms=3,
)


def message() -> Message:
    fresh = Message(message_id="m", topic="t/ü", payload=b"", expiration_ms=5)
    once = with_death(fresh, queue="q", reason=Outcome.EXPIRED, time_ms=7, exchange="x", override="k")
    return with_death(once, queue="r", reason=Outcome.REJECTED, time_ms=9, exchange="y")


def test_the_headers_are_rabbitmqs() -> None:
    assert message().history is not None
    headers = {header.key: (header.value or b"").decode() for header in death_headers(message().history)}
    assert json.loads(headers.pop("x-death")) == [
        {"queue": "r", "reason": "rejected", "count": 1, "time": 9, "exchange": "x", "routing-keys": ["k"]},
        {
            "queue": "q",
            "reason": "expired",
            "count": 1,
            "time": 7,
            "exchange": "",
            "routing-keys": ["t/ü"],
            "original-expiration": "5",
        },
    ]
    assert headers == {
        "x-first-death-reason": "expired",
        "x-first-death-queue": "q",
        "x-first-death-exchange": "",
        "x-last-death-reason": "rejected",
        "x-last-death-queue": "r",
        "x-last-death-exchange": "x",
        "x-last-death-time": "9",
        "x-exchange": "y",
        "x-routing-key": "k",
    }


def test_the_history_reads_back_from_its_headers() -> None:
    assert parse_death_headers(death_headers(message().history)) == message().history


@pytest.mark.parametrize("value", [b"", b"{", b"[]", b'[{"queue": "q"}]', b"\xff", b"[" * 5_000, b'[{"queue":1}]'])
def test_what_is_no_history_reads_as_none(value: bytes) -> None:
    assert parse_death_headers([Header("x-death", value)]) is None


def test_foreign_histories_are_set_apart_and_replace_the_ones_that_were_set_apart_before() -> None:
    carried = carried_headers(
        [
            ("x-received-death", b"older"),
            ("x-death", b"newer"),
            ("x-first-death-queue", b"q"),
            ("x-exchange", b"gone"),
            ("BCC", b'["s"]'),
            ("mine", b"1"),
        ]
    )
    assert [(header.key, header.value) for header in carried] == [
        ("x-received-death", b"newer"),
        ("x-received-first-death-queue", b"q"),
        ("mine", b"1"),
    ]


def test_the_schema_in_docs_is_that_of_the_code() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == msgspec.json.schema(Receipt)


def test_every_receipt_has_every_field_of_the_schema() -> None:
    required = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"]["Receipt"]["required"]
    lost = msgspec.structs.replace(RECEIPT, correlation_data=b"\xff", outcome=Outcome.DEAD_LETTER_UNROUTABLE)
    for receipt in (RECEIPT, lost):
        (record,) = receipt_records(receipt, SETTINGS)
        assert sorted(json.loads(record.value)) == sorted(required)
        assert msgspec.json.decode(record.value, type=Receipt).outcome == receipt.outcome


@pytest.mark.parametrize("response_topic", ["client:app", "client:a/b:c"])
def test_the_client_that_a_response_topic_names_gets_the_receipt_as_a_message(response_topic: str) -> None:
    receipt = msgspec.structs.replace(RECEIPT, response_topic=response_topic, correlation_data=b"c")
    record, to_client = receipt_records(receipt, SETTINGS)
    assert (to_client.topic, to_client.key.decode()) == ("inflight.messages", response_topic.removeprefix("client:"))
    assert to_client.value == record.value
    headers = {header.key: header.value for header in to_client.headers or ()}
    assert headers["mqtt-topic"] == response_topic.encode()
    assert headers["correlation-data"] == b"c"
    (_, again) = receipt_records(receipt, SETTINGS)
    assert again == to_client, "a repeated micro-batch writes the same message id"


@pytest.mark.parametrize("response_topic", [None, "client:", "answers/x", "client:" + "x" * 2_000])
def test_other_response_topics_name_nobody(response_topic: str | None) -> None:
    assert len(list(receipt_records(msgspec.structs.replace(RECEIPT, response_topic=response_topic), SETTINGS))) == 1
