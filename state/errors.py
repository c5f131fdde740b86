"""Defines the errors as data. They have one root; the class says whether the peer or Inflight caused them."""

from typing import Final

from state.model import ReasonCode

UNDECODABLE: Final = (ValueError, RecursionError)
"""Raised by msgspec for foreign bytes. Texts that are not UTF-8 and values that are nested too deep are included."""


class InflightError(Exception):
    """The root of every error that Inflight raises on purpose."""


class ProtocolViolation(InflightError):
    """The peer did something that MQTT forbids. Its connection is closed; nothing else is affected.

    Attributes:
        reason_code: Sent in the server's DISCONNECT (MQTT 5).
    """

    def __init__(self, reason: str, *, reason_code: ReasonCode = ReasonCode.PROTOCOL_ERROR) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reason_code = reason_code


class SessionMisuse(InflightError):
    """The caller broke the contract of the session. This is a bug in Inflight, never caused by a peer."""


class UnreadableRecord(InflightError):
    """Bytes that are no valid record: a foreign or damaged record in a topic, or a state written by a newer version."""


class NewerRecord(UnreadableRecord):
    """A record that was written by a newer version of Inflight and says so (state/records/record.py)."""
