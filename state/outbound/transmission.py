"""Sends messages for the first time, from the backend or the queue to the client, as many as the window has slots.

A message leaves the session instead of being sent if it has used up its attempts, exceeds the client's Maximum Packet Size, or no
longer fits in a record of Kafka. This holds for retransmissions too (state/outbound/retransmission.py).
"""

from typing import Final

from state.activation import Activation
from state.commands import Transition
from state.connection import SessionConnection
from state.model import Message, Outcome, QoS
from state.outbound.inflight_window import Delivery
from state.outbound.outbound import SessionOutbound
from state.outbound.packet_size import publish_packet_bytes
from state.transitions import OutboundAction

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
    while outbound.queue and outbound.may_dequeue(connection, activation.now_ms):
        send(outbound, outbound.queue.pop(), connection, activation)
    for delivery in outbound.queue.pop_qos0(outbound.tokens(activation.now_ms)):
        send(outbound, delivery, connection, activation)


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
