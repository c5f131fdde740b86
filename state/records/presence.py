"""Defines the records of `inflight.presence`: which clients are connected. It is a public contract with backends.

Key: the client id. Value: JSON, a `PresenceRecord`. Without a value the client's session has ended, and the headers `since-ms`,
`connection-id` and `reason` say when and why. The topic is compacted, so reading it from its beginning gives the present state
of each client with a session.

Of two records of a client the higher one counts, by connection id and then by stage: online, offline, gone. One with connection
id 0 counts wherever it is: the stored session is unreadable. A micro-batch that is executed again writes equal records again.
Unknown fields and headers are to be ignored.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from state.commands import ClearPresence, SetPresence
from state.errors import UNDECODABLE, UnreadableRecord
from state.model import NEVER_EXPIRES_S, ClientId
from state.records.record import Header, SinkRecord, TimeMs

GONE_SINCE: Final = "since-ms"
GONE_REASON: Final = "reason"
GONE_CONNECTION: Final = "connection-id"


class PresenceRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The value of a record. Times are milliseconds since 1970."""

    online: Annotated[bool, Meta(description="true while the client is connected")]
    since_ms: Annotated[TimeMs, Meta(description="when the session read of the connection, or of its end")] = 0
    connection_id: Annotated[str, Meta(description="the present connection, or the last one; later ones have larger numbers")] = (
        "0"
    )
    gateway: Annotated[str | None, Meta(description="the gateway or bridge of the connection; null = offline, or not known")] = (
        None
    )
    protocol_version: Annotated[int, Meta(description="3 = MQTT 3.1, 4 = MQTT 3.1.1, 5 = MQTT 5")] = 4
    session_expiry_interval_s: Annotated[
        int | None, Meta(description="how long the session outlives the connection, in seconds; null = it never expires")
    ] = None
    expires_ms: Annotated[
        TimeMs | None, Meta(description="when the session ends unless the client returns; null = online, or never")
    ] = None
    reason: Annotated[str, Meta(description="why the connection ended, for people; empty = online")] = ""


class GonePresence(msgspec.Struct, frozen=True, kw_only=True):
    """The headers of a record without a value, which says that the session has ended.

    Attributes:
        since_ms: 0 = not known.
        reason: For people.
    """

    since_ms: int = 0
    connection_id: str = "0"
    reason: str = ""


_encoder: Final = msgspec.json.Encoder()
_decoder: Final = msgspec.json.Decoder(PresenceRecord)


def presence_record(topic: str, client_id: ClientId, command: SetPresence | ClearPresence) -> SinkRecord:
    """Returns the record for a command of a session."""
    key = client_id.encode()
    if isinstance(command, ClearPresence):
        headers = (
            Header(GONE_SINCE, b"%d" % command.since_ms),
            Header(GONE_CONNECTION, b"%d" % command.connection_id),
            Header(GONE_REASON, command.reason.encode()),
        )
        return SinkRecord(topic, key, None, headers=headers)
    expiry_s = command.session_expiry_interval_s
    never = expiry_s == NEVER_EXPIRES_S
    record = PresenceRecord(
        online=command.online,
        since_ms=command.since_ms,
        connection_id=str(command.connection_id),
        gateway=command.gateway or None,
        protocol_version=command.protocol_version,
        session_expiry_interval_s=None if never else expiry_s,
        expires_ms=None if command.online or never else command.since_ms + expiry_s * 1_000,
        reason=command.reason,
    )
    return SinkRecord(topic, key, _encoder.encode(record))


def decode_presence(value: bytes) -> PresenceRecord:
    """Returns the value of a record.

    Raises:
        UnreadableRecord: `presence_record` of this or another version did not write it.
    """
    try:
        return _decoder.decode(value)
    except UNDECODABLE as error:
        raise UnreadableRecord(f"not the presence of a client: {error}") from error


def gone_presence(headers: list[tuple[str, bytes | None]]) -> GonePresence:
    """Returns what a record without a value says. A header that is missing or unreadable has its default."""
    found = {name: (value or b"").decode(errors="replace") for name, value in headers}
    since, connection = found.get(GONE_SINCE, ""), found.get(GONE_CONNECTION, "")
    return GonePresence(
        since_ms=int(since) if _is_number(since) else 0,
        connection_id=connection if _is_number(connection) else "0",
        reason=found.get(GONE_REASON, ""),
    )


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= 20
