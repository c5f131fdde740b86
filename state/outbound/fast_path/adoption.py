"""Adopts messages that a gateway has sent by the fast path: FastSent enters them into the session.

1. A FastSent behind a missing one is ignored. The append of the missing one has failed, so the gateway has written neither
   message. Both come from `inflight.messages`. It is missing if it is not handled, or waits in the queue. Under a grant that is
   said of all messages up to `previous`, without one of the message at `previous` alone.
2. A message that is not handled yet enters the window as sent, with the packet id and QoS of the FastSent. It is ignored when it
   is read later.
3. A message that the session read first and has in its window keeps its place, and continues under that id and QoS. One from the
   queue becomes the newest of the window. The gateway drops the session's own command to send it.
4. A message that has left the session is ignored.
5. At QoS 0 the message ends at once.

The session decides which FastSent count (state/session.py): those of the newest connection, even after its end.
"""

from state.activation import Activation
from state.commands import Transition
from state.connection import SessionConnection
from state.errors import SessionMisuse
from state.events import FastSent
from state.model import Outcome, Position, QoS
from state.outbound.admission import new_delivery
from state.outbound.collapsing import finish_replaced, replaced_by
from state.outbound.inflight_window import Delivery, InflightEntry
from state.outbound.outbound import SessionOutbound
from state.outbound.retransmission import give_attempt_back
from state.transitions import OutboundAction, OutboundEvent


def adopt(outbound: SessionOutbound, event: FastSent, connection: SessionConnection | None, activation: Activation) -> None:
    """Adopts the message of a FastSent.

    Args:
        connection: The connection of the event; None = it is over.

    Raises:
        SessionMisuse: Another message has the packet id.
    """
    _note_for_grant(outbound, event, connection, activation)
    if _is_behind_missing(outbound, event):  # step 1
        return
    if outbound.positions.is_beyond(event.position):
        _adopt_new(outbound, event, connection, activation)  # step 2
        return
    entry = outbound.window.at(event.position)
    if entry is not None:  # step 3
        _adopt_from_window(outbound, entry, event, connection, activation)
        return
    waiting = outbound.queue.at(event.position)
    if waiting is not None:  # step 3
        _check_id(outbound, event)
        outbound.queue.remove([waiting])
        waiting.attempts += 1
        _enter(outbound, waiting, event, connection, activation)


def _is_behind_missing(outbound: SessionOutbound, event: FastSent) -> bool:
    previous = Position(event.position.partition, event.previous)
    if outbound.positions.is_missing(previous):
        return True
    if event.is_granted:
        return outbound.queue.has_unsent_up_to(previous)
    return outbound.queue.at(previous) is not None


def _note_for_grant(
    outbound: SessionOutbound, event: FastSent, connection: SessionConnection | None, activation: Activation
) -> None:
    """Stores what the next grant says about this FastSent, whether it is adopted or not, and that the gateway sends."""
    if event.packet_id:
        outbound.packet_ids.last_fast = event.packet_id
    if connection is not None:
        outbound.backlog.note_fast_sent(activation)
    path = None if connection is None else connection.fast_path
    if path is not None and path.opened_after is not None and path.opened_after.partition == event.position.partition:
        path.adopted = max(path.adopted, event.position.offset)
        path.since_grant += 1


def _adopt_new(outbound: SessionOutbound, event: FastSent, connection: SessionConnection | None, activation: Activation) -> None:
    _check_id(outbound, event)
    message = event.message
    outbound.positions.adopt(event.position, is_granted=event.is_granted)
    if event.is_granted:
        activation.fast_path.handled.add(event.position)
    if event.explicit_id and not outbound.recent_ids.contains(message.message_id):
        outbound.recent_ids.remember(message.message_id)
    if message.routing is not None:
        outbound.routing.marks.sent_by_gateway(message.routing.source, message.routing.mark, message.message_id)
    delivery = new_delivery(outbound, message)
    delivery.attempts = 1
    activation.record(Transition.ACCEPTED, message.message_id, time_ms=message.accepted_ms)
    _enter(outbound, delivery, event, connection, activation)
    if message.headers:
        finish_replaced(delivery, outbound.queue.remove(replaced_by(outbound, message, connection)), activation)


def _adopt_from_window(
    outbound: SessionOutbound, entry: InflightEntry, event: FastSent, connection: SessionConnection | None, activation: Activation
) -> None:
    _check_id(outbound, event)
    index, window = outbound.window.index_of(entry), outbound.window
    action = window.step(entry.packet_id, OutboundEvent.FAST_SENT)
    assert action is OutboundAction.MOVE
    _enter(outbound, entry.delivery, event, connection, activation)
    if event.qos != QoS.AT_MOST_ONCE:
        window.move_newest(index)
    elif connection is not None:
        outbound.slot_freed(connection, activation.now_ms)


def _enter(
    outbound: SessionOutbound, delivery: Delivery, event: FastSent, connection: SessionConnection | None, activation: Activation
) -> None:
    """Enters the message as sent: the first transmission, and the newest of the window. QoS 0 enters nothing.

    The wait for the acknowledgement counts from now. After a standstill of the engine the acknowledgement may be in the log
    behind this event. It must be read before a resend or the end of the connection.
    """
    message, now_ms = delivery.message, activation.now_ms
    delivery.qos, delivery.position, delivery.fast_path = event.qos, None, True
    delivery.first_sent_ms = sent_ms = min(max(event.sent_ms, message.accepted_ms), now_ms)
    if event.qos != QoS.AT_MOST_ONCE:
        action = outbound.window.begin(event.packet_id, delivery, now_ms, connection_id=event.connection_id)
        assert action is OutboundAction.SEND_PUBLISH
    activation.record(
        Transition.FAST_SENT,
        message.message_id,
        packet_id=event.packet_id or None,
        attempt=delivery.transmissions,
        time_ms=sent_ms,
    )
    if event.qos == QoS.AT_MOST_ONCE:  # step 5
        activation.finish(delivery, Outcome.SENT, logged_ms=event.logged_ms)
    elif connection is None:
        give_attempt_back(outbound, event.packet_id, event.connection_id)


def _check_id(outbound: SessionOutbound, event: FastSent) -> None:
    if event.packet_id in outbound.window or event.packet_id in outbound.abandoned:
        raise SessionMisuse(f"a gateway used packet id {event.packet_id} for two messages")
