"""Defines what a backend is told about one client."""

from enum import StrEnum
from typing import Final

import msgspec

from state.model import ClientId

_PROTOCOLS: Final = {3: "MQTT 3.1", 4: "MQTT 3.1.1", 5: "MQTT 5"}


class PresenceStatus(StrEnum):
    """ONLINE: connected. OFFLINE: away, and its session waits for it. GONE: it has no session any more."""

    ONLINE = "online"
    OFFLINE = "offline"
    GONE = "gone"


class ClientPresence(msgspec.Struct, frozen=True, kw_only=True):
    """Describes one client. Times are milliseconds since 1970.

    Attributes:
        since_ms: When the session read of the connection, or of its end; 0 = not known.
        connection_id: The present connection, or the last one. Later connections have larger numbers; "0" = not known.
        gateway: The gateway or bridge that has the connection; None = not online, or not known.
        protocol_version: 3 = MQTT 3.1, 4 = MQTT 3.1.1, 5 = MQTT 5; None = gone.
        session_expiry_interval_s: How long the session outlives the connection; None = it never expires, or is gone.
        expires_ms: When the session ends unless the client returns; None = online, gone, or never.
        reason: Why the connection or the session ended, for people; empty = online.
    """

    client_id: ClientId
    status: PresenceStatus
    since_ms: int = 0
    connection_id: str = "0"
    gateway: str | None = None
    protocol_version: int | None = None
    session_expiry_interval_s: int | None = None
    expires_ms: int | None = None
    reason: str = ""

    @property
    def protocol(self) -> str:
        """The protocol for people; empty = gone."""
        return "" if self.protocol_version is None else _PROTOCOLS.get(self.protocol_version, f"MQTT {self.protocol_version}")

    @property
    def is_online(self) -> bool:
        return self.status is PresenceStatus.ONLINE
