"""The records of `inflight.routes`: at which connection routers find a client whose fast path is open (docs/protocol.md, 7).

Key: the client id, so that a client's route is in the partition of its messages. No headers. Value: the version byte, then a
`Route` as msgpack; null = there is none. The topic is compacted. A route that is old or missing costs latency and nothing else.
"""

from typing import Final

import msgspec

from state.commands import ClearRoute, SetRoute
from state.errors import UNDECODABLE, UnreadableRecord
from state.model import ClientId, Value
from state.records.record import VERSION_BYTE, SinkRecord, without_version


class Route(Value, frozen=True):
    """partition: of `inflight.commands`, where the connection's gateway reads."""

    connection_id: int
    partition: int


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Route)


def route_record(topic: str, client_id: ClientId, command: SetRoute | ClearRoute) -> SinkRecord:
    """The record that a session wants written."""
    value = None
    if isinstance(command, SetRoute):
        value = VERSION_BYTE + _encoder.encode(Route(connection_id=command.connection_id, partition=command.partition))
    return SinkRecord(topic, client_id.encode(), value)


def decode_route(data: bytes) -> Route:
    """Raises UnreadableRecord for anything but the value of `route_record` of this or an older version."""
    encoded = without_version(data)
    try:
        return _decoder.decode(encoded)
    except UNDECODABLE as error:
        raise UnreadableRecord(f"not a route: {error}") from error
