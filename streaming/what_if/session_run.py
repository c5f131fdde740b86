"""Runs one session through its activations, and notes what it has sent and how its messages have ended."""

from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Self

from state.commands import CloseConnection, CloseFastPath, Command, RecordTransition, SendPublish, SendPubRel, Transition
from state.events import DeadlineReached, Event, FastSent
from state.model import MessageId, PacketId
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import SessionSettings

_RESENDS: Final = (Transition.RESENT, Transition.REPLAYED)


class Contact(NamedTuple):
    """The first transmission of a message on a connection, or the first one after a refusal: what a device answers.

    Attributes:
        refusals: How often the device had refused the message before.
    """

    message_id: MessageId
    connection_id: int
    refusals: int


class Close(NamedTuple):
    """The session closes a connection, or only its fast path."""

    connection_id: int
    at_ms: int
    path_only: bool


class Sent(NamedTuple):
    """A first transmission.

    Attributes:
        qos: 0 = a PUBREL.
    """

    contact: Contact
    qos: int


@dataclass(slots=True)
class SessionRun:
    """A session in the course of a replay.

    Attributes:
        outcomes: How messages have ended since `begin_account`, in order.
        ended_ms: When, in the same order.
        message_of, packet_of: Packet ids and the messages that were last sent under them.
        first_sent_ms: When each contact began.
        closes: Connections that the session closed or whose fast path it closed, with the time.
        new_contacts, new_closes: Those of the last activation.
    """

    session: Session
    outcomes: defaultdict[MessageId, list[str]] = field(default_factory=lambda: defaultdict(list))
    ended_ms: list[tuple[int, str]] = field(default_factory=list)
    resends: int = 0
    message_of: dict[PacketId, MessageId] = field(default_factory=dict)
    packet_of: dict[MessageId, PacketId] = field(default_factory=dict)
    first_sent_ms: dict[Contact, int] = field(default_factory=dict)
    refusals: Counter[MessageId] = field(default_factory=Counter)
    new_contacts: list[Sent] = field(default_factory=list)
    closes: set["Close"] = field(default_factory=set)
    new_closes: list["Close"] = field(default_factory=list)

    def fork(self, settings: SessionSettings) -> Self:
        """Returns the same session under other settings, with an account of its own."""
        client_id = self.session.client_id
        if self.session.is_empty:  # the engine has forgotten it
            session = Session(client_id=client_id, settings=settings)
        else:
            session = decode_session(encode_session(self.session), client_id=client_id, settings=settings)
        return type(self)(
            session,
            message_of=dict(self.message_of),
            packet_of=dict(self.packet_of),
            first_sent_ms=dict(self.first_sent_ms),
            refusals=Counter(self.refusals),
        )

    def begin_account(self) -> None:
        """Forgets outcomes and resends: the period that is compared begins here."""
        self.outcomes.clear()
        self.ended_ms.clear()
        self.resends = 0

    def activate(self, events: Iterable[Event], now_ms: int) -> None:
        """Runs an activation. Without events it is that of a timer. Raises whatever a session raises."""
        self.new_contacts, self.new_closes = [], []
        for command in self.session.handle_all(tuple(events) or (DeadlineReached(),), now_ms=now_ms):
            self._note(command, now_ms)

    def timer_ms(self, now_ms: int) -> int | None:
        """Returns the time that the engine gives Spark for the session's next deadline; None = there is none."""
        if self.session.is_empty:
            return None
        deadline_ms = self.session.next_deadline_ms()
        return None if deadline_ms is None else max(now_ms + 1, deadline_ms)

    def contact(self, message_id: MessageId, connection_id: int) -> Contact:
        return Contact(message_id, connection_id, self.refusals[message_id])

    def note_fast_sent(self, event: FastSent, now_ms: int) -> None:
        """Notes what a gateway has sent by the fast path, before the session reads of it."""
        message_id = event.message.message_id
        if event.packet_id:
            self._use(event.packet_id, message_id)
            self.first_sent_ms.setdefault(self.contact(message_id, event.connection_id), now_ms)

    def waiting(self) -> int:
        """Returns how many messages the session holds."""
        outbound = self.session.outbound
        return len(outbound.window) + len(outbound.queue) + len(outbound.scheduled) + len(outbound.routing.early)

    def _note(self, command: Command, now_ms: int) -> None:
        match command:
            case SendPublish(packet_id=packet_id) if packet_id:
                self._use(packet_id, command.message_id)
                self._begin(self.contact(command.message_id, command.connection_id), int(command.qos), now_ms)
            case SendPubRel():
                message_id = self.message_of.get(command.packet_id)
                if message_id is not None:
                    self._begin(self.contact(message_id, command.connection_id), 0, now_ms)
            case RecordTransition(transition=Transition.FINISHED, message_id=message_id, outcome=outcome):
                assert message_id is not None, "only a message finishes"
                assert outcome is not None
                self.outcomes[message_id].append(outcome.value)
                self.ended_ms.append((now_ms, outcome.value))
            case RecordTransition(transition=transition) if transition in _RESENDS:
                self.resends += 1
            case CloseFastPath(connection_id=connection_id):
                self._close(Close(connection_id, now_ms, path_only=True))
            case CloseConnection(connection_id=connection_id, newest_connection_id=0):
                self._close(Close(connection_id, now_ms, path_only=False))
            case _:
                pass

    def _close(self, close: Close) -> None:
        self.closes.add(close)
        self.new_closes.append(close)

    def _use(self, packet_id: PacketId, message_id: MessageId) -> None:
        self.message_of[packet_id] = message_id
        self.packet_of[message_id] = packet_id

    def _begin(self, contact: Contact, qos: int, now_ms: int) -> None:
        if contact not in self.first_sent_ms:
            self.first_sent_ms[contact] = now_ms
            self.new_contacts.append(Sent(contact, qos))
