"""Defines the marks of sessions in `inflight.subscriptions`, by which a gateway knows whether a client has a session.

Key: `MARK`, then the client id. A mark has the value of an empty list of the connection that began or resumed the session.
Without a value the session has ended, and the header `ended` names its last connection: marks of later connections stay. Each
session that can outlive its connection has a mark. A record with the key `ALL_MARKED` says so; without a value it is not known.

The header `kept` says for how many seconds from the record on the session surely lives. `NEVER_EXPIRES_S` holds until another
record comes. 0 means that the session may end with its connection, so only the session can say whether it is there. That is so
without the header too: sessions and earlier versions write none.

A key of its own keeps marks and lists apart: compaction leaves the last record of each.
"""

from collections.abc import Sequence
from typing import Final

from state.commands import EndSessionMark, MarkSession
from state.model import NEVER_EXPIRES_S, ClientId
from state.records.record import Header, SinkRecord
from state.records.subscriptions import ENDED, SubscriptionList, encode_subscriptions

MARK: Final = b"\x00session\x00"
"""MQTT forbids U+0000 in a client id [MQTT-1.5.4-2]. Earlier versions read a client without subscriptions."""
ALL_MARKED: Final = b"\x00all-marked"
KEPT: Final = "kept"
"""Header of a mark: seconds as text."""
FOREVER_MS: Final = (1 << 64) - 1
"""Later than any time."""


def mark_key(client_id: ClientId) -> bytes:
    return MARK + client_id.encode()


def encode_mark(connection_id: int) -> bytes:
    """Returns the value of a mark."""
    return encode_subscriptions(SubscriptionList(connection_id=connection_id, version=0))


def kept_header(kept_s: int) -> tuple[str, bytes]:
    """Returns the header `kept`."""
    return KEPT, b"%d" % kept_s


def kept_until_ms(headers: Sequence[tuple[str, bytes | None]], timestamp_ms: int) -> int:
    """Returns the time until which the session of a mark surely lives, in milliseconds since 1970; 0 = nothing is said.

    Args:
        timestamp_ms: Time of the record.
    """
    for name, value in headers:
        if name == KEPT and value is not None and value.isdigit() and len(value) <= len(str(NEVER_EXPIRES_S)):
            kept_s = int(value)
            # A topic that has its times from producers may have any of them, also none (-1).
            return FOREVER_MS if kept_s >= NEVER_EXPIRES_S else max(1, timestamp_ms + 1_000 * kept_s)
    return 0


def mark_record(topic: str, client_id: ClientId, command: MarkSession | EndSessionMark) -> SinkRecord:
    """Returns the record for a command of a session."""
    if isinstance(command, EndSessionMark):
        return SinkRecord(topic, mark_key(client_id), None, headers=(Header(ENDED, b"%d" % command.connection_id),))
    return SinkRecord(topic, mark_key(client_id), encode_mark(command.connection_id))
