"""Sets aside a client whose session cannot be used, so that it does not affect other clients.

A client is quarantined when its stored session cannot be decoded, or when the session fails without an event that caused it, such
as on a timer. Such a failure is a bug or damage. The rules:

 1. Nothing of the session is lost: the blob stays in the state unchanged, without a timer. When the quarantine begins, one copy
    of it becomes a dead letter with the reason `quarantined`, whose detail says what was wrong and what to do.
 2. The device cannot use the session: its connection is closed, and so is each new one, with 0x83.
 3. Events of the device were acknowledged, so they are kept with the blob, in order, and applied when the session is restored.
    Without a kept PUBREC or PUBREL a QoS 2 message could arrive twice or never. Events above `MAX_KEPT_BYTES` become dead
        letters.
 4. Messages end with the outcome `quarantined`: a receipt, and a dead letter in the engine's own topic. No policy applies,
    because the policy may be what fails. `inflight replay` sends them again.
 5. `restore` applies the kept events, ends the connection, and is undone if the session fails again. The expiry interval of an
    offline session starts again, because its device could not reconnect.
 6. `drop` ends the session as its expiry does: kept events are applied, window and queue leave with `session_ended`, the will is
    published. If that fails, the readable part leaves by rule 4. The unreadable part is only in the dead letter of rule 1.
 7. Backends are told that the client is offline when a quarantine begins that closes its connection, or whose session cannot be
    decoded, and that it is gone when the session is given up (state/presence.py).
 8. A message sent by the fast path (protocol.md, section 7) has one outcome too. A FastSent that the session would adopt is
    kept by rule 3, and its message is ignored when it is read. A FastSent is not kept if its message has ended by rule 4 or the
    session is unreadable. The next session knows which messages were handled.
"""

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from state.activation import Activation
from state.commands import (
    ClearPresence,
    ClearThrottle,
    CloseConnection,
    Command,
    DeadLetter,
    RecordTransition,
    SetPresence,
    Transition,
)
from state.dead_letters.dead_letter import NOT_DEAD, DeadLettering, with_death
from state.dead_letters.exchanges import DEAD_LETTER_TOPIC, DEAD_LETTERS
from state.dead_letters.message_end import message_end
from state.dead_letters.refused_record import refuse_message
from state.errors import UNDECODABLE, UnreadableRecord
from state.events import (
    CancelRequested,
    ClientConnected,
    ClientDisconnected,
    ConnectionLost,
    Event,
    FastSent,
    GatewayEvent,
    MessageEvent,
    MessageRefused,
    MessageReturned,
    MessageSubmitted,
    PublishReceived,
    SessionPurged,
)
from state.inbound.inbound import SessionInbound
from state.model import NEVER_EXPIRES_S, ClientId, Message, Outcome, Position, ReasonCode, Value
from state.outbound.cancellation import unsent
from state.outbound.fast_path.positions import Positions
from state.outbound.inflight_window import Delivery
from state.session import Session
from state.session_codec import decode_session
from state.settings import SessionSettings
from state.transitions import OutboundAction, OutboundEvent

MAX_KEPT_BYTES: Final = 16_777_216
"""Size of the kept events of one quarantine: far more than one connection can have in flight, and little for a state row."""
LAST_SEQUENCE: Final = 2**63 - 1
"""Sequence number of a connection's last command. The session may be unreadable, and a gateway only applies growing numbers."""
ROW_VERSION: Final = "x-state-row-version"
"""Header of the dead letter with the blob. No other dead letter with the reason `quarantined` has it."""

_EVENT_BYTES: Final = 64
_ERROR_CHARACTERS: Final = 500
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{6,}")
_TO_DO: Final = (
    "the payload is the client's stored session, which stays in the state. Start a version that can use it, then "
    "`inflight sessions restore CLIENT`; or give it up with `inflight sessions drop CLIENT`"
)
_CLOSED: Final = "the server cannot use this client's session"


EventFromLog: TypeAlias = GatewayEvent | MessageReturned | SessionPurged | MessageEvent
"""Events that a record of Kafka can be for a session."""


class Quarantine(Value, frozen=True):
    """The stored state of a quarantined client. Add fields only at the end and with a default.

    Attributes:
        row_version, blob: The state row, unchanged.
        since_ms: When the quarantine began.
        error: What was wrong, for people.
        events: Events of the device since then, oldest first, without ClientConnected.
        handled, unread: As in state/outbound/fast_path/positions.py, at present; None = as in the blob.
    """

    row_version: int
    blob: bytes
    since_ms: int
    error: str
    events: tuple[GatewayEvent, ...] = ()
    handled: tuple[tuple[int, int], ...] | None = None
    unread: tuple[Position, ...] = ()


_VERSION: Final = b"\x01"
_encoder: Final = msgspec.msgpack.Encoder()
_decoder: Final = msgspec.msgpack.Decoder(Quarantine)


def encode_quarantine(held: Quarantine) -> bytes:
    return _VERSION + _encoder.encode(held)


def decode_quarantine(data: bytes) -> Quarantine:
    """Returns the quarantine that `encode_quarantine` got. It never raises: damaged bytes become the blob of the result."""
    try:
        if data[:1] == _VERSION:
            return _decoder.decode(memoryview(data)[1:])
        error = "the record of the quarantine has another version"
    except UNDECODABLE as damage:
        error = f"the record of the quarantine is damaged: {damage}"
    return Quarantine(row_version=0, blob=data, since_ms=0, error=error)


def error_text(error: Exception, context: str = "the session failed") -> str:
    """Returns a text for details. It is equal for equal errors, so addresses of objects are removed, and its length is
    limited."""
    text = str(error) if isinstance(error, UnreadableRecord) else f"{context}: {error!r}"
    return _ADDRESS.sub("0x…", text)[:_ERROR_CHARACTERS]


def begin(held: Quarantine, *, client_id: ClientId, settings: SessionSettings) -> tuple[Command, ...]:
    """Returns the commands for the begin of a quarantine (rules 1 and 2)."""
    message_id = f"quarantined-{held.since_ms}"
    stored = Message(
        message_id=message_id,
        topic="",
        payload=held.blob,
        accepted_ms=held.since_ms,
        headers=((ROW_VERSION, b"%d" % held.row_version),),
    )
    commands: list[Command] = [
        RecordTransition(transition=Transition.QUARANTINED, time_ms=held.since_ms, message_id=message_id, detail=held.error),
        _dead_letter(stored, client_id=client_id, now_ms=held.since_ms, detail=f"{held.error}; {_TO_DO}"),
    ]
    session = _decoded(held, client_id, settings)
    connection = None if session is None else session.connection
    if connection is not None:
        commands.append(_close(connection.connection_id, connection.partition))
    if session is None or connection is not None:
        commands.append(
            SetPresence(
                online=False,
                since_ms=held.since_ms,
                connection_id=0 if connection is None else connection.connection_id,
                gateway="",
                protocol_version=4 if connection is None else connection.protocol_version,
                session_expiry_interval_s=NEVER_EXPIRES_S,
                reason=f"quarantined: {held.error}",
            )
        )
    return tuple(commands)


def receive(
    held: Quarantine, event: EventFromLog, *, client_id: ClientId, now_ms: int, commands_partitions: int
) -> tuple[Quarantine, tuple[Command, ...]]:
    """Applies an event for a quarantined client (rules 2, 3, 4).

    Args:
        commands_partitions: Number of partitions that gateways read. Only the blob says which one has the connection, so each
            gets the command.

    Raises:
        UnreadableRecord: The event exceeds the limit of rule 3: refuse it.
    """
    if isinstance(event, MessageEvent) and event.position is not None:
        positions = _positions(held, client_id)
        is_new = positions.mark_read(event.position)
        held = _with_positions(held, positions)
        if not is_new:
            return held, ()  # step 8
    match event:
        case MessageSubmitted(message=message) | MessageReturned(message=message):
            return held, _end_message(
                held, Delivery(message=message, order=0, qos=message.qos), client_id=client_id, now_ms=now_ms
            )
        case MessageRefused(message=message, detail=detail):
            return held, refuse_message(message, client_id=client_id, detail=detail, now_ms=now_ms)
        case CancelRequested(message_id=cancelled):
            detail = "the client is quarantined: its messages stay with its session"
            return held, (
                RecordTransition(transition=Transition.CANCEL_REFUSED, time_ms=now_ms, message_id=cancelled, detail=detail),
            )
        case ClientConnected():
            record = RecordTransition(
                transition=Transition.REFUSED,
                time_ms=now_ms,
                reason_code=ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
                detail=f"the client is quarantined: {held.error}",
            )
            return held, (record, _close(event.connection_id, event.commands_partition))
        case SessionPurged():
            detail = "the client is quarantined: drop its session instead of purging it"
            return held, (RecordTransition(transition=Transition.REFUSED, time_ms=now_ms, detail=detail),)
        case ClientDisconnected() | ConnectionLost():
            return _with_event(held, event), ()
        case FastSent() if not _would_adopt(held, event, client_id):
            return held, ()
        case _:
            if isinstance(event, FastSent):
                positions = _positions(held, client_id)
                if positions.is_beyond(event.position):
                    positions.adopt(event.position, is_granted=event.is_granted)
                    held = _with_positions(held, positions)
                    event = msgspec.structs.replace(event, previous=-1)  # _would_adopt has compared it with what is handled now
            known = any(event.connection_id == kept.connection_id for kept in held.events)
            partitions = () if known else range(commands_partitions)
            return _with_event(held, event), tuple(_close(event.connection_id, partition) for partition in partitions)


def restored(
    held: Quarantine, *, client_id: ClientId, settings: SessionSettings, now_ms: int
) -> tuple[Session, tuple[Command, ...]]:
    """Returns the restored session and its commands (rule 5).

    Raises:
        UnreadableRecord: The blob cannot be decoded. The session may raise other errors too.
    """
    session = decode_session(held.blob, client_id=client_id, settings=settings)
    if session.offline_since_ms is not None:
        session.offline_since_ms = now_ms
    commands = session.handle_all(_missed_events(held, session), now_ms=now_ms)
    session.outbound.positions = _positions(held, client_id)  # step 8
    record = RecordTransition(
        transition=Transition.RESTORED, time_ms=now_ms, detail=f"quarantined at {held.since_ms} ms because: {held.error}"
    )
    return session, (record, *commands)


def not_restored(held: Quarantine, error: str, *, now_ms: int) -> tuple[Quarantine, tuple[Command, ...]]:
    """Continues the quarantine with the new error after an attempt to restore has failed."""
    record = RecordTransition(transition=Transition.QUARANTINED, time_ms=now_ms, detail=f"not restored: {error}")
    return msgspec.structs.replace(held, error=error), (record,)


def dropped(held: Quarantine, *, client_id: ClientId, settings: SessionSettings, now_ms: int) -> tuple[Command, ...]:
    """Ends the session of a quarantined client (rule 6). It raises as `restored` does; then use `given_up`."""
    session = decode_session(held.blob, client_id=client_id, settings=settings)
    session.session_expiry_interval_s = 0
    commands = session.handle_all(_missed_events(held, session), now_ms=now_ms)
    return (_drop(held, now_ms), *commands, *_end_early(held, session, client_id, now_ms))


def given_up(held: Quarantine, *, client_id: ClientId, settings: SessionSettings, now_ms: int) -> tuple[Command, ...]:
    """Ends a session that fails even at its end (rule 6)."""
    activation = Activation(client_id, now_ms, settings)
    activation.add(_drop(held, now_ms))
    for event in held.events:
        if isinstance(event, PublishReceived):  # acknowledged; whether it is a repetition is unknown now
            SessionInbound.forward(event, activation)
    activation.add(ClearThrottle())
    activation.add(ClearPresence(connection_id=0, since_ms=now_ms, reason="dropped from quarantine"))
    session = _decoded(held, client_id, settings)
    if session is None:
        return tuple(activation.commands)
    commands: list[Command] = []
    for event in held.events:
        if isinstance(event, FastSent) and session.outbound.positions.is_beyond(event.position):
            message, sent_ms = event.message, event.sent_ms
            sent = Delivery(message=message, order=0, qos=event.qos, attempts=1, first_sent_ms=sent_ms, fast_path=True)
            commands += _end_message(held, sent, client_id=client_id, now_ms=now_ms)
    for entry in session.outbound.window:
        payload_kept = session.outbound.window.step(entry.packet_id, OutboundEvent.SESSION_ENDED) is OutboundAction.END
        commands += _end_message(held, entry.delivery, client_id=client_id, now_ms=now_ms, payload_kept=payload_kept)
    for delivery in session.outbound.queue:
        commands += _end_message(held, delivery, client_id=client_id, now_ms=now_ms)
    return (*activation.commands, *commands, *_end_early(held, session, client_id, now_ms))


def session_after(held: Quarantine, *, client_id: ClientId, settings: SessionSettings) -> Session:
    """Returns the session that begins after the quarantined one was dropped."""
    session = Session(client_id=client_id, settings=settings)
    session.outbound.positions = _positions(held, client_id)  # step 8
    return session


def not_quarantined(*, now_ms: int) -> RecordTransition:
    """Returns the ledger row for a restore or drop of a client that is not quarantined."""
    return RecordTransition(
        transition=Transition.REFUSED, time_ms=now_ms, detail="the client is not quarantined: there is nothing to restore or drop"
    )


def _decoded(held: Quarantine, client_id: ClientId, settings: SessionSettings) -> Session | None:
    try:
        return decode_session(held.blob, client_id=client_id, settings=settings)
    except Exception:  # noqa: BLE001 - the begin of the quarantine recorded the reason
        return None


def _positions(held: Quarantine, client_id: ClientId) -> Positions:
    """Returns the positions that the session, or the quarantine since then, has handled."""
    if held.handled is None:
        session = _decoded(held, client_id, SessionSettings())
        return Positions() if session is None else session.outbound.positions
    positions = Positions()
    positions.handled.update(held.handled)
    positions.unread.update(dict.fromkeys(held.unread))
    return positions


def _with_positions(held: Quarantine, positions: Positions) -> Quarantine:
    return msgspec.structs.replace(held, handled=tuple(positions.handled.items()), unread=tuple(positions.unread))


def _would_adopt(held: Quarantine, event: FastSent, client_id: ClientId) -> bool:
    """Returns True if the restored session would adopt the message."""
    session = _decoded(held, client_id, SessionSettings())
    if session is None or not session.accepts_fast_sent(event):
        return False
    if not session.outbound.positions.is_beyond(event.position):
        return True  # the session may have it in window or queue
    positions = _positions(held, client_id)
    return positions.is_beyond(event.position) and not positions.is_missing(Position(event.position.partition, event.previous))


def _missed_events(held: Quarantine, session: Session) -> Iterable[Event]:
    """Returns the kept events and the end of the connection. The gateway does not report that end, because the session
    closed it."""
    connection = session.connection
    lost = () if connection is None else (ConnectionLost(connection_id=connection.connection_id, reason=_CLOSED),)
    return (*held.events, *lost)


def _with_event(held: Quarantine, event: GatewayEvent) -> Quarantine:
    events = (*held.events, event)
    size = sum(_EVENT_BYTES + _payload_bytes(kept) for kept in events)
    if size > MAX_KEPT_BYTES:
        raise UnreadableRecord(f"the client is quarantined, and {MAX_KEPT_BYTES} bytes of its device's events are kept already")
    return msgspec.structs.replace(held, events=events)


def _payload_bytes(event: GatewayEvent) -> int:
    match event:
        case PublishReceived(payload=payload) | FastSent(message=Message(payload=payload)):
            return len(payload)
        case _:
            return 0


def _close(connection_id: int, partition: int) -> CloseConnection:
    return CloseConnection(
        connection_id=connection_id,
        partition=partition,
        sequence=LAST_SEQUENCE,
        reason_code=ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
        reason=_CLOSED,
    )


def _drop(held: Quarantine, now_ms: int) -> RecordTransition:
    return RecordTransition(
        transition=Transition.SESSION_ENDED,
        time_ms=now_ms,
        detail=f"dropped from quarantine, begun at {held.since_ms} ms because: {held.error}",
    )


def _dead_letter(message: Message, *, client_id: ClientId, now_ms: int, detail: str) -> DeadLetter:
    dead = with_death(message, queue=client_id, reason=Outcome.QUARANTINED, time_ms=now_ms, exchange=DEAD_LETTERS)
    return DeadLetter(message=dead, reason=Outcome.QUARANTINED, time_ms=now_ms, detail=detail, destination=DEAD_LETTER_TOPIC)


def _end_early(held: Quarantine, session: Session, client_id: ClientId, now_ms: int) -> tuple[Command, ...]:
    """Ends the messages that wait for a CONNECT or for their `deliver-at`: the next session does not know them."""
    aside = (*(early.message for early in session.outbound.routing.early), *session.outbound.scheduled)
    return tuple(
        command for message in aside for command in _end_message(held, unsent(message), client_id=client_id, now_ms=now_ms)
    )


def _end_message(
    held: Quarantine, delivery: Delivery, *, client_id: ClientId, now_ms: int, payload_kept: bool = True
) -> tuple[Command, ...]:
    """Ends a message by rule 4.

    Args:
        payload_kept: False after PUBREC of a QoS 2 message: the client has it, so nothing is left to dead-letter.
    """
    died = NOT_DEAD
    if payload_kept:
        letter = _dead_letter(delivery.message, client_id=client_id, now_ms=now_ms, detail=held.error)
        died = DeadLettering(letters=(letter,))
    return tuple(message_end(delivery, Outcome.QUARANTINED, client_id=client_id, now_ms=now_ms, died=died, detail=held.error))
