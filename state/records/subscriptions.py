"""Defines the records of `inflight.subscriptions`: all subscriptions of each client, for the matchers.

Key: the client id. Value: the version byte, then a `SubscriptionList` as msgpack. Without a value the client has no subscriptions
any more, and the header `ended` names the last connection of its session. The topic is compacted.

Of the lists of a client the highest one counts, wherever it is in the log: by `order_of`.
"""

from typing import Final

import msgspec

from state.commands import AnnounceSubscriptions, EndSubscriptions
from state.errors import UNDECODABLE, UnreadableRecord
from state.model import ClientId, Subscription, Value
from state.records.record import VERSION_BYTE, Header, SinkRecord, without_version

ENDED: Final = "ended"
"""Header of a record without a value: the connection id as text."""


class SubscriptionList(Value, frozen=True):
    """The subscriptions of a client.

    Attributes:
        version: Counts the lists within a connection. 0 is the one that the connection began with.
        is_online: False if the client was offline when this was written. Only clients with shared subscriptions have such lists.
        wanted: Filters whose retained messages the SUBSCRIBE asks for. A copy of the list for another reason names none.
    """

    connection_id: int
    version: int
    subscriptions: tuple[Subscription, ...] = ()
    is_online: bool = True
    wanted: tuple[str, ...] = ()


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(SubscriptionList)


def order_of(subscriptions: SubscriptionList) -> tuple[int, int, bool]:
    """Returns the place of a list among those of its client. Of two with the same place the later record counts."""
    return subscriptions.connection_id, subscriptions.version, not subscriptions.is_online


def encode_subscriptions(subscriptions: SubscriptionList) -> bytes:
    """Returns the value of a record."""
    return VERSION_BYTE + _encoder.encode(subscriptions)


def decode_subscriptions(data: bytes) -> SubscriptionList:
    """Returns the list.

    Raises:
        UnreadableRecord: `encode_subscriptions` of this or an older version did not write it.
    """
    encoded = without_version(data)
    try:
        return _decoder.decode(encoded)
    except UNDECODABLE as error:
        raise UnreadableRecord(f"not a list of subscriptions: {error}") from error


def ended_connection(headers: list[tuple[str, bytes | None]]) -> int:
    """Returns the connection that a record without a value names. Lists of later connections stay.

    Raises:
        UnreadableRecord: Inflight did not write the headers.
    """
    for name, value in headers:
        if name == ENDED and value is not None and value.isdigit() and len(value) <= 20:
            return int(value)
    raise UnreadableRecord(f"the end of a list of subscriptions without a header {ENDED}")


def subscriptions_record(topic: str, client_id: ClientId, command: AnnounceSubscriptions | EndSubscriptions) -> SinkRecord:
    """Returns the record for a command of a session."""
    key = client_id.encode()
    if isinstance(command, EndSubscriptions):
        return SinkRecord(topic, key, None, headers=(Header(ENDED, b"%d" % command.connection_id),))
    subscriptions = SubscriptionList(
        connection_id=command.connection_id,
        version=command.version,
        subscriptions=command.subscriptions,
        is_online=command.is_online,
    )
    return SinkRecord(topic, key, encode_subscriptions(subscriptions))
