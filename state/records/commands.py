"""Defines the records of `inflight.commands`: commands of a session to a gateway or bridge on a connection.

Key: the client id. Partition: the one that the connection's gateway reads. No headers. Value: the version byte, then a
`CommandBatch` (state/commands.py) as msgpack.
"""

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from state.commands import (
    AcceptConnection,
    CommandBatch,
    DropAwaitingRel,
    GatewayCommand,
    OpenFastPath,
    SendPublish,
    WithdrawPublish,
)
from state.errors import UNDECODABLE, UnreadableRecord
from state.model import ClientId, Subscription
from state.records.properties import properties_bytes
from state.records.record import VERSION_BYTE, SinkRecord, without_version

_COMMAND_OVERHEAD_BYTES: Final = 128
"""Estimate of the encoded size of a command without its texts and payload; never too small."""
_KNOWN_BYTES: Final = 40
"""Greatest encoded size of a known publication without its id."""
_MARK_BYTES: Final = 19
"""Greatest encoded size of a source and its mark."""

_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(CommandBatch)


def encode_command_batch(batch: CommandBatch) -> bytes:
    """Returns the value of a record."""
    return VERSION_BYTE + _encoder.encode(batch)


def decode_command_batch(data: bytes) -> CommandBatch:
    """Returns the commands.

    Raises:
        UnreadableRecord: `encode_command_batch` of this or an older version did not write it.
    """
    encoded = without_version(data)
    try:
        return _decoder.decode(encoded)
    except UNDECODABLE as error:
        raise UnreadableRecord(f"not a batch of commands: {error}") from error


def command_records(
    topic: str,
    client_id: ClientId,
    partition: int,
    commands: Sequence[GatewayCommand],
    *,
    max_record_bytes: int,
    code: str = "",
) -> Iterator[SinkRecord]:
    """Yields one record, or several if it would exceed `max_record_bytes`. A single command never does (RecordLimits).

    Args:
        code: As in CommandBatch.
    """
    key = client_id.encode()
    for part in _parts(commands, max_record_bytes):
        value = encode_command_batch(CommandBatch(client_id=client_id, commands=part, code=code))
        yield SinkRecord(topic, key, value, partition=partition)


def _parts(commands: Sequence[GatewayCommand], limit_bytes: int) -> Iterator[tuple[GatewayCommand, ...]]:
    part: list[GatewayCommand] = []
    size = 0
    for command in commands:
        weight = _weight(command)
        if part and size + weight > limit_bytes:
            yield tuple(part)
            part, size = [], 0
        part.append(command)
        size += weight
    yield tuple(part)


def _ids(command: GatewayCommand) -> int:
    match command:
        case AcceptConnection():
            return len(command.awaiting_rel)
        case DropAwaitingRel() | WithdrawPublish():
            return len(command.packet_ids)
        case OpenFastPath():
            return len(command.ids_in_use)
        case _:
            return 0


def _weight(command: GatewayCommand) -> int:
    """Returns an upper estimate of the encoded size, in bytes."""
    if isinstance(command, AcceptConnection):
        filters_bytes = sum(len(topic_filter.encode()) + 5 for topic_filter in command.topic_filters or ())
        known_bytes = sum(_KNOWN_BYTES + len(known.publication_id.encode()) for known in command.known_publications or ())
        return (
            _COMMAND_OVERHEAD_BYTES
            + 3 * _ids(command)
            + filters_bytes
            + _subscriptions_bytes(command.subscriptions)
            + known_bytes
        )
    if isinstance(command, OpenFastPath):
        marks_bytes = _MARK_BYTES * len(command.marks or ())
        filters_bytes = _subscriptions_bytes(command.subscriptions)
        return _COMMAND_OVERHEAD_BYTES + 3 * _ids(command) + len(command.recent_ids) + filters_bytes + marks_bytes
    if not isinstance(command, SendPublish):
        return _COMMAND_OVERHEAD_BYTES + 3 * _ids(command)
    # Twice the bytes in MQTT are more than msgpack needs for a property and its length.
    texts_bytes = 4 * (len(command.topic) + len(command.message_id)) + 2 * properties_bytes(command.properties)
    return _COMMAND_OVERHEAD_BYTES + len(command.payload) + texts_bytes + 5 * len(command.subscription_ids)


def _subscriptions_bytes(subscriptions: tuple[Subscription, ...] | None) -> int:
    return sum(len(subscription.topic_filter.encode()) + 16 for subscription in subscriptions or ())
