"""Quarantine: what becomes of a client whose session cannot be used, so that it stands in nobody else's way.

A client is quarantined when its stored session cannot be decoded, or when the session fails without an event to blame, on a timer
for instance. Such a failure is a mistake of ours or damage. The rules:

 1. Nothing of the session is lost: the blob stays in the state as it is, without a timer. Once, when it happens, a copy of it
    becomes a dead letter with the reason `quarantined`, whose detail says what was wrong and what to do.
 2. The device has no session to talk to: its connection is closed, and so is each new one, with 0x83.
 3. What the device had said until then was acknowledged, so it is kept beside the blob, in order, and applied when the session is
    restored: else a PUBREC or PUBREL would be missing, and a QoS 2 message arrive twice or never. What is over the limit of
    `MAX_KEPT_BYTES` is a dead letter.
 4. Messages end with the outcome `quarantined`: a receipt, and a dead letter in the engine's own topic, whatever a policy says,
    because the policy may be what fails. `inflight replay` sends them again.
 5. `restore` applies what was kept, ends the connection, and is undone if the session fails again. An offline session's expiry
    interval counts anew, since its device could not come back.
 6. `drop` ends the session as its expiry does: what was kept is applied, window and queue leave with `session_ended`, the will is
    published. If that fails, what can still be read leaves by rule 4; of what cannot, the dead letter of rule 1 is all there is.
 7. What a gateway has sent by the fast path (docs/protocol.md, section 7) has one outcome, too. A FastSent that the session would
    adopt is kept by rule 3, and its message is ignored when it is read; one whose message has ended by rule 4 is not kept, and
    none is while the session cannot be read. The session that comes after knows which messages have been dealt with.
"""

import re
from collections.abc import Iterable
from typing import Final, TypeAlias

import msgspec

from state.activation import Activation
from state.commands import ClearThrottle, CloseConnection, Command, DeadLetter, RecordTransition, Transition
from state.dead_letters.dead_letter import NOT_DEAD, DeadLettering, with_death
from state.dead_letters.exchanges import DEAD_LETTER_TOPIC, DEAD_LETTERS
from state.dead_letters.message_end import message_end
from state.dead_letters.refused_record import refuse_message
from state.errors import UNDECODABLE, UnreadableRecord
from state.events import (
    ClientConnected,
    ClientDisconnected,
    ConnectionLost,
    Event,
    FastSent,
    GatewayEvent,
    MessageRefused,
    MessageReturned,
    MessageSubmitted,
    PublishReceived,
    SessionPurged,
)
from state.inbound.inbound import SessionInbound
from state.model import ClientId, Message, Outcome, Position, ReasonCode, Value
from state.outbound.fast_path.positions import Positions
from state.outbound.inflight_window import Delivery
from state.session import Session
from state.session_codec import decode_session
from state.settings import SessionSettings
from state.transitions import OutboundAction, OutboundEvent

MAX_KEPT_BYTES: Final = 16_777_216
"""Of what devices said, in one quarantine: far more than one connection can have under way, and no burden for a state row."""
LAST_SEQUENCE: Final = 2**63 - 1
"""Of a connection's last command. The session may be unreadable, and a connection takes a number once and only higher ones."""
ROW_VERSION: Final = "x-state-row-version"
"""Header of the dead letter that has the blob; no other dead letter with the reason `quarantined` has it."""

_EVENT_BYTES: Final = 64
_ERROR_CHARACTERS: Final = 500
_ADDRESS: Final = re.compile(r"0x[0-9a-fA-F]{6,}")
_TO_DO: Final = (
    "the payload is the client's stored session, which stays in the state. Start a version that can use it, then "
    "`inflight sessions restore CLIENT`; or give it up with `inflight sessions drop CLIENT`"
)
_CLOSED: Final = "the server cannot use this client's session"


EventFromLog: TypeAlias = GatewayEvent | MessageReturned | SessionPurged | MessageSubmitted | MessageRefused
"""What a record of Kafka can be for a session."""


class Quarantine(Value, frozen=True):
    """What is kept of a quarantined client. Persisted: add fields only at the end and with a default.

    row_version, blob: of the state row, as it was. since_ms: when it was quarantined. error: what was wrong, for people.
    events: what the device said since then, oldest first; no ClientConnected.
    handled, unread: as state/outbound/fast_path/positions.py has them, by now; None = as in the blob.
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
    """What `encode_quarantine` was given. Never raises: of damaged bytes the result is that they are all there is."""
    try:
        if data[:1] == _VERSION:
            return _decoder.decode(memoryview(data)[1:])
        error = "the record of the quarantine has another version"
    except UNDECODABLE as damage:
        error = f"the record of the quarantine is damaged: {damage}"
    return Quarantine(row_version=0, blob=data, since_ms=0, error=error)


def error_text(error: Exception, context: str = "the session failed") -> str:
    """For details: the same whenever the same error happens again, so no addresses of objects, and not too long."""
    text = str(error) if isinstance(error, UnreadableRecord) else f"{context}: {error!r}"
    return _ADDRESS.sub("0x…", text)[:_ERROR_CHARACTERS]


def begin(held: Quarantine, *, client_id: ClientId, settings: SessionSettings) -> tuple[Command, ...]:
    """What leaves when a client is quarantined (rules 1 and 2)."""
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
        _letter(stored, client_id=client_id, now_ms=held.since_ms, detail=f"{held.error}; {_TO_DO}"),
    ]
    session = _readable(held, client_id, settings)
    if session is not None and session.connection is not None:
        commands.append(_close(session.connection.connection_id, session.connection.partition))
    return tuple(commands)


def receive(
    held: Quarantine, event: EventFromLog, *, client_id: ClientId, now_ms: int, commands_partitions: int
) -> tuple[Quarantine, tuple[Command, ...]]:
    """An event for a quarantined client (rules 2, 3, 4). Raises UnreadableRecord for one over the limit of rule 3: refuse it.

    commands_partitions: where gateways read. Which of them has the connection is written in the blob only, so all are told.
    """
    if isinstance(event, MessageSubmitted | MessageRefused) and event.position is not None:
        positions = _positions(held, client_id)
        is_new = positions.mark_read(event.position)
        held = _with_positions(held, positions)
        if not is_new:
            return held, ()  # 7
    match event:
        case MessageSubmitted(message=message) | MessageReturned(message=message):
            return held, _ended(held, Delivery(message=message, order=0, qos=message.qos), client_id=client_id, now_ms=now_ms)
        case MessageRefused(message=message, detail=detail):
            return held, refuse_message(message, client_id=client_id, detail=detail, now_ms=now_ms)
        case ClientConnected():
            said = RecordTransition(
                transition=Transition.REFUSED,
                time_ms=now_ms,
                reason_code=ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR,
                detail=f"the client is quarantined: {held.error}",
            )
            return held, (said, _close(event.connection_id, event.commands_partition))
        case SessionPurged():
            detail = "the client is quarantined: drop its session in place of purging it"
            return held, (RecordTransition(transition=Transition.REFUSED, time_ms=now_ms, detail=detail),)
        case ClientDisconnected() | ConnectionLost():
            return _keeping(held, event), ()
        case FastSent() if not _would_adopt(held, event, client_id):
            return held, ()
        case _:
            if isinstance(event, FastSent):
                positions = _positions(held, client_id)
                if positions.is_beyond(event.position):
                    positions.adopt(event.position)
                    held = _with_positions(held, positions)
                    event = msgspec.structs.replace(event, previous=-1)  # judged: messages that have ended since do not count
            known = any(event.connection_id == kept.connection_id for kept in held.events)
            partitions = () if known else range(commands_partitions)
            return _keeping(held, event), tuple(_close(event.connection_id, partition) for partition in partitions)


def restored(
    held: Quarantine, *, client_id: ClientId, settings: SessionSettings, now_ms: int
) -> tuple[Session, tuple[Command, ...]]:
    """The session, and what it does at once (rule 5). Raises UnreadableRecord, and whatever a session can fail with."""
    session = decode_session(held.blob, client_id=client_id, settings=settings)
    if session.offline_since_ms is not None:
        session.offline_since_ms = now_ms
    commands = session.handle_all(_all_that_happened(held, session), now_ms=now_ms)
    session.outbound.positions = _positions(held, client_id)  # 7
    said = RecordTransition(
        transition=Transition.RESTORED, time_ms=now_ms, detail=f"quarantined at {held.since_ms} ms because: {held.error}"
    )
    return session, (said, *commands)


def not_restored(held: Quarantine, error: str, *, now_ms: int) -> tuple[Quarantine, tuple[Command, ...]]:
    """The attempt has failed: the quarantine goes on, with the newest error."""
    said = RecordTransition(transition=Transition.QUARANTINED, time_ms=now_ms, detail=f"not restored: {error}")
    return msgspec.structs.replace(held, error=error), (said,)


def dropped(held: Quarantine, *, client_id: ClientId, settings: SessionSettings, now_ms: int) -> tuple[Command, ...]:
    """The end of the session of a quarantined client (rule 6). Raises as `restored` does; then `given_up` is left."""
    session = decode_session(held.blob, client_id=client_id, settings=settings)
    session.session_expiry_interval_s = 0
    commands = session.handle_all(_all_that_happened(held, session), now_ms=now_ms)
    return (_drop(held, now_ms), *commands)


def given_up(held: Quarantine, *, client_id: ClientId, settings: SessionSettings, now_ms: int) -> tuple[Command, ...]:
    """The same for a session that fails even at its end (rule 6)."""
    activation = Activation(client_id, now_ms, settings)
    activation.add(_drop(held, now_ms))
    for event in held.events:
        if isinstance(event, PublishReceived):  # acknowledged, and nobody can say any more whether it is a repetition
            SessionInbound.forward(event, activation)
    activation.add(ClearThrottle())
    session = _readable(held, client_id, settings)
    if session is None:
        return tuple(activation.commands)
    ended: list[Command] = []
    for event in held.events:
        if isinstance(event, FastSent) and session.outbound.positions.is_beyond(event.position):
            message, sent_ms = event.message, event.sent_ms
            sent = Delivery(message=message, order=0, qos=event.qos, attempts=1, first_sent_ms=sent_ms, fast_path=True)
            ended += _ended(held, sent, client_id=client_id, now_ms=now_ms)
    for entry in session.outbound.window:
        payload_kept = session.outbound.window.step(entry.packet_id, OutboundEvent.SESSION_ENDED) is OutboundAction.END
        ended += _ended(held, entry.delivery, client_id=client_id, now_ms=now_ms, payload_kept=payload_kept)
    for delivery in session.outbound.queue:
        ended += _ended(held, delivery, client_id=client_id, now_ms=now_ms)
    return (*activation.commands, *ended)


def session_after(held: Quarantine, *, client_id: ClientId, settings: SessionSettings) -> Session:
    """The one that begins when the quarantined one has been dropped."""
    session = Session(client_id=client_id, settings=settings)
    session.outbound.positions = _positions(held, client_id)  # 7
    return session


def not_quarantined(*, now_ms: int) -> RecordTransition:
    """The answer to a restore or drop of a client that is in no need of it."""
    return RecordTransition(
        transition=Transition.REFUSED, time_ms=now_ms, detail="the client is not quarantined: there is nothing to restore or drop"
    )


def _readable(held: Quarantine, client_id: ClientId, settings: SessionSettings) -> Session | None:
    try:
        return decode_session(held.blob, client_id=client_id, settings=settings)
    except Exception:  # noqa: BLE001 - the reason has been said when it was quarantined
        return None


def _positions(held: Quarantine, client_id: ClientId) -> Positions:
    """How far the messages of the client have been handled, by its session or since."""
    if held.handled is None:
        session = _readable(held, client_id, SessionSettings())
        return Positions() if session is None else session.outbound.positions
    positions = Positions()
    positions.handled.update(held.handled)
    positions.unread.update(dict.fromkeys(held.unread))
    return positions


def _with_positions(held: Quarantine, positions: Positions) -> Quarantine:
    return msgspec.structs.replace(held, handled=tuple(positions.handled.items()), unread=tuple(positions.unread))


def _would_adopt(held: Quarantine, event: FastSent, client_id: ClientId) -> bool:
    """Whether the session, restored, has to hear of it."""
    session = _readable(held, client_id, SessionSettings())
    if session is None or not session.accepts_fast_sent(event):
        return False
    if not session.outbound.positions.is_beyond(event.position):
        return True  # the session may have it in window or queue
    positions = _positions(held, client_id)
    return positions.is_beyond(event.position) and positions.handled_in(event.position.partition) >= event.previous


def _all_that_happened(held: Quarantine, session: Session) -> Iterable[Event]:
    """What was kept, and the end of the connection, which nobody else tells: a gateway is silent after CloseConnection."""
    connection = session.connection
    lost = () if connection is None else (ConnectionLost(connection_id=connection.connection_id, reason=_CLOSED),)
    return (*held.events, *lost)


def _keeping(held: Quarantine, event: GatewayEvent) -> Quarantine:
    events = (*held.events, event)
    size = sum(_EVENT_BYTES + _payload_bytes(kept) for kept in events)
    if size > MAX_KEPT_BYTES:
        raise UnreadableRecord(f"the client is quarantined, and {MAX_KEPT_BYTES} bytes of what its device said are kept")
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


def _letter(message: Message, *, client_id: ClientId, now_ms: int, detail: str) -> DeadLetter:
    dead = with_death(message, queue=client_id, reason=Outcome.QUARANTINED, time_ms=now_ms, exchange=DEAD_LETTERS)
    return DeadLetter(message=dead, reason=Outcome.QUARANTINED, time_ms=now_ms, detail=detail, destination=DEAD_LETTER_TOPIC)


def _ended(
    held: Quarantine, delivery: Delivery, *, client_id: ClientId, now_ms: int, payload_kept: bool = True
) -> tuple[Command, ...]:
    """Rule 4. payload_kept: False once the client has taken a QoS 2 message over (PUBREC), and nothing is left to dead-letter."""
    died = NOT_DEAD
    if payload_kept:
        letter = _letter(delivery.message, client_id=client_id, now_ms=now_ms, detail=held.error)
        died = DeadLettering(letters=(letter,))
    return tuple(message_end(delivery, Outcome.QUARANTINED, client_id=client_id, now_ms=now_ms, died=died, detail=held.error))
