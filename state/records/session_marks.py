"""Defines the marks of sessions in `inflight.subscriptions`, by which a gateway knows whether a client has a session.

Key: `MARK`, then the client id. A mark has the value of an empty list of the connection that began or resumed the session.
Without a value the session has ended, and the header `ended` names its last connection: marks of later connections stay. Each
session that can outlive its connection has a mark. A record with the key `ALL_MARKED` says so; without a value it is not known.

The header `kept` says for how many seconds from the record on the session surely lives. `NEVER_EXPIRES_S` holds until another
record comes. 0 means that the session may end with its connection, so only the session can say whether it is there. That is so
without the header too: sessions and earlier versions write none.

The header `left` says that the connection is over, and that its end is in `inflight.events` before the mark. So when `kept` has
passed, the session has expired, unless a later connection has resumed it. Rules for a claim that it has (docs/decisions/0056):

 1. A gateway claims it if the newest mark has `left`, and `kept` has passed for `CLOCKS_MS` by the brokers' time. `kept` = 0
    needs no clock: the session has ended with the connection.
 2. A CONNECT names the session that it takes for expired (`ExpiredSession`): by the connection, its end and the interval.
 3. The session ends by that claim what it would end by its timer (`has_expired`), and begins anew. It compares times of the log,
    so the claim does not become wrong because the engine is behind.
 4. It refuses the claim if it has begun behind that connection, has not read the end of it, or has a longer interval.
 5. A session that is resumed without a claim marks itself: bridges mark nothing.

The header `settled` says that no will of this connection or of an earlier one can get into the log any more. Without a mark none
can, either: each connection with a will has one. Without the header it is not known, so records of a session may leave it out.

A key of its own keeps marks and lists apart: compaction leaves the last record of each.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from state.commands import EndSessionMark, MarkSession
from state.events import ExpiredSession
from state.model import NEVER_EXPIRES_S, ClientId
from state.records.record import Header, SinkRecord
from state.records.subscriptions import ENDED, SubscriptionList, encode_subscriptions

MARK: Final = b"\x00session\x00"
"""MQTT forbids U+0000 in a client id [MQTT-1.5.4-2]. Earlier versions read a client without subscriptions."""
ALL_MARKED: Final = b"\x00all-marked"
KEPT: Final = "kept"
"""Header of a mark: seconds as text."""
LEFT: Final = "left"
"""Header of a mark, with any value."""
SETTLED: Final = "settled"
"""Header of a mark, with any value."""
CLOCKS_MS: Final = 500
"""Brokers' clocks, and what a gateway knows of them, may differ by this much."""
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


def left_headers(kept_s: int) -> list[tuple[str, bytes]]:
    """Returns the headers of the mark of a connection that is over."""
    return [kept_header(kept_s), (LEFT, b"1")]


def settled_header() -> tuple[str, bytes]:
    """Returns the header `settled`."""
    return SETTLED, b"1"


class SessionMark(NamedTuple):
    """Says what the newest mark of a client tells of its session.

    Attributes:
        connection_id: The connection of the mark.
        kept_until_ms: Time until which the session surely lives, in milliseconds since 1970; 0 = nothing is said.
        left_s: The interval that has begun with the end of the connection; None = nothing is said.
        wills_settled: No will of this connection or of an earlier one can get into the log any more.
    """

    connection_id: int
    kept_until_ms: int = 0
    left_s: int | None = None
    wills_settled: bool = False

    def expired(self, now_ms: int) -> ExpiredSession | None:
        """Returns the session if it has expired, as far as marks say (rule 1).

        Args:
            now_ms: Milliseconds since 1970, by the brokers.
        """
        left_s = self.left_s
        if left_s is None or (left_s and now_ms < self.kept_until_ms + CLOCKS_MS):
            return None
        left_ms = self.kept_until_ms - 1_000 * left_s
        return ExpiredSession(connection_id=self.connection_id, left_ms=left_ms, interval_s=left_s)


def has_expired(
    claimed: ExpiredSession, *, started_by: int, newest_connection_id: int, interval_s: int, is_connected: bool, now_ms: int
) -> bool:
    """Returns True if a session that is there has expired as a gateway claims (rules 3 and 4).

    A connection behind the named one has no CONNACK: it would have a mark. So the interval counts that the device knows of.

    Args:
        started_by: The connection that began the session.
        newest_connection_id: Its newest connection before the claim.
        interval_s: Its session expiry interval.
        is_connected: That connection was not over.
        now_ms: Time of the micro-batch.
    """
    is_newest = claimed.connection_id == newest_connection_id
    if not started_by <= claimed.connection_id <= newest_connection_id or (is_newest and is_connected):
        return False
    kept_s = interval_s if is_newest else claimed.interval_s
    return 0 < kept_s < NEVER_EXPIRES_S and claimed.left_ms + 1_000 * kept_s <= max(claimed.claimed_ms, now_ms)


def read_mark(connection_id: int, headers: Sequence[tuple[str, bytes | None]], timestamp_ms: int) -> SessionMark:
    """Returns what a mark says.

    Args:
        connection_id: In its value.
        timestamp_ms: Time of the record.
    """
    is_settled = any(name == SETTLED for name, _ in headers)
    for name, value in headers:
        if name == KEPT and value is not None and value.isdigit() and len(value) <= len(str(NEVER_EXPIRES_S)):
            kept_s = int(value)
            if kept_s >= NEVER_EXPIRES_S:
                return SessionMark(connection_id, FOREVER_MS, None, is_settled)
            has_left = any(other == LEFT for other, _ in headers)
            # A topic that has its times from producers may have any of them, also none (-1).
            kept_until_ms = max(1, timestamp_ms + 1_000 * kept_s)
            return SessionMark(connection_id, kept_until_ms, kept_s if has_left else None, is_settled)
    return SessionMark(connection_id, wills_settled=is_settled)


def mark_record(topic: str, client_id: ClientId, command: MarkSession | EndSessionMark) -> SinkRecord:
    """Returns the record for a command of a session."""
    if isinstance(command, EndSessionMark):
        if command.has_will:
            headers = tuple(Header(*header) for header in left_headers(0))
            return SinkRecord(topic, mark_key(client_id), encode_mark(command.connection_id), headers=headers)
        return SinkRecord(topic, mark_key(client_id), None, headers=(Header(ENDED, b"%d" % command.connection_id),))
    return SinkRecord(topic, mark_key(client_id), encode_mark(command.connection_id))
