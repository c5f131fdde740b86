"""state.records.commands: batches that no record is too large for. tests/properties/test_codec.py has the codec."""

from hypothesis import given
from hypothesis import strategies as st

from state.commands import SendPublish
from state.model import QoS
from state.records.commands import command_records, decode_command_batch
from state.records.settings import RecordLimits

LIMITS = RecordLimits()


def publish(sequence: int, *, payload: bytes) -> SendPublish:
    return SendPublish(
        connection_id=1,
        partition=0,
        sequence=sequence,
        packet_id=sequence,
        topic="t",
        payload=payload,
        qos=QoS.AT_LEAST_ONCE,
    )


@given(st.lists(st.integers(0, 250_000), min_size=1, max_size=12))
def test_no_batch_of_commands_is_larger_than_a_record_may_be(sizes: list[int]) -> None:
    commands = [publish(number, payload=b"p" * size) for number, size in enumerate(sizes)]
    records = list(command_records("c", "ü", 3, commands, max_record_bytes=LIMITS.max_record_bytes))
    assert all((record.topic, record.key, record.partition) == ("c", "ü".encode(), 3) for record in records)
    assert all(len(record.value) <= LIMITS.max_record_bytes for record in records)
    assert [command for record in records for command in decode_command_batch(record.value).commands] == commands
