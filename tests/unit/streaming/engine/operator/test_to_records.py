"""streaming/engine/operator/to_records.py: which command becomes a record of which topic."""

import json

import msgspec

from state.commands import (
    ClearRoute,
    CloseConnection,
    CloseFastPath,
    DeadLetter,
    ForwardPublication,
    OpenFastPath,
    RecordTransition,
    SendPublish,
    SetRoute,
    Transition,
)
from state.dead_letters.dead_letter import with_death
from state.dead_letters.message_end import receipt_command
from state.events import MessageReturned
from state.model import Destination, DestinationKind, Message, Outcome, Position, QoS
from state.outbound.inflight_window import Delivery
from state.records.commands import decode_command_batch
from state.records.events import decode_events
from state.records.record import Header, SinkRecord
from state.records.routes import Route, decode_route
from state.settings import RecordLimits
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.to_records import to_records

SETTINGS = PipelineSettings(commands_partitions=4)
NOW = 1_700_000_000_000


def publish(sequence: int, *, partition: int = 0) -> SendPublish:
    return SendPublish(
        connection_id=1,
        partition=partition,
        sequence=sequence,
        packet_id=sequence,
        topic="t",
        payload=b"p",
        qos=QoS.AT_LEAST_ONCE,
    )


def records_of(*commands, settings: PipelineSettings = SETTINGS) -> list[SinkRecord]:
    return to_records(commands, client_id="ü", now_ms=NOW, settings=settings)


def test_gateway_commands_are_one_ordered_record_for_each_partition() -> None:
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
    assert records_of() == []


def test_grants_go_with_the_other_commands_and_routes_to_their_own_topic() -> None:
    opened = OpenFastPath(connection_id=1, partition=0, sequence=2, after=Position(3, 7))
    closed = CloseFastPath(connection_id=1, partition=0, sequence=3)
    route, cleared, batch = records_of(publish(1), SetRoute(connection_id=1, partition=0), opened, closed, ClearRoute())
    assert decode_command_batch(batch.value).commands == (publish(1), opened, closed)
    assert [(record.topic, record.key) for record in (route, cleared)] == [("inflight.routes", "ü".encode())] * 2
    assert decode_route(route.value) == Route(connection_id=1, partition=0)
    assert cleared.value is None


def test_commands_for_a_partition_that_does_not_exist_are_not_written() -> None:
    assert records_of(publish(1, partition=4)) == []


def test_receipts_and_ledger_can_be_switched_off() -> None:
    delivery = Delivery(message=Message(message_id="m", topic="t", payload=b""), order=0, qos=QoS.AT_LEAST_ONCE)
    receipt = receipt_command(delivery, Outcome.DELIVERED, client_id="ü", now_ms=NOW)
    row = RecordTransition(transition=Transition.SENT, time_ms=NOW)
    quiet = PipelineSettings(commands_partitions=1, receipts=False, ledger=False)
    assert records_of(receipt, row, settings=quiet) == []
    (record,) = records_of(receipt)
    assert (record.topic, json.loads(record.value)["outcome"]) == ("inflight.receipts", "delivered")


def test_commands_of_another_history_are_of_other_code() -> None:
    close = CloseConnection(connection_id=1, partition=2, sequence=9, reason_code=0x8E)
    restored = PipelineSettings(commands_partitions=4, checkpoint_lineage="5eed")
    (code,), (other,) = (
        [decode_command_batch(record.value).code for record in records_of(close, settings=each)] for each in (SETTINGS, restored)
    )
    assert other == f"{code}5eed"


def test_a_publication_goes_to_uplink_with_its_id() -> None:
    (record,) = records_of(ForwardPublication(publication_id="e-0-7", topic="up", payload=b"\xff", qos=QoS.EXACTLY_ONCE))
    assert (record.topic, record.value) == ("inflight.uplink", b"\xff")
    assert Header("inflight-id", b"e-0-7") in (record.headers or ())


def test_a_publication_that_no_record_can_carry_any_more_is_a_dead_letter() -> None:
    limits = RecordLimits(max_payload_bytes=1_000, max_record_bytes=140_000)
    settings = PipelineSettings(commands_partitions=4, limits=limits)
    publication = ForwardPublication(publication_id="e-0-7", topic="up", payload=bytes(139_000), qos=QoS.EXACTLY_ONCE)
    assert [record.topic for record in records_of(publication, settings=settings)] == ["inflight.uplink"]
    larger = msgspec.structs.replace(publication, payload=bytes(140_000))
    letter, ledger = sorted(records_of(larger, settings=settings), key=lambda record: record.topic)
    assert (letter.topic, ledger.topic) == ("inflight.dead-letters", "inflight.ledger")
    headers = {header.key: header.value or b"" for header in letter.headers or ()}
    assert (headers["message-id"], headers["mqtt-topic"]) == (b"e-0-7", b"up")
    assert headers["x-truncated-from-bytes"] == b"140000"
    assert b"140000 are allowed now (engine.max_record_bytes)" in headers["x-detail"]


def test_a_dead_letter_goes_to_the_topic_of_its_destination() -> None:
    message = with_death(
        Message(message_id="m", topic="t", payload=b"p"), queue="ü", reason=Outcome.EXPIRED, time_ms=NOW, exchange="x"
    )

    def record_of(destination: Destination | None) -> SinkRecord:
        (record,) = records_of(DeadLetter(message=message, reason=Outcome.EXPIRED, time_ms=NOW, destination=destination))
        return record

    assert (record_of(None).topic, record_of(None).key) == ("inflight.dead-letters", "ü".encode())
    assert record_of(Destination(kind=DestinationKind.TOPIC, name="parking")).topic == "parking"
    client = record_of(Destination(kind=DestinationKind.CLIENT, name="other"))
    assert (client.topic, client.key, client.headers) == ("inflight.events", b"other", None)
    assert decode_events(client.value or b"") == (MessageReturned(message=message),)
