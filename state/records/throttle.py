"""The records of `inflight.throttle`: who must not be sent to at the moment. A public contract between the engine and backends.

Key: the client id, or `*` for everybody. Value: JSON `{"code": 530, "reason": …, "since_ms": …}`, or null = not any more. The
topic is compacted, so reading it from its beginning gives the present state.
"""

from typing import Final

import msgspec

from state.commands import ClearThrottle, SetThrottle
from state.errors import UNDECODABLE
from state.model import ClientId
from state.records.record import SinkRecord

EVERYBODY: Final = "*"
TOO_MANY_REQUESTS: Final = 530
"""RocketMQ's code for "throttled"."""


class Throttle(msgspec.Struct, frozen=True):
    """reason: for people. since_ms: Unix time. Fields that are not known here are ignored."""

    code: int = TOO_MANY_REQUESTS
    reason: str = ""
    since_ms: int = 0


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(Throttle)


def encode_throttle(reason: str, since_ms: int) -> bytes:
    """The value of a record that throttles."""
    return _encoder.encode(Throttle(reason=reason, since_ms=since_ms))


def decode_throttle(value: bytes) -> Throttle:
    """One that cannot be read still throttles: whoever wrote it meant the client to be spared."""
    try:
        return _decoder.decode(value)
    except UNDECODABLE:
        return Throttle(reason=f"unreadable: {value[:80]!r}")


def throttle_record(topic: str, client_id: ClientId, command: SetThrottle | ClearThrottle) -> SinkRecord:
    """What a session says about its client."""
    value = encode_throttle(command.reason, command.since_ms) if isinstance(command, SetThrottle) else None
    return SinkRecord(topic, client_id.encode(), value)
