"""The phases of a connection from its socket to its end, and how it ends when a phase takes too long."""

from enum import Enum
from typing import Final, NamedTuple

from state.model import ReasonCode


class Phase(Enum):
    AWAITING_CONNECT = "awaiting CONNECT"
    QUEUED = "CONNECT was read and awaits its id and its turn"
    AUTHENTICATING = "authenticating"
    AWAITING_ACCEPT = "awaiting AcceptConnection"
    ANSWERED = "CONNACK was sent, awaiting AcceptConnection"
    CONNECTED = "connected"
    CLOSED = "closed"


BEFORE_CONNACK: Final = (Phase.QUEUED, Phase.AUTHENTICATING, Phase.AWAITING_ACCEPT)
"""CONNECT was read, and is answered by CONNACK whatever becomes of it."""
AWAITING_ACCEPT: Final = (Phase.AWAITING_ACCEPT, Phase.ANSWERED)
OPEN: Final = (Phase.ANSWERED, Phase.CONNECTED)


class CloseReason(NamedTuple):
    """Why a connection ends. text: for the engine. cause: in the metrics. reason_code: for the device, SUCCESS = none."""

    text: str
    cause: str
    reason_code: int = ReasonCode.SUCCESS


DEVICE_FAILED: Final = frozenset({"socket", "keep alive", "protocol error"})
"""Causes of an end that the device is to blame for. Whatever it had not answered may be the reason."""

OVERDUE: Final = {
    Phase.AWAITING_CONNECT: CloseReason("no CONNECT in time", "connect timeout"),
    Phase.QUEUED: CloseReason("the turn of the CONNECT did not come in time", "connect timeout", ReasonCode.SERVER_BUSY),
    Phase.AUTHENTICATING: CloseReason("the login was not verified in time", "login timeout", ReasonCode.SERVER_BUSY),
    Phase.AWAITING_ACCEPT: CloseReason("the engine did not answer in time", "accept timeout", ReasonCode.SERVER_UNAVAILABLE),
    Phase.ANSWERED: CloseReason("the engine did not answer in time", "accept timeout", ReasonCode.SERVER_BUSY),
    Phase.CONNECTED: CloseReason("keep alive", "keep alive", ReasonCode.KEEP_ALIVE_TIMEOUT),
}
