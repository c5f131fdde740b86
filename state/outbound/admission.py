"""Admission: what becomes of a message that comes from a backend or returns as a dead letter.

1. A repetition of a message that was taken lately is a duplicate, and goes no further.
2. A message whose time to live is over has expired.
3. A message with nothing in front of it is sent at once. QoS 0 for a connected client has nothing in front of it but messages
   that leave the queue in this activation; where it cannot wait for them, they leave before it.
4. Every other message is queued. QoS 0 for an offline client is not, unless `mqueue_store_qos0`.
5. A full queue gives up what ranks lowest, the new message included (`overflow = drop_oldest`; ranks: message_queue.py), or
   refuses the new message (`reject`), but first slots that were freed earlier in the activation are filled: no message is lost
   while there is a slot for one.
6. Rules 2 and 5 wait, and the queue grows, while a gateway may be sending messages by the fast path.

QoS is here what is left of the message's after the client's subscriptions (`Delivery.qos`), decided when the message comes.
"""

from state.activation import Activation
from state.commands import Transition
from state.connection import SessionConnection
from state.dead_letters.dead_letter import return_id
from state.events import MessageRefused, MessageReturned, MessageSubmitted
from state.model import Message, Outcome, Position, QoS
from state.outbound.endings import drop_expired
from state.outbound.inflight_window import Delivery
from state.outbound.outbound import SessionOutbound
from state.outbound.transmission import fill, send
from state.settings import Overflow


def submit(
    outbound: SessionOutbound, event: MessageSubmitted, connection: SessionConnection | None, activation: Activation
) -> bool:
    """Take a message of a backend. True if the session took it: it was sent, or waits.

    Its id is remembered once it is taken: a backend that sends a refused message again, later, means it.
    """
    delivery, message_id = new_delivery(outbound, event.message, event.position), event.message.message_id
    if event.explicit_id and outbound.recent_ids.contains(message_id):  # 1
        activation.finish(delivery, Outcome.DUPLICATE)
        return False
    activation.record(Transition.ACCEPTED, message_id)
    accepted = _admit(outbound, delivery, connection, activation)
    if accepted and event.explicit_id:
        activation.fast_path.remembered.append(outbound.recent_ids.remember(message_id))
    return accepted


def accept_returned(
    outbound: SessionOutbound, event: MessageReturned, connection: SessionConnection | None, activation: Activation
) -> bool:
    """Take a dead letter that was routed to this queue: like any message from here on, with its history. True: see `submit`."""
    delivery = new_delivery(outbound, event.message)
    history = event.message.history
    if event.return_id or history is None:  # 1
        known = outbound.recent_ids.contains(return_ := event.return_id or event.message.message_id)
        if not known:
            activation.fast_path.remembered.append(outbound.recent_ids.remember(return_))
    else:
        known = not outbound.returns.admit(return_id(event.message), history.last_time_ms)
    if known:
        activation.finish(delivery, Outcome.DUPLICATE)
        return False
    came_from = "" if history is None else f"{history.deaths[0].reason} in the queue of {history.deaths[0].queue}"
    activation.record(Transition.RETURNED, event.message.message_id, detail=came_from)
    return _admit(outbound, delivery, connection, activation)


def refuse(outbound: SessionOutbound, event: MessageRefused, activation: Activation) -> None:
    """A message that breaks the contract of `inflight.messages` ends here."""
    activation.finish(new_delivery(outbound, event.message), Outcome.INVALID, detail=event.detail)


def new_delivery(outbound: SessionOutbound, message: Message, position: Position | None = None) -> Delivery:
    """A message that the session takes now. position: see Delivery."""
    outbound.next_order += 1
    ttl_ms = outbound.settings.policy.message_ttl_ms
    ttl_ends_ms = None if ttl_ms is None else message.accepted_ms + ttl_ms
    return Delivery(
        message=message,
        qos=outbound.subscriptions.capped_qos(message.topic, message.qos),
        order=outbound.next_order,
        queue_ttl_ends_ms=ttl_ends_ms,
        position=position,
    )


def _admit(outbound: SessionOutbound, delivery: Delivery, connection: SessionConnection | None, activation: Activation) -> bool:
    """False: the message is refused, because it finds no place in the full queue or its client offline (QoS 0)."""
    qos, now_ms = delivery.qos, activation.now_ms
    if qos == QoS.AT_MOST_ONCE:
        nothing_in_front = connection is not None and not _must_follow_queue(outbound, delivery, connection, activation)
    else:
        nothing_in_front = not outbound.queue and outbound.may_dequeue(connection, now_ms)
    at_once = connection is not None and nothing_in_front
    if delivery.expired(now_ms, at_once=at_once):  # 2
        if connection is not None and connection.may_be_sending(delivery.position):  # 6
            return _enqueue(outbound, delivery, connection, activation)
        activation.finish(delivery, Outcome.EXPIRED)
    elif connection is not None and at_once:  # 3
        send(outbound, delivery, connection, activation)
    elif qos == QoS.AT_MOST_ONCE and not outbound.settings.mqueue_store_qos0:  # 4
        activation.finish(delivery, Outcome.OFFLINE)
        return False
    else:
        return _enqueue(outbound, delivery, connection, activation)
    return True


def _must_follow_queue(
    outbound: SessionOutbound, delivery: Delivery, connection: SessionConnection, activation: Activation
) -> bool:
    """Whether a QoS 0 message for a connected client goes behind those that step 3 of the activation sends (state/session.py).

    Where it cannot wait for them, those that can leave do so now: in a queue that is full or stores none, and with no time left.
    """
    now_ms, stores = activation.now_ms, outbound.settings.mqueue_store_qos0
    if not _queue_can_send(outbound, connection, now_ms):
        return False
    if stores and not outbound.queue.would_overflow(delivery.size_bytes) and not delivery.expired(now_ms):
        return True
    drop_expired(outbound, connection, activation)
    fill(outbound, connection, activation)
    return stores and _queue_can_send(outbound, connection, now_ms)


def _queue_can_send(outbound: SessionOutbound, connection: SessionConnection, now_ms: int) -> bool:
    """The queue has a message of QoS 0, which needs no slot, or there is a slot for what it has."""
    queue = outbound.queue
    return queue.has_qos0 or (bool(queue) and outbound.may_dequeue(connection, now_ms))


def _enqueue(outbound: SessionOutbound, delivery: Delivery, connection: SessionConnection | None, activation: Activation) -> bool:
    """Rule 5. False: see `_admit`."""
    queue, size_bytes = outbound.queue, delivery.size_bytes
    if queue.would_overflow(size_bytes):
        drop_expired(outbound, connection, activation)
        fill(outbound, connection, activation)
    if queue.would_overflow(size_bytes) and connection is not None and connection.fence is not None:  # 6
        connection.fence.over_limit = True
    elif not _make_room(outbound, delivery, activation):
        return False
    queue.append(delivery)
    activation.record(Transition.QUEUED, delivery.message.message_id)
    return True


def _make_room(outbound: SessionOutbound, delivery: Delivery, activation: Activation) -> bool:
    """False: the queue has no room for it."""
    queue, size_bytes = outbound.queue, delivery.size_bytes
    if outbound.settings.overflow is Overflow.REJECT and queue.would_overflow(size_bytes):
        activation.finish(delivery, Outcome.MAXLEN, detail="the queue is full and refuses new messages (overflow = reject)")
        return False
    for dropped in queue.make_room(delivery):
        if dropped is delivery:
            activation.finish(delivery, Outcome.MAXLEN, detail="the queue is full of messages that rank above it")
            return False
        activation.finish(dropped, Outcome.MAXLEN, detail="dropped from a full queue to make room for a newer message")
    return True
