"""How sends end: confirmed, or failed with what is known. Every send that was submitted gets one verdict, once."""

from inflight.producer.message import MessageRecord
from inflight.producer.metrics import ProducerMetrics
from inflight.producer.model import Cause, SendFailed, SendResult
from inflight.producer.send_loop.send import Outcome, Send, Settle, State


class Verdicts:
    """Sends without a verdict, and those given. topic: where the records go."""

    def __init__(self, topic: str, metrics: ProducerMetrics) -> None:
        self._topic = topic
        self._metrics = metrics
        self._pending: dict[tuple[str, str], Send] = {}

    def __len__(self) -> int:
        return len(self._pending)

    def pending(self) -> list[Send]:
        """In the order of submission."""
        return list(self._pending.values())

    def submitted(self, message: MessageRecord, deadline_ms: float, number: int, settle: Settle) -> Send | None:
        """A new send. None: one with this client and id is under way, and its verdict is for both."""
        identity = (message.client_id, message.message_id)
        if (under_way := self._pending.get(identity)) is not None:
            under_way.settle.append(settle)
            return None
        send = self._pending[identity] = Send(message, deadline_ms, number, [settle])
        return send

    def confirm(self, send: Send, partition: int, offset: int) -> None:
        self._metrics.sends.inc()
        self._give(send, SendResult(send.message.message_id, self._topic, partition, offset, tuple(send.attempts)))

    def fail(self, send: Send, reason: str, cause: Cause | None) -> None:
        """cause: of the last attempt; None = the deadline or the end of the producer."""
        self._metrics.failed(cause)
        failure = SendFailed(
            reason,
            client_id=send.client_id,
            message_id=send.message.message_id,
            attempts=send.attempts,
            # A record that Kafka's client still has may yet be sent: there is no way to take one record back.
            may_be_sent=cause is not Cause.REJECTED and (send.in_doubt or send.generation is not None),
            cause=cause,
        )
        self._give(send, failure)

    def _give(self, send: Send, outcome: Outcome) -> None:
        send.state = State.DONE
        del self._pending[send.client_id, send.message.message_id]
        for settle in send.settle:
            settle(outcome)
