"""One send on its way, and what carries it: the nouns of the send loop."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol, TypeAlias

from inflight.producer.message import OutgoingMessage
from inflight.producer.model import Attempt, SendFailed, SendResult
from state.model import ClientId

Outcome: TypeAlias = SendResult | SendFailed


class State(Enum):
    BACKOFF = auto()
    TURN = auto()
    READY = auto()
    CARRIED = auto()
    DONE = auto()


class Carrier(Protocol):
    """Takes records to Kafka under one producer session."""

    def carry(self, send: "Send") -> bool:
        """Hand the record over; what becomes of it is reported to the loop. False: cannot take it now.

        Raises SendRefused for what this record will never do.
        """

    def release(self) -> None:
        """Nothing that it carries matters any more: end the session, so that nothing is sent late."""


class SendRefused(Exception):
    """The record can never be sent; the text says why."""


@dataclass(slots=True, eq=False)
class Send:
    """One message on its way. settle: called once, with the outcome."""

    message: OutgoingMessage
    deadline_ms: float
    settle: Callable[[Outcome], None]
    order: int = 0
    state: State = State.TURN
    attempts: list[Attempt] = field(default_factory=list)
    started_ms: float = 0.0
    throttled: int = 0
    carrier: Carrier | None = None
    in_doubt: bool = False  # on the wire and unanswered at least once
    in_lane: bool = False
    followers: list[Callable[[Outcome], None]] = field(default_factory=list)

    @property
    def client_id(self) -> ClientId:
        return self.message.client_id
