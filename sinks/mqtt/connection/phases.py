"""The phases of a connection from its socket to its end, and how it ends when a phase takes too long."""

from dataclasses import dataclass
from enum import Enum
from typing import Final, NamedTuple

from state.model import ReasonCode

_KEEP_ALIVE_MS: Final = 1_500
"""Factor from the Keep Alive in seconds to one and a half times it in milliseconds [MQTT-3.1.2-22]."""


class Phase(Enum):
    AWAITING_CONNECT = "awaiting CONNECT"
    QUEUED = "CONNECT was read and awaits its id and its turn"
    AUTHENTICATING = "authenticating"
    LOOKING_UP = "awaiting whether there is a session"
    AWAITING_ACCEPT = "awaiting AcceptConnection"
    ANSWERED = "CONNACK was sent, awaiting AcceptConnection"
    CONNECTED = "connected"
    CLOSED = "closed"


BEFORE_CONNACK: Final = (Phase.QUEUED, Phase.AUTHENTICATING, Phase.LOOKING_UP, Phase.AWAITING_ACCEPT)
"""CONNECT was read, and is answered by CONNACK whatever becomes of it."""
AWAITING_ACCEPT: Final = (Phase.AWAITING_ACCEPT, Phase.ANSWERED)
OPEN: Final = (Phase.ANSWERED, Phase.CONNECTED)


class CloseReason(NamedTuple):
    """The reason why a connection ends.

    Attributes:
        text: For the engine.
        cause: For the metrics.
        reason_code: For the device; SUCCESS = none.
    """

    text: str
    cause: str
    reason_code: int = ReasonCode.SUCCESS


VIOLATION: Final = "protocol error"
DEVICE_FAILED: Final = frozenset({"socket", "keep alive", VIOLATION})
"""Causes of an end that the device is to blame for. Whatever it had not answered may be the reason."""

OVERDUE: Final = {
    Phase.AWAITING_CONNECT: CloseReason("no CONNECT in time", "connect timeout"),
    Phase.QUEUED: CloseReason("the turn of the CONNECT did not come in time", "connect timeout", ReasonCode.SERVER_BUSY),
    Phase.AUTHENTICATING: CloseReason("the login was not verified in time", "login timeout", ReasonCode.SERVER_BUSY),
    Phase.LOOKING_UP: CloseReason("Kafka did not answer in time", "accept timeout", ReasonCode.SERVER_UNAVAILABLE),
    Phase.AWAITING_ACCEPT: CloseReason("the engine did not answer in time", "accept timeout", ReasonCode.SERVER_UNAVAILABLE),
    Phase.ANSWERED: CloseReason("the engine did not answer in time", "accept timeout", ReasonCode.SERVER_BUSY),
    Phase.CONNECTED: CloseReason("keep alive", "keep alive", ReasonCode.KEEP_ALIVE_TIMEOUT),
}
_LOGIN_ENDED: Final = CloseReason("the login has ended", "login ended", ReasonCode.NOT_AUTHORIZED)
_STALLED: Final = CloseReason("the client does not read", "does not read", ReasonCode.KEEP_ALIVE_TIMEOUT)


@dataclass(slots=True, eq=False)
class Deadlines:
    """The deadlines of an accepted connection. Times are milliseconds of one monotonic clock.

    Attributes:
        taken_ms: when the device last took bytes of more than the buffers hold; None = the buffers hold all that was written.
        login_ends_ms: None = the login holds as long as the connection.
    """

    _stalled_write_ms: int
    _keep_alive_ms: int = 0
    last_received_ms: int = 0
    taken_ms: int | None = None
    login_ends_ms: int | None = None

    def begin(self, asked_s: int, max_s: int, now_ms: int) -> None:
        """Starts the keep alive of a connection that is accepted.

        Args:
            asked_s: The Keep Alive of CONNECT, in seconds.
            max_s: The longest one that is allowed, in seconds.
        """
        self._keep_alive_ms = limited_keep_alive_s(asked_s, max_s) * _KEEP_ALIVE_MS
        self._stalled_write_ms = max(self._stalled_write_ms, asked_s * _KEEP_ALIVE_MS)
        self.last_received_ms = now_ms

    def next_ms(self, paused_until_ms: int | None) -> int:
        """Returns the first one, or the end of a pause if that is earlier."""
        next_ms = self.last_received_ms + self._keep_alive_ms
        if paused_until_ms is not None:
            next_ms = min(next_ms, paused_until_ms)
        if self.login_ends_ms is not None:
            next_ms = min(next_ms, self.login_ends_ms)
        if self.taken_ms is not None:
            next_ms = min(next_ms, self.taken_ms + self._stalled_write_ms)
        return next_ms

    def overdue(self, now_ms: int) -> CloseReason | None:
        if self.login_ends_ms is not None and now_ms >= self.login_ends_ms:
            return _LOGIN_ENDED
        if self.taken_ms is not None and now_ms >= self.taken_ms + self._stalled_write_ms:
            return _STALLED
        return OVERDUE[Phase.CONNECTED] if now_ms >= self.last_received_ms + self._keep_alive_ms else None  # [MQTT-3.1.2-22]


def limited_keep_alive_s(asked_s: int, max_s: int) -> int:
    """Returns the keep alive that holds, in seconds.

    Args:
        asked_s: 0 = none was wanted.
    """
    return min(asked_s, max_s) if asked_s else max_s
