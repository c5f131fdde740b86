"""Defines the records of `inflight.leases`: which gateways and bridges may hold connections.

Key: the lease id. No headers. Value: the version byte, then a `Lease` as msgpack. A record without a value means that the lease
is over and no session has a connection of it. The topic is compacted.
"""

from typing import Final

import msgspec

from state.errors import UNDECODABLE, UnreadableRecord
from state.model import Value
from state.records.record import VERSION_BYTE, without_version


class Lease(Value, frozen=True):
    """A renewal of a lease.

    Attributes:
        holder: Name of the gateway or bridge, for people.
        duration_ms: How long it holds at most, counted from the time of the record.
        ended: The holder has ended it, and the end of each of its connections is in the log.
        wakes: The holder says when the engine has to hurry (state/records/wake_ups.py).
        lacks: What the holder needs to serve devices and has not, for people; empty = nothing.
    """

    holder: str
    duration_ms: int
    ended: bool = False
    wakes: bool = False
    lacks: str = ""


_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Lease)


def encode_lease(lease: Lease) -> bytes:
    """Returns the value of a record."""
    return VERSION_BYTE + _encoder.encode(lease)


def decode_lease(data: bytes) -> Lease:
    """Returns the lease.

    Raises:
        UnreadableRecord: `encode_lease` of this or an older version did not write it.
    """
    encoded = without_version(data)
    try:
        return _decoder.decode(encoded)
    except UNDECODABLE as error:
        raise UnreadableRecord(f"not a lease: {error}") from error
