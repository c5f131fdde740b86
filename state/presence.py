"""Tells backends whether the client is connected: a record of `inflight.presence` at each change (docs/guides/presence.md).

An activation writes at most one record, about its end: a client that comes and goes ten times in a micro-batch costs one. So a
reader misses nothing but connections that began and ended between two micro-batches; of those it sees the last one. The record
is a function of the session before and after the activation, so a re-executed micro-batch writes it again unchanged.
"""

from dataclasses import dataclass
from typing import NamedTuple

from state.commands import ClearPresence, Command, SetPresence
from state.connection import SessionConnection


class PresenceState(NamedTuple):
    """The part of a session of which a change is announced.

    Attributes:
        connection_id: The present connection; 0 = offline.
        newest_connection_id: The present or last connection.
        established: A session exists.
    """

    connection_id: int
    newest_connection_id: int
    established: bool


@dataclass(slots=True)
class PresenceChanges:
    """Collects what an activation learns about connections.

    Attributes:
        gateway: Of the connection that was accepted last; empty = unknown.
        protocol_version: Of the connection that ended last.
        reason: Why that connection, or the session, ended.
    """

    gateway: str = ""
    protocol_version: int = 4
    reason: str = ""

    def ended(self, connection: SessionConnection, reason: str) -> None:
        self.protocol_version, self.reason = connection.protocol_version, reason


def changed(
    before: PresenceState,
    after: PresenceState,
    changes: PresenceChanges,
    connection: SessionConnection | None,
    *,
    session_expiry_interval_s: int,
    now_ms: int,
) -> Command | None:
    """Returns the command for what the activation has changed; None = nothing.

    Args:
        connection: The present one.
        now_ms: Time of the activation.
    """
    if before == after:
        return None
    if not after.established:
        return ClearPresence(connection_id=after.newest_connection_id, since_ms=now_ms, reason=changes.reason)
    return SetPresence(
        online=connection is not None,
        since_ms=now_ms,
        connection_id=after.newest_connection_id,
        gateway="" if connection is None else changes.gateway,
        protocol_version=changes.protocol_version if connection is None else connection.protocol_version,
        session_expiry_interval_s=session_expiry_interval_s,
        reason="" if connection is not None else changes.reason,
    )
