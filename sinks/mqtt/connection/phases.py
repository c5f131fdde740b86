"""Where a connection stands, from its socket to its end."""

from enum import Enum
from typing import Final, NamedTuple

from state.model import ReasonCode


class Phase(Enum):
    AWAITING_CONNECT = "awaiting CONNECT"
    QUEUED = "CONNECT was read, and others have their turn before"
    AUTHENTICATING = "authenticating"
    AWAITING_ACCEPT = "awaiting AcceptConnection"
    ANSWERED = "CONNACK was sent, awaiting AcceptConnection"
    CONNECTED = "connected"
    CLOSED = "closed"


BEFORE_CONNACK: Final = (Phase.QUEUED, Phase.AUTHENTICATING, Phase.AWAITING_ACCEPT)
"""CONNECT was read, and is answered by CONNACK whatever becomes of it."""
AWAITING_ACCEPT: Final = (Phase.AWAITING_ACCEPT, Phase.ANSWERED)
OPEN: Final = (Phase.ANSWERED, Phase.CONNECTED)


class Overdue(NamedTuple):
    """How a connection ends whose time is over. cause: in the metrics; reason_code: SUCCESS = nobody is told."""

    reason: str
    cause: str
    reason_code: ReasonCode


class Going(NamedTuple):
    """A connection that the gateway lets go. reason_code: for the device."""

    reason: str
    reason_code: ReasonCode


OVERDUE: Final = {
    Phase.AWAITING_CONNECT: Overdue("no CONNECT in time", "connect timeout", ReasonCode.SUCCESS),
    Phase.QUEUED: Overdue("the turn of the CONNECT did not come in time", "connect timeout", ReasonCode.SERVER_BUSY),
    Phase.AUTHENTICATING: Overdue("the login was not verified in time", "login timeout", ReasonCode.SERVER_BUSY),
    Phase.AWAITING_ACCEPT: Overdue("the engine did not answer in time", "accept timeout", ReasonCode.SERVER_UNAVAILABLE),
    Phase.ANSWERED: Overdue("the engine did not answer in time", "accept timeout", ReasonCode.SERVER_BUSY),
    Phase.CONNECTED: Overdue("keep alive", "keep alive", ReasonCode.KEEP_ALIVE_TIMEOUT),
}
LOGIN_ENDED: Final = Overdue("the login has ended", "login ended", ReasonCode.NOT_AUTHORIZED)
