"""The records of one connection on their way into the log, and the answers that wait for them."""

from dataclasses import dataclass, field
from enum import IntEnum, auto
from typing import Final

import msgspec

from sinks.host.outbox import FastPublish
from sinks.mqtt.limits.unconfirmed import Unconfirmed
from sinks.mqtt.settings import GatewaySettings
from state.model import MAX_PACKET_ID
from state.records.events import MAX_EVENTS_IN_RECORD, joined

_RESUME_BELOW: Final = 2
"""Reading starts again when a number has fallen to a half of its limit: not at every confirmation."""
_HEADER_BYTES: Final = 128
"""Memory that a header takes besides its name and value: a device may send very many small ones."""
_ANSWER_BYTES: Final = 256
"""The same of an answer that waits."""
_MAX_JOINED_BYTES: Final = 8_192
"""A record of this size takes nothing more in: Reason Strings of acknowledgements may be long."""


class AppendTopic(IntEnum):
    """The topic of a record."""

    EVENTS = auto()
    UPLINK = auto()
    SUBSCRIPTIONS = auto()
    RETAINED = auto()


class Answer(msgspec.Struct, eq=False):
    """An encoded packet that waits for its turn. It does not hold the records that it answers.

    Attributes:
        is_free: True if those records are confirmed, or there is none.
        counts: See Append.
        unconfirmed: How many of those records are not confirmed.
    """

    data: bytes
    is_free: bool = False
    counts: bool = False
    unconfirmed: int = 1


class Append(msgspec.Struct, eq=False):
    """A record for Kafka, and the answer that its confirmation sets free.

    Attributes:
        answer_data: the packet that `answer` is made of. None afterwards, because the answer may be replaced.
        key: None = the client's.
        holds_back: nothing more of the device is worked off until this is confirmed.
        retained: the record of `inflight.retained` that the same packet makes. Kafka gets this one when it has that. The answer
            waits for both.
        answers: of a list of subscriptions: those of the packets that it has. None = it is no such list.
        then: another record that the same packet makes, when this one is confirmed.
        hands_on: the record that hands on the publication of which this tells the session. The answer waits for both.
        delays_lookups: whether the client has a session is asked when Kafka has this.
        size_bytes: of value and headers.
        is_farewell: the engine knows by it that the connection is over.
        fast_publishes: the messages that may be written when this is confirmed; None = there is none.
        counts: it is a publication, and one of `AppendQueue.unanswered` until its answer is written.
        awaits_session: its answer waits for AcceptConnection too, while `AppendQueue.held` is a list.
        is_urgent: the engine should not wait with it (state/records/wake_ups.py). Counts for records of `inflight.events`.
        joined: the values of the events that share this record; None = it shares none.
        waits_since_s: when it was handed to Kafka, by time.monotonic(), if others are slowed down for its device; else None.
    """

    value: bytes
    answer_data: bytes | None = None
    headers: list[tuple[str, bytes]] | None = None
    topic: AppendTopic = AppendTopic.EVENTS
    key: bytes | None = None
    holds_back: bool = False
    retained: "Append | None" = None
    then: "Append | None" = None
    hands_on: "Append | None" = None
    delays_lookups: bool = False
    counts: bool = False
    awaits_session: bool = False
    is_farewell: bool = False
    answers: list[Answer] | None = None
    answer: Answer | None = None
    size_bytes: int = 0
    fast_publishes: list[FastPublish] | None = None
    is_urgent: bool = True
    joined: list[bytes] | None = None
    waits_since_s: float | None = None

    def __post_init__(self) -> None:
        if self.answer_data is not None:
            self.answer, self.answer_data = Answer(self.answer_data, counts=self.counts), None
        size_bytes = len(self.value)
        if self.headers is not None:
            for name, header in self.headers:
                size_bytes += _HEADER_BYTES + len(name) + len(header)
        self.size_bytes = size_bytes

    @property
    def may_linger(self) -> bool:
        """Returns True for what neither the device nor the engine waits for: an acknowledgement that ends a message."""
        return not self.is_urgent and self.answer is None and self.fast_publishes is None

    @property
    def is_last(self) -> bool:
        """Returns True if nothing but its answer follows the record: what may linger, and a publication."""
        return self.may_linger or self.topic is AppendTopic.UPLINK

    def close(self) -> None:
        """Seals the record: it is on its way, and no event is added any more."""
        if self.joined is not None:
            if len(self.joined) > 1:
                self.value = joined(self.joined, has_fast_sent=self.fast_publishes is not None)
            self.joined = None


@dataclass(slots=True, eq=False)
class AppendQueue:
    """The records of one connection that Kafka has not confirmed. Call `drop_answers` when the connection is over.

    Answers leave in the order of `add` and `add_answer`, whatever the order of the confirmations [MQTT-4.6.0-2]. Publications go
    to Kafka in their order: those behind one that waits for its retained message wait, too.

    Attributes:
        new: the records that are not handed to Kafka yet; see `take_new`.
        unanswered: publications that count and whose answer is not written; max_unanswered: how many there may be.
        unconfirmed, unconfirmed_bytes: the records that Kafka has not confirmed.
        unwritten_bytes: of answers that wait for a record.
        held: answers that wait for AcceptConnection; None = no answer has to.
        is_full: one of these or all connections together are at a limit.
        stops_reading: that, or a record holds back what comes behind it. Nothing more is read from the device until it is False
            again. All that is waited for comes from Kafka, never from what the device sends next, so reading always goes on.
        reads_subscriptions: nothing stops reading but a list of subscriptions. Further SUBSCRIBEs and UNSUBSCRIBEs may be read:
            together they make the next list, which is written when this one is confirmed.
        owes_list: some answer waits for a list that is not written yet.
    """

    _settings: GatewaySettings
    _total: Unconfirmed
    unconfirmed: int = 0
    unconfirmed_bytes: int = 0
    unwritten_bytes: int = 0
    unanswered: int = 0
    max_unanswered: int = MAX_PACKET_ID
    new: list[Append] = field(default_factory=list)
    held: list[Answer] | None = None
    _is_full: bool = False
    _holding_back: int = 0
    _delayed: list[Answer] | None = None
    _lists: int = 0
    _awaiting_list: list[Answer] = field(default_factory=list)
    _behind_retained: list[Append] | None = None
    _answers: list[Answer] = field(default_factory=list)  # a deque takes 760 bytes while it is empty, for each connection

    @property
    def is_full(self) -> bool:
        return self._is_full or self._total.is_full

    @property
    def stops_reading(self) -> bool:
        return self._is_full or self._holding_back > 0 or self._lists > 0 or self.owes_list or self._total.is_full

    @property
    def reads_subscriptions(self) -> bool:
        return (self._lists > 0 or self.owes_list) and not (self._is_full or self._holding_back or self._total.is_full)

    @property
    def owes_list(self) -> bool:
        return bool(self._awaiting_list)

    @property
    def may_write_list(self) -> bool:
        """A list is owed, and Kafka has the one before it."""
        return bool(self._awaiting_list) and not self._lists

    def add(self, append: Append) -> None:
        answer, retained = append.answer, append.retained
        if answer is not None:
            self._await_turn(answer)
            if append.awaits_session and self.held is not None:
                answer.unconfirmed += 1
                self.held.append(answer)
        self.unanswered += append.counts
        if append.hands_on is not None and answer is not None:
            append.hands_on.answer = answer
            answer.unconfirmed += 1
            self._count(append.hands_on)
        if retained is not None:
            if answer is not None:
                retained.answer = answer
                answer.unconfirmed += 1
            self._add(retained)
            self._behind_retained = self._behind_retained or []
        if self._behind_retained is not None and append.topic is AppendTopic.UPLINK:
            self._behind_retained.append(append)
            self._count(append)
        else:
            self._add(append)

    def add_change(self, append: Append) -> None:
        """Add the record of a change of subscriptions, whose answer waits for the next `add_list` too."""
        self.add(append)
        answer = append.answer
        assert answer is not None  # SUBACK or UNSUBACK
        answer.unconfirmed += 1
        self._awaiting_list.append(answer)

    def add_list(self, append: Append) -> None:
        """Add a list of subscriptions with all changes so far."""
        append.answers, self._awaiting_list = self._awaiting_list, []
        self._lists += 1
        self._add(append)

    def hand_on(self, append: Append) -> None:
        """Adds the record that hands a publication on (`Append.hands_on`)."""
        self.new.append(append)

    def give_up(self, append: Append) -> None:
        """Forgets a record that would have handed a publication on, which is not answered then."""
        self.settle(append, confirmed=False)

    def _add(self, append: Append) -> None:
        self.new.append(append)
        self._count(append)

    def _count(self, append: Append) -> None:
        self.unconfirmed += 1
        self.unconfirmed_bytes += append.size_bytes
        self._holding_back += append.holds_back
        self._total.add(append.size_bytes)
        self._stop_if_there_is_no_room()

    def add_acknowledgement(self, value: bytes, answer: bytes | None, *, is_urgent: bool = True) -> None:
        """Add an acknowledgement. It shares the record of the one before it, if that is still here and nothing came between."""
        if not self._join(value, answer, is_urgent):
            self.add(Append(value, answer, joined=[value], is_urgent=is_urgent))

    def add_fast_sent(self, value: bytes, publish: FastPublish) -> None:
        """Adds the record of a message that the fast path has taken. It shares the record of what came before it, likewise."""
        if not self.new or not self._join(value, None, is_urgent=False):
            self._add(Append(value, joined=[value], is_urgent=False, fast_publishes=[publish]))
        elif (publishes := self.new[-1].fast_publishes) is None:
            self.new[-1].fast_publishes = [publish]
        else:
            publishes.append(publish)

    def _join(self, value: bytes, answer: bytes | None, is_urgent: bool) -> bool:
        newest = self.new[-1] if self.new else None
        if newest is None or newest.joined is None:
            return False
        if len(newest.joined) >= MAX_EVENTS_IN_RECORD or newest.size_bytes >= _MAX_JOINED_BYTES:
            return False
        if answer is not None:
            if newest.answer is None:
                newest.answer = Answer(answer)
                self._await_turn(newest.answer)
            elif self._answers[-1] is newest.answer:
                newest.answer.data += answer
                self.unwritten_bytes += len(answer)
                self._total.hold(len(answer))
            else:
                return False  # another answer goes between
        newest.joined.append(value)
        newest.is_urgent |= is_urgent
        newest.size_bytes += len(value)
        self.unconfirmed_bytes += len(value)
        self._total.hold(len(value))
        self._stop_if_there_is_no_room()
        return True

    def add_answer(self, answer: bytes) -> None:
        """Add an answer that needs no record, but has its turn."""
        self._await_turn(Answer(answer, is_free=True))
        self._stop_if_there_is_no_room()

    @property
    def owes_answers(self) -> bool:
        """Some answer still waits for a record, or for its turn."""
        return bool(self._answers)

    def take_new(self) -> list[Append]:
        """Hand each to Kafka in this order, under the key of the client; then call `settle` once for each."""
        new, self.new = self.new, []
        for append in new:
            append.close()
        return new

    def settle(self, append: Append, *, confirmed: bool) -> None:
        """Kafka's last word about a record; then `take_answers`."""
        answer = append.answer
        if answer is not None and confirmed:
            answer.unconfirmed -= 1
            answer.is_free = not answer.unconfirmed
        if append.answers is not None:
            self._lists -= 1
            for listed in append.answers if confirmed else ():
                listed.unconfirmed -= 1
                listed.is_free = not listed.unconfirmed
        self._holding_back -= append.holds_back
        self.unconfirmed -= 1
        self.unconfirmed_bytes -= append.size_bytes
        self._total.settle(append.size_bytes)
        if append.topic is AppendTopic.RETAINED and self._behind_retained is not None:
            self._retained(append, self._behind_retained, confirmed=confirmed)
        if self._is_full:
            self._resume_if_there_is_room()

    def _retained(self, retained: Append, waiting: list[Append], *, confirmed: bool) -> None:
        """Lets the publications go that have waited for this record. Without it, its own is given up."""
        for number, publication in enumerate(waiting):
            if publication.retained is retained:
                publication.retained = None
                if not confirmed:
                    del waiting[number]
                    self.settle(publication, confirmed=False)
                break
        ready = next((number for number, each in enumerate(waiting) if each.retained is not None), len(waiting))
        self.new += waiting[:ready]
        del waiting[:ready]
        self._behind_retained = waiting or None

    def delay_answer(self, append: Append) -> Answer | None:
        """Lets an answer wait until `end_delay`, and with it all answers behind. Call it before `settle`.

        Nothing else waits: the device is read as before. When there is no room for more answers, all delays end.

        Returns:
            The answer; None = it does not wait.
        """
        answer = append.answer
        if answer is None or self.is_full:
            return None
        answer.unconfirmed += 1
        self._delayed = self._delayed or []
        self._delayed.append(answer)
        return answer

    def end_delay(self, answer: Answer) -> None:
        """Ends the delay of an answer, if it is not over; then `take_answers`."""
        if self._delayed is not None and answer in self._delayed:
            self._delayed.remove(answer)
            self._no_longer_delayed(answer)
            self._delayed = self._delayed or None

    @staticmethod
    def _no_longer_delayed(answer: Answer) -> None:
        answer.unconfirmed -= 1
        answer.is_free = not answer.unconfirmed

    def replace_answer(self, append: Append, data: bytes) -> None:
        """Lets a record have another answer than it was given, before it is settled."""
        answer = append.answer
        assert answer is not None  # only answered packets are refused
        more_bytes = len(data) - len(answer.data)
        answer.data = data
        self.unwritten_bytes += more_bytes
        self._total.hold(more_bytes)

    def take_answers(self, into: list[bytes]) -> None:
        """Move the answers whose turn has come to the end of a list."""
        taken = 0
        for answer in self._answers:
            if not answer.is_free:
                break
            taken += 1
            self.unanswered -= answer.counts
            size_bytes = len(answer.data)
            self.unwritten_bytes -= size_bytes
            self._total.release(_ANSWER_BYTES + size_bytes)
            into.append(answer.data)
        if not taken:
            return
        del self._answers[:taken]
        if self._is_full:
            self._resume_if_there_is_room()

    def release(self, into: list[bytes]) -> None:
        """The session has accepted the connection: frees the answers that wait for that, and takes those whose turn has come."""
        for answer in self.held or ():
            answer.unconfirmed -= 1
            answer.is_free = not answer.unconfirmed
        self.held = None
        self.take_answers(into)

    def drop_answers(self) -> None:
        """Forget the answers: the connection is over."""
        self._total.release(_ANSWER_BYTES * len(self._answers) + self.unwritten_bytes)
        self._answers.clear()
        self._awaiting_list.clear()
        self.held, self._delayed, self.unwritten_bytes = None, None, 0

    def _await_turn(self, answer: Answer) -> None:
        self._answers.append(answer)
        self.unwritten_bytes += len(answer.data)
        self._total.hold(_ANSWER_BYTES + len(answer.data))

    def _stop_if_there_is_no_room(self) -> None:
        if (
            self.unconfirmed >= self._settings.max_unconfirmed_appends
            or len(self._answers) >= self._settings.max_unconfirmed_appends
            or self.unconfirmed_bytes + self.unwritten_bytes >= self._settings.max_unconfirmed_bytes
            or self.unanswered >= self.max_unanswered
        ):
            self._is_full = True
            for answer in self._delayed or ():
                self._no_longer_delayed(answer)
            self._delayed = None

    def _resume_if_there_is_room(self) -> None:
        if (
            self.unconfirmed * _RESUME_BELOW <= self._settings.max_unconfirmed_appends
            and len(self._answers) * _RESUME_BELOW <= self._settings.max_unconfirmed_appends
            and self.unconfirmed_bytes + self.unwritten_bytes < self._settings.max_unconfirmed_bytes
            and self.unanswered * _RESUME_BELOW <= self.max_unanswered
        ):
            self._is_full = False
