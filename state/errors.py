"""What can go wrong in the session, as data. One root; whose fault it was is the class."""

from typing import Final

from state.model import ReasonCode

UNDECODABLE: Final = (ValueError, RecursionError)
"""What msgspec raises for bytes that somebody else wrote: also for texts that are not UTF-8, and for what is nested too deep."""


class InflightError(Exception):
    """Root of every error that Inflight raises on purpose."""


class ProtocolViolation(InflightError):
    """The peer did something that MQTT forbids. Costs the peer its connection, nothing else.

    reason_code: what a server DISCONNECT (MQTT 5) says.
    """

    def __init__(self, reason: str, *, reason_code: ReasonCode = ReasonCode.PROTOCOL_ERROR) -> None:
        super().__init__(reason)
        self.reason = reason
        self.reason_code = reason_code


class SessionMisuse(InflightError):
    """We called the session in a way its contract forbids; a bug of ours, never of a peer."""


class UnreadableRecord(InflightError):
    """Bytes that are not a record of ours: a foreign or damaged record in a topic, or a state written by a newer version."""


class NewerRecord(UnreadableRecord):
    """A record that says that a newer version of Inflight has written it (state/records/record.py)."""
