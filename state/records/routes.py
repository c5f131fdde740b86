"""Defines the records of `inflight.routes`: the connection of a client whose fast path is open, for routers (protocol.md,
7).

Key: the client id, so that a client's route is in the partition of its messages. No headers. Value: the version byte, then a
`Route` as msgpack; without a value there is no route. The topic is compacted. An old or missing route only costs latency.

Each partition has one record with the key `MESSAGES_KEY`, which the engine writes when it starts: the version byte, then a
`MessagesTopic`. By it routers number the partitions of `inflight.messages` as the sessions do. Readers of versions that do not
know it take it for no route.
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


class MessagesTopic(Value, frozen=True):
    """The topic `inflight.messages` that the engine reads.

    Attributes:
        topic_id: Kafka's id, as a UUID is written; empty if the brokers have none.
        generation: state.model.numbered_partition.
    """

    topic_id: str
    generation: int


MESSAGES_KEY: Final = b"\x00messages"
"""MQTT forbids U+0000 in a client id [MQTT-1.5.4-2]."""
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Route)
_announcement_decoder: Final = msgspec.msgpack.Decoder(MessagesTopic)


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


def announcements(topic: str, partitions: int, announced: MessagesTopic) -> list[SinkRecord]:
    """Returns the records that tell all routers.

    Args:
        partitions: Their number in `inflight.routes`.
    """
    value = VERSION_BYTE + _encoder.encode(announced)
    return [SinkRecord(topic, MESSAGES_KEY, value, partition=number) for number in range(partitions)]


def decode_announcement(data: bytes) -> MessagesTopic:
    """Returns the announced topic.

    Raises:
        UnreadableRecord: `announcements` of this or an older version did not write it.
    """
    encoded = without_version(data)
    try:
        return _announcement_decoder.decode(encoded)
    except UNDECODABLE as error:
        raise UnreadableRecord(f"not an announcement: {error}") from error
