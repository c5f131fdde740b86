"""A reader of today reads what the next version may write, by the rules of state/records/record.py."""

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from state.commands import CommandBatch, SendPubRel, SetRoute
from state.errors import NewerRecord, UnreadableRecord
from state.events import ConnectionLost
from state.records.commands import decode_command_batch, encode_command_batch
from state.records.events import decode_events, encode_event
from state.records.leases import Lease, decode_lease, encode_lease
from state.records.record import NEWER_MARK, VERSION_BYTE
from state.records.routes import decode_route, route_record

Decode = Callable[[bytes], Any]

PUBREL = SendPubRel(connection_id=1, partition=0, sequence=1, packet_id=1)
ROUTE = route_record("routes", "c", SetRoute(connection_id=5, partition=3)).value or b""
WRITTEN = [
    pytest.param(decode_events, encode_event(ConnectionLost(connection_id=1, reason="x")), id="events"),
    pytest.param(decode_command_batch, encode_command_batch(CommandBatch(client_id="c", commands=(PUBREL,))), id="commands"),
    pytest.param(decode_route, ROUTE, id="routes"),
]
LEASE = encode_lease(Lease(holder="g", duration_ms=1))


@pytest.mark.parametrize(("decode", "data"), [*WRITTEN, pytest.param(decode_lease, LEASE, id="leases")])
def test_a_new_version_is_known_as_one(decode: Decode, data: bytes) -> None:
    with pytest.raises(NewerRecord, match="start the version that wrote it, or a newer one"):
        decode(b"\x06" + NEWER_MARK + data[1:])


@pytest.mark.parametrize(("decode", "data"), WRITTEN)
def test_a_field_at_the_end_is_ignored(decode: Decode, data: bytes) -> None:
    fields = msgspec.msgpack.decode(data[1:])
    assert decode(VERSION_BYTE + msgspec.msgpack.encode([*fields, {"of": "tomorrow"}])) == decode(data)


@pytest.mark.parametrize("decode", [decode_events, lambda data: decode_command_batch(b"\x01\x92\xa1c\x91" + data[1:])])
def test_an_unknown_kind_under_a_known_version_is_damage(decode: Decode) -> None:
    """A flipped bit makes such a record; a new kind has a new version."""
    with pytest.raises(UnreadableRecord) as caught:
        decode(VERSION_BYTE + msgspec.msgpack.encode([99, 1]))
    assert not isinstance(caught.value, NewerRecord)
