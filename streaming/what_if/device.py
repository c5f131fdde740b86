"""Models the device of a replay: what it answers to a message, and after which time.

The log says what the device answered in reality, and when. Under other settings a message is sent at another time, or on another
connection. The rules of the model, in this order:

1. A message that the device answered on a connection is answered there after the same time, in the same way. The time counts from
   the first transmission on that connection, because TCP loses nothing while the connection lives.
2. A message that it got on a connection and did not answer there is not answered there.
3. On a connection on which it did not get the message in reality, it answers as it did on another one.
4. A message that it got in reality and never answered is never answered.
5. A message that it did not get in reality is answered after the median time of its answers. A device that answered nothing in
   the log answers nothing.

An answer comes only if the connection still exists by then. A refusal is an answer. What is sent after it counts as another
message.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median_low
from typing import NamedTuple, TypeAlias

from state.events import PubAckReceived, PubCompReceived, PubRecReceived
from state.model import MessageId, QoS
from streaming.what_if.session_run import Contact, Sent

Answer: TypeAlias = PubAckReceived | PubRecReceived | PubCompReceived


class TimedAnswer(NamedTuple):
    """An answer of the log.

    Attributes:
        after_ms: The time since the first transmission on that connection.
    """

    answer: Answer
    after_ms: int


class DeviceModel:
    """Knows what one device did in the log."""

    def __init__(self) -> None:
        self._answers: defaultdict[Contact, list[TimedAnswer]] = defaultdict(list)
        self._got: set[Contact] = set()
        self._elsewhere: dict[tuple[MessageId, int], Contact] = {}
        """By message and refusals: a contact that was answered."""
        self._got_anywhere: set[tuple[MessageId, int]] = set()
        self._usual_ms: int | None = None

    def add(self, contact: Contact, answer: Answer, after_ms: int) -> None:
        """Learns an answer of the log. Call it in the order of the log."""
        self._answers[contact].append(TimedAnswer(answer, after_ms))

    def complete(self, contacts: Iterable[Contact]) -> None:
        """Learns all transmissions of the log, when all answers are known."""
        self._got = set(contacts)
        self._got_anywhere = {(contact.message_id, contact.refusals) for contact in self._got}
        self._elsewhere = {(contact.message_id, contact.refusals): contact for contact in self._answers}
        first = [answers[0].after_ms for answers in self._answers.values()]
        self._usual_ms = median_low(first) if first else None

    def replies(self, sent: Sent) -> Sequence[TimedAnswer]:
        """Returns what the device answers to a transmission, with the ids of the log, which mean nothing to the caller."""
        contact = sent.contact
        message = (contact.message_id, contact.refusals)
        if contact in self._answers:  # rule 1
            return _fitting(self._answers[contact], sent.qos)
        if contact in self._got:  # rule 2
            return ()
        if (other := self._elsewhere.get(message)) is not None:  # rule 3
            return _fitting(self._answers[other], sent.qos)
        if message in self._got_anywhere or self._usual_ms is None:  # rules 4 and 5
            return ()
        return _handshake(sent.qos, self._usual_ms)


def _fitting(answers: Sequence[TimedAnswer], qos: int) -> Sequence[TimedAnswer]:
    """Returns the answers, or those of a whole handshake if the log has the answers to another packet."""
    wanted = type(_handshake(qos, 0)[0].answer)
    return answers if isinstance(answers[0].answer, wanted) else _handshake(qos, answers[0].after_ms)


def _handshake(qos: int, after_ms: int) -> Sequence[TimedAnswer]:
    """Returns the answers to a PUBLISH of this QoS, or to a PUBREL (0)."""
    completed = TimedAnswer(PubCompReceived(connection_id=0, packet_id=0), after_ms)
    if qos == QoS.AT_LEAST_ONCE:
        return (TimedAnswer(PubAckReceived(connection_id=0, packet_id=0), after_ms),)
    if qos == QoS.EXACTLY_ONCE:
        return (TimedAnswer(PubRecReceived(connection_id=0, packet_id=0, pubrel_sent=True), after_ms), completed)
    return (completed,)
