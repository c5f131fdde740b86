"""Keeps the messages that wait aside for their `deliver-at` (docs/guides/scheduling.md).

1. A message that is not due waits here, with its id remembered, and takes no part in the queue. Later messages overtake it. No
   gateway can have it: the fast path leaves messages with `deliver-at` to the session.
2. When it is due, it is admitted as a new message would be (state/outbound/admission.py). Only then do subscriptions lower its
   QoS, a policy's time to live begin, and its collapse key replace what waits.
3. What waits here has the limits of the queue for itself: `max_mqueue_len` and `max_mqueue_bytes`. One more is refused, whatever
   `overflow` says, because a message for tomorrow must not end another one.
4. A message replaces one with the same collapse key that waits here.
5. The end of a session ends what waits here. The queue of a client without a session ends without it: a message that waits for
   its time does not wait for the client.
"""

from bisect import insort
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from state.model import Message, MessageId
from state.records.messages import message_bytes
from state.records.scheduling import collapse_key, deliver_at_ms


@dataclass(frozen=True, slots=True, kw_only=True)
class ScheduledMessage:
    """A message that waits.

    Attributes:
        due_ms: Its `deliver-at`.
    """

    message: Message
    due_ms: int


class ScheduledMessages:
    """Messages in the order of their times, and equal times in the order of acceptance.

    Attributes:
        waiting: Only the methods change it. That it is empty is asked several times in each activation.
        size_bytes: What they cost while they are stored.
    """

    __slots__ = ("size_bytes", "waiting")

    def __init__(self) -> None:
        self.waiting: list[ScheduledMessage] = []
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def __iter__(self) -> Iterator[Message]:
        return (waiting.message for waiting in self.waiting)

    def add(self, message: Message) -> None:
        """Adds a message with `deliver-at`."""
        due_ms = deliver_at_ms(message)
        assert due_ms is not None, "only a message with deliver-at waits for it"
        insort(self.waiting, ScheduledMessage(message=message, due_ms=due_ms), key=_due_ms)
        self.size_bytes += message_bytes(message)

    def next_due_ms(self) -> int | None:
        return self.waiting[0].due_ms if self.waiting else None

    def pop_due(self, now_ms: int) -> list[Message]:
        """Removes and returns the messages whose time has come."""
        return self._pop(lambda waiting: waiting.due_ms <= now_ms)

    def pop_all(self, sent_before_ms: int | None = None) -> list[Message]:
        """Removes and returns all messages, or those that Kafka had before a time."""
        return self._pop(lambda waiting: sent_before_ms is None or waiting.message.accepted_ms < sent_before_ms)

    def pop_id(self, message_id: MessageId) -> list[Message]:
        """Removes and returns the messages with this id."""
        return self._pop(lambda waiting: waiting.message.message_id == message_id)

    def pop_key(self, key: bytes | None) -> list[Message]:
        """Removes and returns the messages with this collapse key; none for None."""
        return [] if key is None else self._pop(lambda waiting: collapse_key(waiting.message) == key)

    def _pop(self, leaves: Callable[[ScheduledMessage], bool]) -> list[Message]:
        leaving: list[Message] = []
        staying: list[ScheduledMessage] = []
        for waiting in self.waiting:
            if leaves(waiting):
                leaving.append(waiting.message)
                self.size_bytes -= message_bytes(waiting.message)
            else:
                staying.append(waiting)
        self.waiting = staying
        return leaving


def _due_ms(waiting: ScheduledMessage) -> int:
    return waiting.due_ms
