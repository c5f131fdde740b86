"""Attempts, results and errors of sends."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from state.errors import InflightError
from state.model import ClientId, MessageId
from state.records.throttle import TOO_MANY_REQUESTS

_REMEMBERED: Final = "if a client has not been sent deduplication_window (100) other messages since"


class Cause(StrEnum):
    """The reason why an attempt did not succeed. Only after THROTTLED the next one waits; after REJECTED there is none."""

    TIME_OUT = "time_out"
    NETWORK = "network"
    BROKER = "broker"
    THROTTLED = "throttled"
    REJECTED = "rejected"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of a send. started_ms: Unix time. duration_ms: until the answer or the failure. error: None = confirmed by
    Kafka.

    wait_ms: from `started_ms` until the next attempt was due; 0 = at once, which is always so but after THROTTLED.
    """

    started_ms: int
    duration_ms: int
    cause: Cause | None = None
    error: str | None = None
    wait_ms: int = 0

    def __str__(self) -> str:
        text = f"{self.error or 'confirmed'} after {self.duration_ms / 1000:.2f} s"
        return f"{text}, next try {self.wait_ms / 1000:.2f} s after its start" if self.wait_ms else text


@dataclass(frozen=True, slots=True)
class SendResult:
    """The message is in Kafka, on all in-sync replicas, once. attempts: all of them; the last one succeeded.

    offset: negative = unknown (docs/guides/producer.md, One record per message).
    """

    message_id: MessageId
    topic: str
    partition: int
    offset: int
    attempts: tuple[Attempt, ...]


class InvalidMessage(InflightError, ValueError):
    """The message can never be sent. The text says which argument is wrong and what is allowed. Nothing was sent."""


class SendFailed(InflightError):
    """The message was not confirmed, and the producer does not try any more.

    attempts: every one, with its time and error. may_be_sent: Kafka's client had the record and no answer for it, so it may be in
    the log, now or a little later. Sending again with the same `message_id` is safe for as long as the engine
    remembers the id: a client's session knows the last 100 that it has taken (`session.deduplication_window`), until it ends.
    False: it is certainly not in the log. cause: of the last attempt; None = the deadline came first. client_id: empty for a
    publication.
    """

    def __init__(
        self,
        reason: str,
        *,
        client_id: ClientId,
        message_id: MessageId,
        attempts: Sequence[Attempt] = (),
        may_be_sent: bool = False,
        cause: Cause | None = None,
    ) -> None:
        self.client_id = client_id
        self.message_id = message_id
        self.attempts = tuple(attempts)
        self.may_be_sent = may_be_sent
        self.cause = cause
        tries = "".join(f"\n  attempt {number}: {attempt}" for number, attempt in enumerate(self.attempts, 1))
        if cause is Cause.REJECTED:
            advice = "It is not in the log; trying again without a change will fail again."
        elif may_be_sent:
            advice = f"It may be in the log: send it again with the same message_id, and it is delivered once, {_REMEMBERED}."
        else:
            advice = "It is not in the log: send it again."
        what = f"message {message_id!r} for client {client_id!r}" if client_id else f"publication {message_id!r}"
        super().__init__(f"{what} was not sent: {reason}.{tries}\n{advice}")


class TransactionFailed(InflightError):
    """The transaction did not commit. The futures of its sends carry it too.

    may_be_committed: the answer to the commit is missing. Run the transaction again with the same message ids: whatever became of
    the first one, each message is delivered once, as far as the engine remembers ids (see SendFailed). False: nothing of it is
    or will be delivered.
    """

    def __init__(self, reason: str, *, may_be_committed: bool = False) -> None:
        self.may_be_committed = may_be_committed
        advice = (
            "It may have been committed: run it again with the same message ids, and each message is delivered once, "
            f"{_REMEMBERED}."
            if may_be_committed
            else "Nothing of it will be delivered: run it again."
        )
        super().__init__(f"{reason}. {advice}")


class SomeSendsFailed(InflightError):
    """Some messages of `send_many` were not sent. outcomes: SendResult, SendFailed or InvalidMessage of each, in order."""

    def __init__(self, outcomes: Sequence[SendResult | SendFailed | InvalidMessage]) -> None:
        self.outcomes = tuple(outcomes)
        failures = [outcome for outcome in outcomes if not isinstance(outcome, SendResult)]
        super().__init__(
            f"{len(failures)} of {len(outcomes)} messages were not sent; `outcomes` has each. The first: {failures[0]}"
        )


def too_many_requests(reason: str) -> str:
    """Returns the error of an attempt whose client is throttled.

    Args:
        reason: The reason in the record of `inflight.throttle`; may be empty.
    """
    return f"{TOO_MANY_REQUESTS} TOO_MANY_REQUESTS" + (f": {reason}" if reason else "")
