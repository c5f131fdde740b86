"""Applies the client's acknowledgements: PUBACK, PUBREC, PUBCOMP. state/transitions.py says which of them may come when.

A refusal (0x80 or more) ends the exchange here; state/outbound/refusals.py decides what happens to the message.
"""

from typing import Final, TypeAlias, assert_never

import msgspec

from state.activation import Activation
from state.commands import Transition
from state.connection import SessionConnection
from state.dead_letters.message_end import properties_for_receipt
from state.errors import ProtocolViolation
from state.events import PubAckReceived, PubCompReceived, PubRecReceived
from state.model import Message, Outcome, QoS, ReasonCode
from state.outbound.inflight_window import InflightEntry
from state.outbound.outbound import SessionOutbound
from state.outbound.refusals import handle_refusal
from state.outbound.retransmission import leave_on_wire, withdraw
from state.transitions import AbandonedAction, AbandonedEvent, OutboundAction, OutboundEvent

PublishAnswer: TypeAlias = PubAckReceived | PubRecReceived | PubCompReceived

_REFUSED_FROM: Final = 0x80


def acknowledge(outbound: SessionOutbound, event: PublishAnswer, connection: SessionConnection, activation: Activation) -> None:
    """Applies one acknowledgement.

    Raises:
        ProtocolViolation: It is of the wrong kind for its packet id.
    """
    packet_id, reason_code, cause = event.packet_id, event.reason_code, _cause(event)
    if packet_id in outbound.abandoned:
        _acknowledge_abandoned(outbound, event, connection, activation)
        return
    entry = outbound.window.get(packet_id)
    action = outbound.window.step(packet_id, cause)
    if action is OutboundAction.IGNORE or action is OutboundAction.ANSWER_UNKNOWN_PUBREC:
        activation.record(
            Transition.UNKNOWN_ACKNOWLEDGEMENT,
            packet_id=packet_id,
            reason_code=reason_code,
            time_ms=activation.time_of(event.logged_ms),
        )
        if action is OutboundAction.ANSWER_UNKNOWN_PUBREC:
            pubrel_reason = ReasonCode.PACKET_ID_NOT_FOUND if connection.protocol_version >= 5 else ReasonCode.SUCCESS
            activation.pubrel(connection, packet_id, None, reason_code=pubrel_reason)
        return
    assert entry is not None, "the table has no other action for an unknown packet id"
    match action:
        case OutboundAction.PROTOCOL_ERROR:
            raise ProtocolViolation(f"{cause.name} for packet id {packet_id}, which is {entry.phase.name}")
        case OutboundAction.COMPLETE:
            outbound.progressed(activation.now_ms)
            activation.acknowledged += 1
            activation.acknowledged_bytes += entry.delivery.size_bytes
            outbound.slot_freed(connection, activation.now_ms)
            outbound.end_backoff()
            activation.finish(
                entry.delivery, Outcome.DELIVERED, packet_id=packet_id, reason_code=reason_code, logged_ms=event.logged_ms
            )
        case OutboundAction.REFUSE:
            outbound.slot_freed(connection, activation.now_ms)
            assert not isinstance(event, PubCompReceived)
            handle_refusal(outbound, entry, event, activation)
        case _:
            assert action in (OutboundAction.RELEASE, OutboundAction.ANSWER_PUBREL)
            if action is OutboundAction.RELEASE:
                outbound.progressed(activation.now_ms)
            _received(entry, event, activation)
            if not (isinstance(event, PubRecReceived) and event.pubrel_sent):
                activation.pubrel(connection, packet_id, entry.delivery.message.message_id)


def _acknowledge_abandoned(
    outbound: SessionOutbound, event: PublishAnswer, connection: SessionConnection, activation: Activation
) -> None:
    """Applies an acknowledgement of a message that was given up. It is too late for the message, but ends the client's
    exchange."""
    packet_id, cause = event.packet_id, _cause(event)
    action = outbound.abandoned.step(packet_id, AbandonedEvent[cause.name])
    if action is AbandonedAction.PROTOCOL_ERROR:
        raise ProtocolViolation(f"{cause.name} for packet id {packet_id}, whose message was given up")
    activation.record(
        Transition.UNKNOWN_ACKNOWLEDGEMENT,
        packet_id=packet_id,
        reason_code=event.reason_code,
        time_ms=activation.time_of(event.logged_ms),
    )
    if action is AbandonedAction.SETTLE:
        outbound.slot_freed(connection, activation.now_ms)
        return
    assert action is AbandonedAction.SEND_PUBREL
    if not (isinstance(event, PubRecReceived) and event.pubrel_sent):
        activation.pubrel(connection, packet_id, None)


def acknowledge_late(
    outbound: SessionOutbound, event: PublishAnswer, connection: SessionConnection | None, activation: Activation
) -> None:
    """Applies an acknowledgement that the client sent on an earlier connection, if it advances the exchange.

    A gateway answers a PUBREC as soon as it is in the log. The client may then pass the message on and forget the packet id: a
    PUBLISH under it would be a second delivery [MQTT-4.3.3-6].

    Args:
        connection: The present one; None = offline.
    """
    if event.packet_id in outbound.abandoned:
        outbound.abandoned.late_step(event.packet_id, AbandonedEvent[_cause(event).name])
        return
    entry = outbound.window.get(event.packet_id)
    if entry is None or event.connection_id < entry.first_connection_id:  # of an older message with this id
        return
    delivery = entry.delivery
    is_on_wire = connection is not None and entry in outbound.on_wire(connection)
    action = outbound.window.late_step(entry, _cause(event))
    if action is OutboundAction.IGNORE:
        return
    if not delivery.transmissions:
        delivery.attempts = 1  # the end of the connection gave it back, but the message had arrived
    if action is OutboundAction.RELEASE:
        _received(entry, event, activation)
        if connection is not None:
            withdraw(event.packet_id, connection, activation)  # a gateway may still hold back the replay [MQTT-4.3.3-6]
        return
    assert action is OutboundAction.COMPLETE
    if connection is not None:
        if is_on_wire and isinstance(event, PubAckReceived):  # the client will acknowledge the replay again
            leave_on_wire(outbound, event.packet_id, QoS.AT_LEAST_ONCE, connection, activation)
        elif is_on_wire:
            outbound.slot_freed(connection, activation.now_ms)
        else:
            withdraw(event.packet_id, connection, activation)
    activation.finish(
        delivery, Outcome.DELIVERED, packet_id=event.packet_id, reason_code=event.reason_code, logged_ms=event.logged_ms
    )


def _cause(event: PublishAnswer) -> OutboundEvent:
    refused = event.reason_code >= _REFUSED_FROM
    match event:
        case PubAckReceived():
            return OutboundEvent.PUBACK_REFUSED if refused else OutboundEvent.PUBACK
        case PubRecReceived():
            return OutboundEvent.PUBREC_REFUSED if refused else OutboundEvent.PUBREC
        case PubCompReceived():  # 0x92 too: the client has freed the packet id
            return OutboundEvent.PUBCOMP
        case _:
            assert_never(event)


def _received(entry: InflightEntry, event: PublishAnswer, activation: Activation) -> None:
    """Applies PUBREC: the client has the message, so its payload is dropped, and PUBCOMP is awaited from now on.

    The client has it under the session's packet id, so no gateway sends it by the fast path.
    """
    delivery = entry.delivery
    activation.acknowledged_bytes += len(delivery.message.payload)  # the rest counts with PUBCOMP
    entry.sent_ms, entry.timeouts, entry.overdue = activation.now_ms, 0, False
    activation.record(
        Transition.PUBREC,
        delivery.message.message_id,
        packet_id=entry.packet_id,
        reason_code=event.reason_code,
        time_ms=activation.time_of(event.logged_ms, delivery),
    )
    delivery.message = _without_payload(delivery.message)
    delivery.position = None


def _without_payload(message: Message) -> Message:
    """Returns what is needed for the receipt of a message that the client has received."""
    return msgspec.structs.replace(message, payload=b"", properties=properties_for_receipt(message.properties), headers=())
