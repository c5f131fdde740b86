"""Defines the records of `inflight.throttle`: clients that must not be sent to now. It is a public contract with backends.

Key: the client id, or `*` for all clients. Value: JSON `{"code": 530, "reason": …, "since_ms": …, "is_progressing": …}`. A record
without a value ends the throttling. The topic is compacted, so reading it from its beginning gives the present state.

With `is_progressing` the client is connected and acknowledges, and it is behind: a publisher waits until the throttling ends.
Without it the client is away or stands still: a publisher gives up, or tries again later. With key `*` it says that clients that
catch up have large queues together; without it the engine is behind, or short of storage.

A matcher writes records of its own, with the key U+0000 `partition` U+0000 `TOPIC:NUMBER`, which no client id can be. They say
that the publications of this partition wait for such a client, so whoever publishes to it waits too. The matcher repeats such a
record every 2 s. It holds for 6 s after it was read, unless it ends before. A reader ignores those that it finds when it starts.
"""

from typing import Final

import msgspec

from state.commands import ClearThrottle, SetThrottle
from state.errors import UNDECODABLE
from state.model import ClientId
from state.records.record import SinkRecord

EVERYBODY: Final = "*"
PARTITION: Final = "\x00partition\x00"
"""MQTT forbids U+0000 in a client id [MQTT-1.5.4-2]."""
PARTITION_HOLDS_S: Final = 6.0
PARTITION_REPEATED_S: Final = 2.0
TOO_MANY_REQUESTS: Final = 530
"""RocketMQ's code for "throttled"."""


class Throttle(msgspec.Struct, frozen=True):
    """The value of a record. Unknown fields are ignored.

    Attributes:
        reason: Text for people.
        since_ms: Unix time.
        is_progressing: True = the client is connected and acknowledges. It will catch up.
    """

    code: int = TOO_MANY_REQUESTS
    reason: str = ""
    since_ms: int = 0
    is_progressing: bool = False


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Throttle)


def encode_throttle(reason: str, since_ms: int, *, is_progressing: bool = False) -> bytes:
    """Returns the value of a record that throttles."""
    return _encoder.encode(Throttle(reason=reason, since_ms=since_ms, is_progressing=is_progressing))


def decode_throttle(value: bytes) -> Throttle:
    """Returns the throttle. An unreadable value throttles too, because its writer meant to protect the client."""
    try:
        return _decoder.decode(value)
    except UNDECODABLE:
        return Throttle(reason=f"unreadable: {value[:80]!r}")


def partition_key(topic: str, partition: int) -> str:
    """Returns the key of the record that says that publications of a partition wait."""
    return f"{PARTITION}{topic}:{partition}"


def throttle_record(topic: str, client_id: ClientId, command: SetThrottle | ClearThrottle) -> SinkRecord:
    """Returns the record for a command of a session."""
    value = None
    if isinstance(command, SetThrottle):
        value = encode_throttle(command.reason, command.since_ms, is_progressing=command.is_progressing)
    return SinkRecord(topic, client_id.encode(), value)
