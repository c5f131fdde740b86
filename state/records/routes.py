"""Defines the records of `inflight.routes`: the connection of a client whose fast path is open, for routers (protocol.md,
7).

Key: the client id, so that a client's route is in the partition of its messages. No headers. Value: the version byte, then a
`Route` as msgpack; without a value there is no route. The topic is compacted. An old or missing route only costs latency.
"""

from typing import Final

import msgspec

from state.commands import ClearRoute, SetRoute
from state.errors import UNDECODABLE, UnreadableRecord
from state.model import ClientId, Value
from state.records.record import VERSION_BYTE, SinkRecord, without_version


class Route(Value, frozen=True):
    """The connection of a client.

    Attributes:
        partition: The partition of `inflight.commands` that the connection's gateway reads.
    """

    connection_id: int
    partition: int


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Route)


def route_record(topic: str, client_id: ClientId, command: SetRoute | ClearRoute) -> SinkRecord:
    """Returns the record for a command of a session."""
    value = None
    if isinstance(command, SetRoute):
        value = VERSION_BYTE + _encoder.encode(Route(connection_id=command.connection_id, partition=command.partition))
    return SinkRecord(topic, client_id.encode(), value)


def decode_route(data: bytes) -> Route:
    """Returns the route.

    Raises:
        UnreadableRecord: `route_record` of this or an older version did not write it.
    """
    encoded = without_version(data)
    try:
        return _decoder.decode(encoded)
    except UNDECODABLE as error:
        raise UnreadableRecord(f"not a route: {error}") from error
