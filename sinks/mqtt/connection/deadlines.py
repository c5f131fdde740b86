"""How long one connection may take: for CONNECT, for the engine's answer, between packets, and to read what it is sent."""

from typing import Final

from sinks.mqtt.settings import GatewaySettings

_KEEP_ALIVE_MS: Final = 1_500
"""One and a half times the Keep Alive, which is in seconds [MQTT-3.1.2-22]."""


class Deadlines:
    """Times are milliseconds of one monotonic clock. last_received_ms: of the device. handshake_ms: until when the present step
    of the handshake may take; None = there is none. blocked_since_ms: since when the device takes nothing; None = it does.
    login_ends_ms: when its login does not hold any more; None = it always holds."""

    __slots__ = (
        "_accept_timeout_ms",
        "_keep_alive_ms",
        "_stalled_write_timeout_ms",
        "blocked_since_ms",
        "handshake_ms",
        "last_received_ms",
        "login_ends_ms",
    )

    def __init__(self, settings: GatewaySettings, now_ms: int) -> None:
        self.handshake_ms: int | None = now_ms + settings.connect_timeout_ms
        self.last_received_ms = now_ms
        self.blocked_since_ms: int | None = None
        self.login_ends_ms: int | None = None
        self._accept_timeout_ms = settings.accept_timeout_ms
        self._stalled_write_timeout_ms = settings.stalled_write_timeout_ms
        self._keep_alive_ms = 0

    def connect_received(self, now_ms: int) -> None:
        """Now the engine has to answer."""
        self.handshake_ms = now_ms + self._accept_timeout_ms

    def accepted(self, keep_alive_s: int, now_ms: int) -> None:
        """keep_alive_s: 0 = the device may be silent for ever."""
        self.handshake_ms = None
        self._keep_alive_ms = keep_alive_s * _KEEP_ALIVE_MS
        self.last_received_ms = now_ms

    def connected_ms(self) -> int | None:
        """The next one of an accepted connection; None = there is none."""
        alive = self.last_received_ms + self._keep_alive_ms if self._keep_alive_ms else None
        if self.login_ends_ms is not None:
            alive = self.login_ends_ms if alive is None else min(alive, self.login_ends_ms)
        if self.blocked_since_ms is None:
            return alive
        stalled = self.blocked_since_ms + (self._keep_alive_ms or self._stalled_write_timeout_ms)
        return stalled if alive is None else min(alive, stalled)
