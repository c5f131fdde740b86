"""Attempts, results and errors of sends."""

from collections.abc import Sequence
from concurrent.futures import Future
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
    False: it is certainly not in the log. cause: of the last attempt; None = the deadline came first, and the text has the last
    cause that is known. client_id: empty for a
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
        last = next((attempt.error for attempt in reversed(self.attempts) if attempt.error), None)
        if last is not None and last not in reason:
            reason = f"{reason}; the last cause: {last}"
        tries = "".join(f"\n  attempt {number}: {attempt}" for number, attempt in enumerate(self.attempts, 1))
        if cause is Cause.REJECTED:
            advice = "It is not in the log; trying again without a change will fail again."
        elif may_be_sent:
            advice = f"It may be in the log: send it again with the same message_id, and it is delivered once, {_REMEMBERED}."
        else:
            advice = "It is not in the log: send it again."
        super().__init__(f"{named(client_id, message_id)} was not sent: {reason}.{tries}\n{advice}")


class SendFuture(Future[SendResult]):
    """The outcome of a send. It ends in any case, with a SendResult or a SendFailed."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def result(self, timeout: float | None = None) -> SendResult:
        """Waits for the outcome. timeout: in seconds; None = as long as it takes. Raises TimeoutError: it may still come."""
        try:
            return super().result(timeout)
        except TimeoutError:
            raise self._late(timeout) from None

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Waits for the outcome, and returns its error, if it has one. As `result` otherwise."""
        try:
            return super().exception(timeout)
        except TimeoutError:
            raise self._late(timeout) from None

    def _late(self, timeout: float | None) -> TimeoutError:
        return TimeoutError(f"{self._what} is neither confirmed nor refused after {timeout or 0:g} s: it is still being sent")


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


def named(client_id: ClientId, message_id: MessageId) -> str:
    """Returns what an error calls a message.

    Args:
        client_id: Empty for a publication.
    """
    return f"message {message_id!r} for client {client_id!r}" if client_id else f"publication {message_id!r}"


def too_many_requests(reason: str) -> str:
    """Returns the error of an attempt whose client is throttled.

    Args:
        reason: The reason in the record of `inflight.throttle`; may be empty.
    """
    return f"{TOO_MANY_REQUESTS} TOO_MANY_REQUESTS" + (f": {reason}" if reason else "")
