"""How long one connection may take: for CONNECT, for the engine's answer, between packets, and to read what it is sent."""

from typing import Final

from sinks.mqtt.connection.handshake import limited_keep_alive_s
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
        "_max_keep_alive_s",
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
        self._max_keep_alive_s = settings.device_limits.max_keep_alive_s
        self._keep_alive_ms = 0

    def connect_received(self, now_ms: int) -> None:
        """Now the engine has to answer."""
        self.handshake_ms = now_ms + self._accept_timeout_ms

    def accepted(self, keep_alive_s: int, now_ms: int) -> None:
        """keep_alive_s: that the device has asked for, 0 = none."""
        self.handshake_ms = None
        self._keep_alive_ms = limited_keep_alive_s(keep_alive_s, self._max_keep_alive_s) * _KEEP_ALIVE_MS
        self._stalled_write_timeout_ms = keep_alive_s * _KEEP_ALIVE_MS or self._stalled_write_timeout_ms
        self.last_received_ms = now_ms

    def connected_ms(self, paused_until_ms: int | None = None) -> int:
        """The next one of an accepted connection. paused_until_ms: when to read from the device again; None = that is done."""
        next_ms = self.last_received_ms + self._keep_alive_ms
        if paused_until_ms is not None:
            next_ms = min(next_ms, paused_until_ms)
        if self.login_ends_ms is not None:
            next_ms = min(next_ms, self.login_ends_ms)
        if self.blocked_since_ms is not None:
            next_ms = min(next_ms, self.blocked_since_ms + self._stalled_write_timeout_ms)
        return next_ms
