"""One send on its way, and what takes it to Kafka: the nouns of the send loop."""

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Protocol, TypeAlias

from inflight.producer.message import MessageRecord
from inflight.producer.model import Attempt, SendFailed, SendResult
from state.model import ClientId

Outcome: TypeAlias = SendResult | SendFailed
Settle: TypeAlias = Callable[[Outcome], None]


class State(Enum):
    BACKOFF = auto()
    """The client is throttled and the wait runs."""
    TURN = auto()
    """Behind an earlier send of the same client that waits."""
    READY = auto()
    """No generation takes it at the moment."""
    HANDED_OVER = auto()
    """Kafka's client has it."""
    DONE = auto()


class Generation(Protocol):
    """One producer of Kafka: one producer id. After a failure the next generation follows."""

    def hand_over(self, send: "Send") -> bool:
        """Give it the record; what becomes of it is reported to the loop. False: it cannot take it now.

        Raises SendRefused for what this record will never do.
        """

    def end(self) -> None:
        """Nothing that it has matters any more: nothing of it may be sent late."""


class SendRefused(Exception):
    """The record can never be sent; the text says why."""


@dataclass(slots=True, eq=False)
class Send:
    """One message on its way. number: the order of submission. settle: each is called once, with the outcome.

    in_doubt: a request with it was written and has had no answer. waits_in_order: ClientOrder has it.
    """

    message: MessageRecord
    deadline_ms: float
    number: int
    settle: list[Settle]
    state: State = State.TURN
    attempts: list[Attempt] = field(default_factory=list)
    started_ms: float = 0.0
    throttled: int = 0
    generation: Generation | None = None
    in_doubt: bool = False
    waits_in_order: bool = False

    @property
    def client_id(self) -> ClientId:
        return self.message.client_id
