"""Makes and stores the checkpoint's row of a client: columns that people query, and the session or its quarantine as a blob."""

from typing import Final, NamedTuple

from pyspark.sql.streaming.state import GroupState

from state.dead_letters.quarantine import Quarantine, decode_quarantine, encode_quarantine, error_text
from state.errors import UnreadableRecord
from state.session import Session
from state.session_codec import encode_session

STATE_ROW_VERSION: Final = 1
QUARANTINED_ROW_VERSION: Final = -1
"""The version of a quarantined client's row, whose blob is an encoded quarantine."""
STATE_SCHEMA: Final = (
    "version int, connected boolean, inflight int, queued int, queued_bytes long, oldest_unacked_ms long, "
    "next_deadline_ms long, blob binary"
)
"""The schema of the row, for Spark. Fixed for the life of a checkpoint."""

_LAST_MS: Final = 1 << 62
"""Stands for later deadlines, which Spark's `long` may not hold. A session that is called early is called again."""


class StateRow(NamedTuple):
    """A row with the columns of STATE_SCHEMA."""

    version: int
    connected: bool
    inflight: int
    queued: int
    queued_bytes: int
    oldest_unacked_ms: int | None
    next_deadline_ms: int | None
    blob: bytes


def check_version(version: int | None) -> None:
    """Raises UnreadableRecord for a row of another version."""
    if version != STATE_ROW_VERSION:
        raise UnreadableRecord(
            f"the state row has version {version}, this Inflight reads {STATE_ROW_VERSION}: "
            "start the version that wrote the checkpoint, or a newer one"
        )


def stored_quarantine(state: GroupState) -> Quarantine | None:
    """Returns the stored quarantine of a client; None if it is not quarantined."""
    if not state.exists or state.get[0] != QUARANTINED_ROW_VERSION:
        return None
    return decode_quarantine(bytes(state.get[-1] or b""))


def stored_queue_bytes(state: GroupState) -> int:
    """Returns the `queued_bytes` of the stored row; 0 = no row is stored."""
    return (state.get[4] or 0) if state.exists else 0


def new_quarantine(error: Exception, state: GroupState, now_ms: int) -> Quarantine:
    """Makes the quarantine of a client whose session has just failed. A session that was never stored has an empty blob."""
    version, *_, blob = state.get if state.exists else (0, None)
    return Quarantine(row_version=version or 0, blob=bytes(blob or b""), since_ms=now_ms, error=error_text(error))


def row_of(session: Session) -> StateRow:
    summary, deadline_ms = session.summary(), session.next_deadline_ms()
    return StateRow(
        version=STATE_ROW_VERSION,
        connected=summary.connected,
        inflight=summary.inflight,
        queued=summary.queued,
        queued_bytes=summary.queued_bytes,
        oldest_unacked_ms=summary.oldest_unacked_ms,
        next_deadline_ms=None if deadline_ms is None else min(deadline_ms, _LAST_MS),
        blob=encode_session(session),
    )


def quarantined_row(held: Quarantine, state: GroupState) -> StateRow:
    """Makes the row of a quarantined client: no timer, no connection, and the counts of its last stored session."""
    _, _, inflight, queued, queued_bytes, *_ = state.get if state.exists else (0, False, 0, 0, 0)
    return StateRow(
        version=QUARANTINED_ROW_VERSION,
        connected=False,
        inflight=inflight,
        queued=queued,
        queued_bytes=queued_bytes,
        oldest_unacked_ms=None,
        next_deadline_ms=None,
        blob=encode_quarantine(held),
    )


def store(row: StateRow | None, state: GroupState) -> None:
    """Stores the row of a client, or removes what is stored: None."""
    if row is None:
        state.remove()
    else:
        state.update(tuple(row))
