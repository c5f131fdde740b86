"""state.records.commands: batches that no record is too large for. tests/properties/test_codec.py has the codec."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from state.commands import (
    AcceptConnection,
    CommandBatch,
    DropAwaitingRel,
    GatewayCommand,
    KnownPublication,
    OpenFastPath,
    SendPublish,
    SendPubRel,
    WithdrawPublish,
)
from state.errors import UnreadableRecord
from state.model import ClientId, Position, QoS, Subscription, Value
from state.records.commands import command_records, decode_command_batch
from state.records.record import VERSION_BYTE
from state.settings import RecordLimits

LIMITS = RecordLimits()


def publish(sequence: int, *, payload: bytes) -> SendPublish:
    return SendPublish(
        connection_id=1, partition=0, sequence=sequence, packet_id=sequence, topic="t", payload=payload, qos=QoS.AT_LEAST_ONCE
    )


@given(st.lists(st.integers(0, 250_000), min_size=1, max_size=12))
def test_no_batch_of_commands_is_larger_than_a_record_may_be(sizes: list[int]) -> None:
    commands = [publish(number, payload=b"p" * size) for number, size in enumerate(sizes)]
    records = list(command_records("c", "ü", 3, commands, max_record_bytes=LIMITS.max_record_bytes))
    assert all((record.topic, record.key, record.partition) == ("c", "ü".encode(), 3) for record in records)
    assert all(len(record.value) <= LIMITS.max_record_bytes for record in records)
    assert [command for record in records for command in decode_command_batch(record.value).commands] == commands


def test_commands_without_a_payload_are_divided_by_their_packet_ids() -> None:
    ids = tuple(range(1, 60_001))
    commands = [
        AcceptConnection(connection_id=1, partition=3, sequence=1, awaiting_rel=ids),
        DropAwaitingRel(connection_id=1, partition=3, sequence=2, packet_ids=ids),
        WithdrawPublish(connection_id=1, partition=3, sequence=3, packet_ids=ids),
        SendPubRel(connection_id=1, partition=3, sequence=4, packet_id=7),
    ]
    records = list(command_records("c", "d", 3, commands, max_record_bytes=200_000))
    assert [len(decode_command_batch(record.value).commands) for record in records] == [1, 1, 2]
    assert all(len(record.value) <= 200_000 for record in records)
    assert [command for record in records for command in decode_command_batch(record.value).commands] == commands


def test_the_topic_filters_of_a_session_count_with_their_length() -> None:
    filters = tuple(f"ü/{number}" for number in range(10_000))
    accept = AcceptConnection(connection_id=1, partition=3, sequence=1, topic_filters=filters)
    commands = [accept, publish(2, payload=b"p" * 40_000)]
    records = list(command_records("c", "d", 3, commands, max_record_bytes=150_000))
    assert [decode_command_batch(record.value).commands for record in records] == [(commands[0],), (commands[1],)]
    assert all(len(record.value) <= 150_000 for record in records)


def test_known_publications_of_a_session_count_with_their_ids() -> None:
    known = tuple(
        KnownPublication(packet_id=60_000, content=b"8 bytes.", publication_id=f"ü:{1 << 62}:{number}", since_ms=1 << 62)
        for number in range(1_000)
    )
    accept = AcceptConnection(connection_id=1, partition=3, sequence=1, known_publications=known)
    records = list(command_records("c", "d", 3, [accept, publish(2, payload=b"p" * 4_000)], max_record_bytes=70_000))
    assert [len(decode_command_batch(record.value).commands) for record in records] == [1, 1]
    assert all(len(record.value) <= 70_000 for record in records)


def test_a_grant_counts_with_its_ids_and_its_topic_filters() -> None:
    grant = OpenFastPath(
        connection_id=1,
        partition=3,
        sequence=1,
        after=Position(1 << 31, 1 << 62),
        adopted=1 << 62,
        ids_in_use=tuple(range(32_768, 65_536)),
        recent_ids=b"8 bytes." * 100_000,
        subscriptions=tuple(Subscription(topic_filter=f"ü/{number}", qos=QoS.EXACTLY_ONCE) for number in range(32)),
    )
    records = list(command_records("c", "d", 3, [grant, publish(2, payload=b"p" * 1_000)], max_record_bytes=900_000))
    assert [decode_command_batch(record.value).commands for record in records] == [(grant,), (publish(2, payload=b"p" * 1_000),)]
    assert all(len(record.value) <= 900_000 for record in records)


def test_bytes_that_are_no_batch_of_commands_are_an_unreadable_record() -> None:
    with pytest.raises(UnreadableRecord, match="not a batch of commands"):
        decode_command_batch(VERSION_BYTE + b"\xc1")


def test_each_record_says_which_code_has_made_it_and_older_ones_do_not() -> None:
    commands = [publish(number, payload=b"p" * 800) for number in range(1, 4)]
    records = list(command_records("c", "d", 3, commands, max_record_bytes=1_000, code="c0de"))
    assert [decode_command_batch(record.value).code for record in records] == ["c0de"] * 3
    of_0_1_0 = b"\x01" + msgspec.msgpack.encode(["d", commands])
    assert decode_command_batch(of_0_1_0) == CommandBatch(client_id="d", commands=tuple(commands))


def test_a_gateway_of_0_1_0_reads_the_records_of_today() -> None:
    class BatchOf010(Value, frozen=True):
        client_id: ClientId
        commands: tuple[GatewayCommand, ...]

    (record,) = command_records("c", "d", 3, [publish(1, payload=b"")], max_record_bytes=1_000, code="c0de")
    read = msgspec.msgpack.decode(record.value[1:], type=BatchOf010)
    assert (read.client_id, read.commands) == ("d", (publish(1, payload=b""),))
