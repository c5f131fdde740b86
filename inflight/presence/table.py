"""Keeps the present state of all clients, from records of `inflight.presence`."""

from collections.abc import Sequence
from typing import Final

from inflight.presence.model import ClientPresence, PresenceStatus
from state.errors import UNDECODABLE, UnreadableRecord
from state.model import ClientId
from state.records.presence import decode_presence, gone_presence

_UNKNOWN: Final = "0"
_STAGES: Final = tuple(PresenceStatus)


class PresenceTable:
    """Holds each client that has a session, by its highest record.

    Attributes:
        clients: By client id. Do not change it.
        unreadable: Counts records that could not be read. They change nothing.
    """

    def __init__(self) -> None:
        self.clients: dict[ClientId, ClientPresence] = {}
        self.unreadable = 0

    def apply(self, key: bytes | None, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> ClientPresence | None:
        """Reads the next record. Returns the change; None if there is none: a copy, an older record, or an unreadable one."""
        try:
            client_id = (key or b"").decode()
            new = read_presence(client_id, value, headers)
        except (UnreadableRecord, *UNDECODABLE):
            self.unreadable += 1
            return None
        known = self.clients.get(client_id)
        if known == new or (
            known is not None and _UNKNOWN not in (new.connection_id, known.connection_id) and _is_lower(new, known)
        ):
            return None
        if new.status is not PresenceStatus.GONE:
            self.clients[client_id] = new
        elif self.clients.pop(client_id, None) is None:
            return None  # a copy, or a client that came and went while nobody read
        return new


def read_presence(client_id: ClientId, value: bytes | None, headers: Sequence[tuple[str, bytes | None]]) -> ClientPresence:
    """Returns what a record says of its client. Raises UnreadableRecord, or one of UNDECODABLE."""
    if value is None:
        gone = gone_presence(list(headers))
        return ClientPresence(
            client_id=client_id,
            status=PresenceStatus.GONE,
            since_ms=gone.since_ms,
            connection_id=gone.connection_id,
            reason=gone.reason,
        )
    record = decode_presence(value)
    return ClientPresence(
        client_id=client_id,
        status=PresenceStatus.ONLINE if record.online else PresenceStatus.OFFLINE,
        since_ms=record.since_ms,
        connection_id=record.connection_id,
        gateway=record.gateway,
        protocol_version=record.protocol_version,
        session_expiry_interval_s=record.session_expiry_interval_s,
        expires_ms=record.expires_ms,
        reason=record.reason,
    )


def _is_lower(new: ClientPresence, known: ClientPresence) -> bool:
    return _order(new) < _order(known)


def _order(presence: ClientPresence) -> tuple[int, int]:
    number = presence.connection_id
    return int(number) if number.isascii() and number.isdigit() else 0, _STAGES.index(presence.status)
