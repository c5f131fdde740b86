"""Admits messages that come from a backend or return as dead letters.

1. A repetition of a recently accepted message is a duplicate, and ends here.
2. A message whose time to live is over has expired.
3. A message with an empty queue before it is sent at once. QoS 0 for a connected client only follows messages that leave the
   queue in this activation. Where it cannot wait for them, they leave before it.
4. Every other message is queued. QoS 0 for an offline client is queued only with `mqueue_store_qos0`.
5. A full queue drops the message of the lowest rank, the new one included (`overflow = drop_oldest`; ranks: message_queue.py), or
   refuses the new message (`reject`). Before that, slots that were freed earlier in the activation are filled: no message is lost
   while there is a slot for one.
6. Rules 2 and 5 are suspended, and the queue grows, while a gateway may be sending messages by the fast path.
7. A message that is accepted replaces those with the same collapse key that wait in the queue (state/outbound/collapsing.py).
8. A message with `deliver-at` in the future waits aside (state/outbound/scheduled.py). The other rules hold when it is due.

QoS here is `Delivery.qos`: the message's, lowered by the client's subscriptions at the time of acceptance. That of a routed
message is decided before it is submitted (state/outbound/routing/routed.py).
"""

from state.activation import Activation
from state.commands import Transition
from state.connection import SessionConnection
from state.dead_letters.dead_letter import return_id
from state.events import MessageRefused, MessageReturned, MessageSubmitted
from state.model import Message, Outcome, Position, QoS
from state.outbound.cancellation import unsent
from state.outbound.collapsing import finish_replaced, replaced_by, take_place
from state.outbound.endings import drop_expired
from state.outbound.inflight_window import Delivery
from state.outbound.outbound import SessionOutbound
from state.outbound.transmission import fill, send
from state.records.messages import message_bytes
from state.records.scheduling import collapse_key, deliver_at_ms, rfc_3339
from state.settings import Overflow


def submit(
    outbound: SessionOutbound, event: MessageSubmitted, connection: SessionConnection | None, activation: Activation
) -> bool:
    """Admits a message of a backend.

    Its id is remembered only after acceptance. A backend that sends a refused message again intends a new delivery.

    Returns:
        True if the session accepted the message: it was sent, has expired or waits.
    """
    message, message_id = event.message, event.message.message_id
    if event.explicit_id and outbound.recent_ids.contains(message_id):  # step 1
        activation.finish(unsent(message), Outcome.DUPLICATE)
        return False
    activation.record(Transition.ACCEPTED, message_id)
    due_ms = deliver_at_ms(message) if message.headers else None
    if due_ms is not None and due_ms > activation.now_ms:  # step 8
        accepted = _schedule(outbound, message, due_ms, activation)
    else:
        accepted = _admit(outbound, new_delivery(outbound, message, event.position), connection, activation)
    if accepted and event.explicit_id:
        activation.fast_path.new_digests.append(outbound.recent_ids.remember(message_id))
    return accepted


def admit_due(outbound: SessionOutbound, connection: SessionConnection | None, activation: Activation) -> bool:
    """Admits the messages whose `deliver-at` has come. Returns True if the session accepted one, as in `submit`."""
    accepted = False
    for message in outbound.scheduled.pop_due(activation.now_ms):
        delivery = new_delivery(outbound, message, since_ms=deliver_at_ms(message))
        accepted |= _admit(outbound, delivery, connection, activation)
    return accepted


def accept_returned(
    outbound: SessionOutbound, event: MessageReturned, connection: SessionConnection | None, activation: Activation
) -> bool:
    """Admits a dead letter that was routed to this queue. After deduplication it is treated like any message.

    Returns:
        True if the session accepted the message, as in `submit`.
    """
    delivery = new_delivery(outbound, event.message)
    history = event.message.history
    if event.return_id or history is None:  # step 1
        is_duplicate = outbound.recent_ids.contains(return_ := event.return_id or event.message.message_id)
        if not is_duplicate:
            activation.fast_path.new_digests.append(outbound.recent_ids.remember(return_))
    else:
        is_duplicate = not outbound.returns.admit(return_id(event.message), history.last_time_ms)
    if is_duplicate:
        activation.finish(delivery, Outcome.DUPLICATE)
        return False
    came_from = "" if history is None else f"{history.deaths[0].reason} in the queue of {history.deaths[0].queue}"
    activation.record(Transition.RETURNED, event.message.message_id, detail=came_from)
    return _admit(outbound, delivery, connection, activation, replaces=False)


def refuse(outbound: SessionOutbound, event: MessageRefused, activation: Activation) -> None:
    """Ends a message that breaks the contract of `inflight.messages`."""
    activation.finish(new_delivery(outbound, event.message), Outcome.INVALID, detail=event.detail)


def new_delivery(
    outbound: SessionOutbound, message: Message, position: Position | None = None, *, since_ms: int | None = None
) -> Delivery:
    """Makes the delivery of a message that the session accepts now.

    Args:
        position: See Delivery.
        since_ms: From when the policy's time to live counts; None = from when Kafka stored the message.
    """
    outbound.next_order += 1
    ttl_ms = outbound.settings.policy.message_ttl_ms
    # A time to live of 0 is recognised by its end (`Delivery.expired`).
    ttl_ends_ms = None if ttl_ms is None else (message.accepted_ms if not ttl_ms or since_ms is None else since_ms) + ttl_ms
    return Delivery(
        message=message,
        qos=message.qos if message.routing is not None else outbound.subscriptions.capped_qos(message.topic, message.qos),
        order=outbound.next_order,
        queue_ttl_ends_ms=ttl_ends_ms,
        position=position,
    )


def _admit(
    outbound: SessionOutbound,
    delivery: Delivery,
    connection: SessionConnection | None,
    activation: Activation,
    *,
    replaces: bool = True,
) -> bool:
    """Sends, queues or ends a message.

    Args:
        replaces: Rule 7 applies.

    Returns:
        False if the queue had no room for the message, or if it was QoS 0 for an offline client and is not stored.
    """
    qos, now_ms = delivery.qos, activation.now_ms
    if qos == QoS.AT_MOST_ONCE:
        nothing_in_front = (
            connection is not None
            and not _must_follow_queue(outbound, delivery, connection, activation)
            and outbound.tokens(now_ms) != 0
        )
    else:
        nothing_in_front = not outbound.queue and outbound.may_dequeue(connection, now_ms)
    at_once = connection is not None and nothing_in_front and not _is_left_to_gateway(outbound, delivery, connection, now_ms)
    if delivery.expired(now_ms, at_once=at_once):  # step 2
        if connection is not None and connection.may_be_sending(delivery.position, delivery.message):  # step 6
            return _enqueue(outbound, delivery, None, connection, activation)
        activation.finish(delivery, Outcome.EXPIRED)
        return True
    replaced = replaced_by(outbound, delivery.message, connection) if delivery.message.headers and replaces else None
    if connection is not None and at_once:  # step 3
        send(outbound, delivery, connection, activation)
        if replaced:
            finish_replaced(delivery, outbound.queue.remove(replaced), activation)
    elif qos == QoS.AT_MOST_ONCE and not outbound.settings.mqueue_store_qos0:  # step 4
        detail = "" if connection is None else "the client's max_send_rate is used up, and mqueue_store_qos0 is off"
        activation.finish(delivery, Outcome.OFFLINE, detail=detail)
        return False
    else:
        return _enqueue(outbound, delivery, replaced, connection, activation)
    return True


def _is_left_to_gateway(outbound: SessionOutbound, delivery: Delivery, connection: SessionConnection, now_ms: int) -> bool:
    """Returns True if a gateway leads that may be sending the message, and the message can wait for it (backlog.py, rule 4)."""
    if delivery.qos == QoS.AT_MOST_ONCE and not outbound.settings.mqueue_store_qos0:
        return False
    return outbound.leaves_to_gateway(delivery, connection, now_ms)


def _schedule(outbound: SessionOutbound, message: Message, due_ms: int, activation: Activation) -> bool:
    """Puts a message aside until it is due. Returns False if there is no room (state/outbound/scheduled.py, rule 3)."""
    scheduled, settings = outbound.scheduled, outbound.settings
    replaced = scheduled.pop_key(collapse_key(message))
    length, size_bytes = len(scheduled) + 1, scheduled.size_bytes + message_bytes(message)
    is_full = 0 < settings.max_mqueue_len < length or 0 < settings.max_mqueue_bytes < size_bytes
    if is_full and length > 1 and settings.max_mqueue_len:
        for older in replaced:
            scheduled.add(older)
        activation.finish(unsent(message), Outcome.MAXLEN, detail="too many messages wait for their deliver-at")
        return False
    scheduled.add(message)
    activation.record(Transition.SCHEDULED, message.message_id, detail=f"for {rfc_3339(due_ms)}")
    finish_replaced(unsent(message), [unsent(older) for older in replaced], activation)
    return True


def _must_follow_queue(
    outbound: SessionOutbound, delivery: Delivery, connection: SessionConnection, activation: Activation
) -> bool:
    """Returns True if a QoS 0 message for a connected client has to wait for the queue.

    Step 3 of the activation sends from the queue (state/session.py). Where the message cannot wait for it, the queue is sent now:
    if the queue is full or stores no QoS 0, or if the message would expire.
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
    """Returns True if the queue has a QoS 0 message, which needs no slot, or if a slot is free for another one."""
    queue = outbound.queue
    return queue.has_qos0 or (bool(queue) and outbound.may_dequeue(connection, now_ms))


def _enqueue(
    outbound: SessionOutbound,
    delivery: Delivery,
    replaced: list[Delivery] | None,
    connection: SessionConnection | None,
    activation: Activation,
) -> bool:
    """Queues a message by rules 5 and 7. Returns False as in `_admit`."""
    queue, size_bytes = outbound.queue, delivery.size_bytes
    if replaced:
        queue.remove(replaced)
    if queue.would_overflow(size_bytes):
        drop_expired(outbound, connection, activation)
        fill(outbound, connection, activation)
    if queue.would_overflow(size_bytes) and connection is not None and connection.fence is not None:  # step 6
        connection.fence.over_limit = True
    elif not _make_room(outbound, delivery, activation):
        for older in replaced or ():
            queue.put_back(older)
        return False
    if replaced:
        take_place(outbound, delivery, replaced)
        queue.put_back(delivery)
    else:
        queue.append(delivery)
    activation.record(Transition.QUEUED, delivery.message.message_id)
    if replaced:
        finish_replaced(delivery, replaced, activation)
    return True


def _make_room(outbound: SessionOutbound, delivery: Delivery, activation: Activation) -> bool:
    """Makes room for a message. Returns False if it was refused."""
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
