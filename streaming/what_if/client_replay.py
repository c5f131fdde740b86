"""Replays the log of one client twice: under the settings that were in force, and under others.

1. The first replay makes the same activations as the engine did: the same events, at the same times. It shows whether the log is
   understood, because it must end all messages as the ledger says. It also says which message each answer of the device is for.
2. The second replay begins as a copy of the first session when the compared period begins. Messages, CONNECTs, the ends of
   connections and what the device sends come as in the log. Answers are the device's (device.py).
3. An answer whose message went out at the same time in both replays keeps its place in the log. So equal settings give equal
   activations. Any other answer comes in an activation of its own.
4. A gateway sends by the fast path only where it did so in reality, and only while the second session has the path open.
   Otherwise the session sends the message itself.
5. If the second session closes a connection or a fast path on its own, the device connects again, or the gateway confirms, as
   soon as a device or gateway usually would.
"""

import heapq
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final, NamedTuple, TypeAlias

import msgspec

from state.connection import PathState
from state.events import (
    CancelRequested,
    ClientConnected,
    ClientDisconnected,
    ConnectionLost,
    DeadlineReached,
    Event,
    FastPathClosed,
    FastSent,
    GatewayEvent,
    MessageRefused,
    MessageReturned,
    MessageSubmitted,
    PubAckReceived,
    PubCompReceived,
    PubRecReceived,
    SessionPurged,
)
from state.model import MAX_PACKET_ID, MIN_FAST_PACKET_ID, ClientId, MessageId, PacketId
from state.session import Session
from state.settings import SessionSettings
from streaming.what_if.device import Answer, DeviceModel, TimedAnswer
from streaming.what_if.micro_batches import MicroBatches
from streaming.what_if.session_run import Close, Contact, Sent, SessionRun

WAITING: Final = "waiting"
"""Stands for the outcome of a message that has none when the period ends."""
RECONNECT_MS: Final = 1_000
CONFIRM_MS: Final = 100
_ANSWERS: Final = (PubAckReceived, PubRecReceived, PubCompReceived)
_MESSAGES: Final = (MessageSubmitted, MessageRefused, CancelRequested)
_ENDS: Final = (ClientDisconnected, ConnectionLost)


class LoggedActivation(NamedTuple):
    """The events of one micro-batch for the client, in the order of the operator."""

    at_ms: int
    events: Sequence[Event]


class Read(NamedTuple):
    """An event of the log, as the first replay understood it.

    Attributes:
        message_id: The message that an answer or the end of a connection names by its packet id; None = it names none.
        contact, sent_ms: What an answer is for, and when that was sent; None = nothing that is known.
    """

    event: Event
    message_id: MessageId | None = None
    contact: Contact | None = None
    sent_ms: int | None = None


class UnderstoodActivation(NamedTuple):
    """One activation of the client, as the first replay understood it.

    Attributes:
        at_ms: Time of the activation.
        reads: The events that it read.
        path_open: True if the fast path of the first replay's session was not closed when the activation began.
    """

    at_ms: int
    reads: Sequence[Read]
    path_open: bool


@dataclass(slots=True, kw_only=True)
class RunResult:
    """The outcomes of the messages in the period."""

    outcomes: dict[MessageId, list[str]]
    ended_ms: list[tuple[int, str]]
    waiting: int
    resends: int

    @classmethod
    def of(cls, run: SessionRun) -> "RunResult":
        outcomes = {message_id: sorted(ends) for message_id, ends in run.outcomes.items()}
        return cls(outcomes=outcomes, ended_ms=run.ended_ms, waiting=run.waiting(), resends=run.resends)

    def totals(self) -> Counter[str]:
        """Counts messages by outcome."""
        found = Counter(end for ends in self.outcomes.values() for end in ends)
        if self.waiting:
            found[WAITING] = self.waiting
        return found

    def of_message(self, message_id: MessageId) -> str:
        """Returns the outcome of a message; several ones are joined."""
        return " + ".join(self.outcomes.get(message_id, ())) or WAITING


class ClientReplay:
    """Replays one client. Methods raise whatever a session raises: such a client is quarantined in reality."""

    def __init__(
        self,
        client_id: ClientId,
        log: Sequence[LoggedActivation],
        batches: MicroBatches,
        own_times_ms: Iterable[int] = (),
        *,
        since_ms: int = 0,
    ) -> None:
        """Takes the log of a client in order.

        Args:
            own_times_ms: Times at which the ledger has rows of this client.
            since_ms: The compared period begins here.
        """
        self._client_id = client_id
        self._log = log
        self._batches = batches
        self._own = MicroBatches.of((), own_times_ms, batches.end_ms)
        self._since_ms = since_ms
        self._device = DeviceModel()
        self._understood: list[UnderstoodActivation] = []
        self._real: SessionRun | None = None
        self._at_fork: SessionRun | None = None

    def real(self, settings: SessionSettings) -> RunResult:
        """Replays the log as it was."""
        run = SessionRun(Session(client_id=self._client_id, settings=settings))
        position, now_ms = 0, 0
        while True:
            logged = self._log[position].at_ms if position < len(self._log) else None
            at_ms = _earliest(logged, self._timer(run, now_ms))
            if at_ms is None:
                break
            if self._at_fork is None and at_ms >= self._since_ms:
                self._fork(run, settings)
            now_ms = at_ms
            if at_ms == logged:
                understood = self._understand(run, self._log[position])
                if self._at_fork is not None:
                    self._understood.append(understood)
                position += 1
                run.activate([read.event for read in understood.reads], now_ms)
            else:
                run.activate((), now_ms)
        if self._at_fork is None:
            self._fork(run, settings)
        self._device.complete(run.first_sent_ms)
        self._real = run
        return RunResult.of(run)

    def other(self, settings: SessionSettings) -> RunResult:
        """Replays the period under other settings. Call `real` before."""
        assert self._real is not None, "the log is not understood yet"
        assert self._at_fork is not None
        simulation = _Simulation(self._at_fork.fork(settings), self._real, self._device)
        position, now_ms = 0, 0
        while True:
            logged = self._understood[position].at_ms if position < len(self._understood) else None
            at_ms = _earliest(logged, simulation.due_ms(), self._timer(simulation.run, now_ms))
            if at_ms is None or at_ms > self._batches.end_ms:
                break
            now_ms = max(now_ms, at_ms)
            if at_ms == logged:
                simulation.replay(self._understood[position], now_ms)
                position += 1
            else:
                simulation.activate(now_ms)
        return RunResult.of(simulation.run)

    def _fork(self, run: SessionRun, settings: SessionSettings) -> None:
        run.begin_account()
        self._at_fork = run.fork(settings)

    def _timer(self, run: SessionRun, now_ms: int) -> int | None:
        """Returns the micro-batch that calls the session for its next deadline."""
        timer_ms = run.timer_ms(now_ms)
        if timer_ms is None:
            return None
        return _earliest(self._batches.first_after(timer_ms), self._own.first_after(timer_ms))

    def _understand(self, run: SessionRun, logged: LoggedActivation) -> UnderstoodActivation:
        """Finds out which messages the events name."""
        path_open = _path_state(run.session) is not PathState.CLOSED
        reads = [self._read(run, event, logged.at_ms) for event in logged.events]
        return UnderstoodActivation(logged.at_ms, reads, path_open)

    def _read(self, run: SessionRun, event: Event, now_ms: int) -> Read:
        if isinstance(event, FastSent):
            run.note_fast_sent(event, now_ms)
        elif isinstance(event, _ENDS):
            return Read(event, run.message_of.get(event.unanswered))
        elif isinstance(event, _ANSWERS):
            message_id = run.message_of.get(event.packet_id)
            if message_id is not None:
                contact = run.contact(message_id, event.connection_id)
                sent_ms = run.first_sent_ms.get(contact)
                if sent_ms is not None:
                    self._device.add(contact, event, now_ms - sent_ms)
                _count_refusal(run, event, message_id)
                return Read(event, message_id, contact, sent_ms)
        return Read(event)


Due: TypeAlias = "tuple[int, int, Contact | ClientConnected | FastPathClosed, TimedAnswer | None]"


class _Simulation:
    """The second session with its device and gateway."""

    def __init__(self, run: SessionRun, real: SessionRun, device: DeviceModel) -> None:
        self.run = run
        self._real = real
        self._device = device
        self._due: list[Due] = []
        self._numbers = count()
        self._connects: dict[int, ClientConnected] = {}
        connection = run.session.connection
        self._now_called: dict[int, int] = {} if connection is None else {connection.connection_id: connection.connection_id}
        """By the connection id of the log: the present id, another one after a reconnect that the log does not have."""
        self._logged_as: dict[int, int] = dict(self._now_called)

    def due_ms(self) -> int | None:
        return self._due[0][0] if self._due else None

    def replay(self, logged: UnderstoodActivation, now_ms: int) -> None:
        """Runs an activation of the log."""
        events: list[Event] = []
        path_closed = logged.path_open and _path_state(self.run.session) is PathState.CLOSED
        for read in logged.reads:
            if (event := self._translated(read, now_ms, path_closed=path_closed)) is not None:
                events.append(event)
        # As in the operator: an answer frees the slot that a new message needs.
        first = next((number for number, event in enumerate(events) if isinstance(event, _MESSAGES)), len(events))
        self._activate([*events[:first], *self._due_events(now_ms), *events[first:]], now_ms)

    def activate(self, now_ms: int) -> None:
        """Runs an activation that the log does not have: of a timer, or of an answer at another time."""
        self._activate(self._due_events(now_ms), now_ms)

    def _activate(self, events: Sequence[Event], now_ms: int) -> None:
        self.run.activate(events, now_ms)
        for sent in self.run.new_contacts:
            contact = sent.contact._replace(connection_id=self._of_log(sent.contact.connection_id))
            if self._real.first_sent_ms.get(contact) != now_ms:  # otherwise the answers are in the log
                for timed in self._device.replies(Sent(contact, sent.qos)):
                    self._schedule(now_ms + timed.after_ms, sent.contact, timed)
        for close in self.run.new_closes:
            self._answer_close(close, now_ms)

    def _translated(self, read: Read, now_ms: int, *, path_closed: bool) -> Event | None:
        """Returns an event of the log with the ids of this session; None = it does not happen here."""
        event = read.event
        match event:
            case MessageSubmitted() | MessageRefused() | CancelRequested() | MessageReturned() | SessionPurged():
                return event
            case ClientConnected():
                self._connects[event.connection_id] = event
                self._now_called[event.connection_id] = self._logged_as[event.connection_id] = event.connection_id
                return event
            case FastSent():
                return None if path_closed else self._fast_sent(event, now_ms)
            case PubAckReceived() | PubRecReceived() | PubCompReceived():
                return self._answer_of_log(read, event, now_ms)
            case ClientDisconnected() | ConnectionLost() if event.unanswered:
                unanswered = self._packet_id(read.message_id, event.unanswered)
                return self._here(msgspec.structs.replace(event, unanswered=unanswered or 0))
            case DeadlineReached():
                return None
            case _:
                return self._here(event)

    def _here(self, event: GatewayEvent) -> GatewayEvent:
        """Returns the event with the id that its connection has here."""
        connection_id = self._now_called.get(event.connection_id, event.connection_id)
        return event if connection_id == event.connection_id else msgspec.structs.replace(event, connection_id=connection_id)

    def _answer_of_log(self, read: Read, event: Answer, now_ms: int) -> Event | None:
        if read.message_id is None:  # answers what nobody knows of
            return None if event.packet_id in self.run.message_of else self._here(event)
        contact = read.contact
        assert contact is not None
        here = contact._replace(connection_id=self._now_called.get(contact.connection_id, contact.connection_id))
        if self.run.first_sent_ms.get(here) != read.sent_ms:
            return None  # it is scheduled for the time at which the message was sent here
        packet_id = self._packet_id(read.message_id, event.packet_id)
        if packet_id is None:
            return None
        _count_refusal(self.run, event, read.message_id)
        return self._here(event if packet_id == event.packet_id else msgspec.structs.replace(event, packet_id=packet_id))

    def _packet_id(self, message_id: MessageId | None, logged: PacketId) -> PacketId | None:
        """Returns the packet id of a message here; None = it has none."""
        if message_id is None:
            return None if logged in self.run.message_of else logged
        packet_id = self.run.packet_of.get(message_id)
        return packet_id if packet_id is not None and self.run.message_of.get(packet_id) == message_id else None

    def _fast_sent(self, event: FastSent, now_ms: int) -> FastSent:
        outbound = self.run.session.outbound
        in_use = event.packet_id in outbound.window or event.packet_id in outbound.abandoned
        if event.packet_id and in_use and self.run.message_of.get(event.packet_id) != event.message.message_id:
            ids = range(MAX_PACKET_ID, MIN_FAST_PACKET_ID, -1)
            free = next(one for one in ids if one not in outbound.window and one not in outbound.abandoned)
            event = msgspec.structs.replace(event, packet_id=free)
        here = self._here(event)
        assert isinstance(here, FastSent)
        self.run.note_fast_sent(here, now_ms)
        return here

    def _answer_close(self, close: Close, now_ms: int) -> None:
        """Lets the gateway or the device do what follows from a close that the log does not have."""
        logged = self._of_log(close.connection_id)
        if close._replace(connection_id=logged) in self._real.closes:
            return
        if close.path_only:
            self._schedule(now_ms + CONFIRM_MS, FastPathClosed(connection_id=close.connection_id), None)
        elif (connect := self._connects.get(logged)) is not None and self.run.session.connection is None:
            again = msgspec.structs.replace(connect, connection_id=self.run.session.newest_connection_id + 1)
            self._logged_as[again.connection_id] = logged
            self._schedule(now_ms + RECONNECT_MS, again, None)

    def _schedule(self, at_ms: int, what: Contact | ClientConnected | FastPathClosed, timed: TimedAnswer | None) -> None:
        heapq.heappush(self._due, (at_ms, next(self._numbers), what, timed))

    def _due_events(self, now_ms: int) -> list[Event]:
        events: list[Event] = []
        while self._due and self._due[0][0] <= now_ms:
            _, _, what, timed = heapq.heappop(self._due)
            match what:
                case ClientConnected():
                    if self.run.session.connection is None and what.connection_id > self.run.session.newest_connection_id:
                        self._now_called[self._of_log(what.connection_id)] = what.connection_id
                        events += [ConnectionLost(connection_id=what.connection_id - 1), what]
                case FastPathClosed():
                    events.append(what)
                case _:
                    assert timed is not None
                    if (event := self._scheduled_answer(what, timed)) is not None:
                        events.append(event)
        return events

    def _scheduled_answer(self, contact: Contact, timed: TimedAnswer) -> Event | None:
        """Returns the answer if the connection still exists, and the message has still its packet id."""
        connection = self.run.session.connection
        packet_id = self._packet_id(contact.message_id, 0)
        if connection is None or connection.connection_id != contact.connection_id or not packet_id:
            return None
        _count_refusal(self.run, timed.answer, contact.message_id)
        return msgspec.structs.replace(timed.answer, connection_id=contact.connection_id, packet_id=packet_id, logged_ms=0)

    def _of_log(self, connection_id: int) -> int:
        return self._logged_as.get(connection_id, connection_id)


def _path_state(session: Session) -> PathState:
    path = None if session.connection is None else session.connection.fast_path
    return PathState.CLOSED if path is None else path.state


def _count_refusal(run: SessionRun, answer: Answer, message_id: MessageId) -> None:
    if answer.reason_code >= 0x80:
        run.refusals[message_id] += 1


def _earliest(*times_ms: int | None) -> int | None:
    return min((time_ms for time_ms in times_ms if time_ms is not None), default=None)
