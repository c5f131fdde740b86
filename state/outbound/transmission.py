"""Sends messages for the first time, from the backend or the queue to the client, as many as the window has slots.

A message leaves the session instead of being sent if it has used up its attempts, exceeds the client's Maximum Packet Size, or no
longer fits in a record of Kafka. This holds for retransmissions too (state/outbound/retransmission.py). One that exceeds the size
for a member of a shared subscription may go to another member.

A session reads ahead: it gives the gateway more messages than the wire has slots, and the gateway writes them as the client
acknowledges. Otherwise a long queue would need a micro-batch for each window (docs/decisions/0054-bursts.md).

1. Only a client that keeps up gets so many: `READ_AHEAD_BYTES` while at most half of the wire's slots have messages from before
   this activation. If it has acknowledged half as many messages as the wire has slots, it gets eight times as much as that was,
   so that it is busy until the next activation. The backlog of a slow one stays in the queue, where it can be cancelled, and
   overtaken by higher priorities.
2. A message that may expire or has a collapse key is not read ahead, nor one behind it. If messages of several priorities wait,
   none is read ahead.
3. At most `prefetch` messages are read ahead, and `MAX_READ_AHEAD_BYTES`. A client with `max_send_rate` gets none.
4. What the gateway may be sending by the fast path is left to it while it leads (state/outbound/backlog.py, rule 4).
"""

from typing import Final

from state.activation import Activation
from state.commands import Transition
from state.connection import SessionConnection
from state.model import Message, Outcome, QoS
from state.outbound.inflight_window import Delivery
from state.outbound.outbound import SessionOutbound
from state.outbound.packet_size import publish_packet_bytes
from state.outbound.routing import routed
from state.records.scheduling import collapse_key
from state.transitions import OutboundAction

READ_AHEAD_BYTES: Final = 16_384
"""Size of what is read ahead for a client at first: 10,000 devices at once fit in a gateway's memory limit."""
MAX_READ_AHEAD_BYTES: Final = 1_048_576
"""Size of what the gateway has at most beyond the wire's slots."""
_BUSY_UNTIL_NEXT: Final = 8
"""How much more than it has acknowledged a client gets: a page grows by this factor from one activation to the next."""
_RECORD_BYTES: Final = 2_048
"""Bytes that the record of a PUBLISH takes at most beside the packet: the message id above all."""


def fill(outbound: SessionOutbound, connection: SessionConnection | None, activation: Activation) -> None:
    """Sends from the queue in its order while there are messages and slots, and the rate allows it; QoS 0 needs no slot. Call it
    after `drop_expired`.

    QoS 0 passes a queue that is blocked by a full window or a backoff. Nothing leaves while an expired or given-up message waits
    for the fast path to close, because the others would have to pass it.
    """
    if connection is None or activation.fast_path.waits_for_fence:
        return
    queue, now_ms = outbound.queue, activation.now_ms
    is_left = _is_left_to_gateway(outbound, connection, now_ms)
    while queue and not is_left and outbound.may_dequeue(connection, now_ms):
        send(outbound, queue.pop(), connection, activation)
    if queue and not is_left:
        _read_ahead(outbound, connection, activation)
    if not is_left:
        for delivery in queue.pop_qos0(outbound.tokens(now_ms)):
            send(outbound, delivery, connection, activation)


def _is_left_to_gateway(outbound: SessionOutbound, connection: SessionConnection, now_ms: int) -> bool:
    """Returns True if the gateway leads and may be sending the next message, and so all that wait (grants.py, rule 2)."""
    first = outbound.queue.first
    return first is not None and outbound.leaves_to_gateway(first, connection, now_ms)


def _read_ahead(outbound: SessionOutbound, connection: SessionConnection, activation: Activation) -> None:
    """Sends from the queue what the gateway may hold until the wire has slots."""
    now_ms = activation.now_ms
    if outbound.rate is not None or outbound.blocked(now_ms):
        return
    left_bytes = _read_ahead_bytes(outbound, connection, activation)
    while (delivery := outbound.queue.first) is not None and outbound.read_ahead_quota(connection) > 0:
        if delivery.expires_at_ms is not None or collapse_key(delivery.message) is not None:  # rule 2
            return
        left_bytes -= delivery.size_bytes
        if left_bytes < 0:
            return
        send(outbound, outbound.queue.pop(), connection, activation)


def _read_ahead_bytes(outbound: SessionOutbound, connection: SessionConnection, activation: Activation) -> int:
    """Returns how much more the gateway may get (rules 1 and 3), in bytes."""
    slots = outbound.wire_quota(connection)
    oldest = tuple(outbound.window.oldest(slots // 2 + 1))
    is_drained = len(oldest) <= slots // 2 or oldest[-1].delivery.first_sent_ms == activation.now_ms
    wanted = READ_AHEAD_BYTES if is_drained else 0
    if 2 * activation.acknowledged >= slots:
        wanted = max(wanted, _BUSY_UNTIL_NEXT * activation.acknowledged_bytes)
    if not wanted:
        return 0
    return min(wanted, MAX_READ_AHEAD_BYTES) - sum(entry.delivery.size_bytes for entry in outbound.window.beyond(slots))


def send(outbound: SessionOutbound, delivery: Delivery, connection: SessionConnection, activation: Activation) -> None:
    """Transmits a message for the first time.

    At QoS 1 and 2 it has DUP 0 and a new packet id [MQTT-4.3.2-1] [MQTT-4.3.2-2] [MQTT-4.3.3-1] [MQTT-4.3.3-2]. At QoS 0 this is
    the only transmission, without an id [MQTT-2.2.1-2] [MQTT-4.3.1-1].
    """
    qos = delivery.qos
    if finished_over_limit(outbound, delivery, connection, qos, activation):
        return
    count_attempt(delivery, activation.now_ms)
    if outbound.rate is not None:
        outbound.rate.spend(activation.now_ms)
    if qos == QoS.AT_MOST_ONCE:
        activation.publish(connection, delivery, transition=Transition.SENT, packet_id=0, qos=qos, dup=False)
        activation.finish(delivery, Outcome.SENT)
        return
    packet_id = outbound.packet_ids.allocate(outbound.window, outbound.abandoned)
    action = outbound.window.begin(packet_id, delivery, activation.now_ms, connection_id=connection.connection_id)
    assert action is OutboundAction.SEND_PUBLISH
    activation.publish(connection, delivery, transition=Transition.SENT, packet_id=packet_id, qos=qos, dup=False)


def count_attempt(delivery: Delivery, now_ms: int) -> None:
    """Counts a transmission that is about to happen."""
    delivery.attempts += 1
    if delivery.first_sent_ms is None:
        delivery.first_sent_ms = now_ms


def lost_connections(delivery: Delivery) -> str:
    """Describes for people how often the client has lost its connection over the message."""
    return f"lost {delivery.crashes} connection{'' if delivery.crashes == 1 else 's'}"


def finished_over_limit(
    outbound: SessionOutbound, delivery: Delivery, connection: SessionConnection, qos: QoS, activation: Activation
) -> bool:
    """Finishes a message that must not be sent (again). Returns True if it did."""
    message = delivery.message
    if outbound.attempts_used_up(delivery):
        detail = f"not acknowledged in {delivery.transmissions} attempt{'' if delivery.transmissions == 1 else 's'}"
        if outbound.crashes_used_up(delivery):
            detail += f"; the client got it and {lost_connections(delivery)} (crash_limit)"
        if delivery.last_refusal:
            detail += f"; the last refusal had reason code 0x{delivery.last_refusal:02X}"
        activation.finish(delivery, Outcome.DELIVERY_LIMIT, reason_code=delivery.last_refusal, detail=detail)
        return True
    if too_large := _fault_of_record(message, outbound.settings.max_record_bytes):
        activation.finish(delivery, Outcome.TOO_LARGE, detail=too_large)
        return True
    limit_bytes = connection.maximum_packet_size_bytes
    if limit_bytes is None:
        return False
    size_bytes = publish_packet_bytes(
        message, qos=qos, protocol_version=connection.protocol_version, expires=message.expires_at_ms is not None
    )
    if size_bytes <= limit_bytes:
        return False
    detail = f"the PUBLISH takes {size_bytes} bytes, the client's Maximum Packet Size is {limit_bytes}"  # [MQTT-3.1.2-25]
    if routed.suits_another_member(delivery, activation.client_id):
        routed.give_back(outbound, delivery, detail, activation, is_too_large=True)
        return True
    activation.finish(delivery, Outcome.TOO_LARGE, detail=detail)
    return True


def _fault_of_record(message: Message, max_record_bytes: int) -> str:
    """Returns why the PUBLISH fits in no record, for people; empty if it does.

    Only a message that was accepted before the limit was lowered is so large.
    """
    if not max_record_bytes or 2 * len(message.payload) <= max_record_bytes:
        return ""
    size = publish_packet_bytes(message, qos=QoS.EXACTLY_ONCE, protocol_version=5, expires=True) + _RECORD_BYTES
    if size <= max_record_bytes:
        return ""
    return f"the record of the PUBLISH may take {size} bytes, and {max_record_bytes} are allowed now (engine.max_record_bytes)"
