"""Bytes ⇄ values: the records of `inflight.events` and `inflight.commands`.

Both are one version byte followed by msgpack. A reader refuses a version it does not know with `UnreadableRecord`; a writer may
add fields at the end of a struct without a new version, because every such field has a default.
"""

from typing import Final

import msgspec

from state.commands import CommandBatch
from state.errors import UnreadableRecord
from state.events import LoggedEvent

WIRE_VERSION: Final = 1

_VERSION_BYTE: Final = bytes([WIRE_VERSION])
_encoder: Final = msgspec.msgpack.Encoder()
_event_decoder: Final[msgspec.msgpack.Decoder[LoggedEvent]] = msgspec.msgpack.Decoder(LoggedEvent)
_command_batch_decoder: Final = msgspec.msgpack.Decoder(CommandBatch)


def encode_event(event: LoggedEvent) -> bytes:
    """The value of a record of `inflight.events`."""
    return _VERSION_BYTE + _encoder.encode(event)


def decode_event(data: bytes) -> LoggedEvent:
    """Raises UnreadableRecord for anything but the output of `encode_event` of this or an older version."""
    _require_version(data)
    try:
        return _event_decoder.decode(memoryview(data)[1:])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UnreadableRecord(f"not an event of a gateway: {error}") from error


def encode_command_batch(batch: CommandBatch) -> bytes:
    """The value of a record of `inflight.commands`."""
    return _VERSION_BYTE + _encoder.encode(batch)


def decode_command_batch(data: bytes) -> CommandBatch:
    """Raises UnreadableRecord for anything but the output of `encode_command_batch` of this or an older version."""
    _require_version(data)
    try:
        return _command_batch_decoder.decode(memoryview(data)[1:])
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise UnreadableRecord(f"not a batch of commands: {error}") from error


def _require_version(data: bytes) -> None:
    if data[:1] != _VERSION_BYTE:
        found = data[0] if data else "nothing"
        hint = "written by another version of Inflight, or not by Inflight"
        raise UnreadableRecord(f"record version {found}, expected {WIRE_VERSION}: {hint}")
