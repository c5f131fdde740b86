"""Sends messages again: on a reconnect (replay) and when an acknowledgement does not come (retry).

A replay sends everything unfinished, in the order of first transmission [MQTT-4.4.0-1] [MQTT-4.6.0-1]. A retry sends what has
waited for `retry_interval`. MQTT 5 forbids it on a live connection, so a stalled connection is closed (state/session.py), unless
the operator chooses otherwise (`retry_mqtt5`). Only messages that a gateway can have written have a running timer.
"""

from typing import Final

from state.activation import Activation
from state.commands import Transition, WithdrawPublish
from state.connection import SessionConnection
from state.model import PacketId, QoS
from state.outbound.inflight_window import InflightEntry
from state.outbound.outbound import SessionOutbound
from state.outbound.retry import retry_wait_ms
from state.outbound.transmission import count_attempt, finished_over_limit, lost_connections
from state.settings import RetryMqtt5, SessionSettings
from state.transitions import OutboundAction, OutboundEvent

_QOS: Final = {OutboundAction.RESEND_QOS_1: QoS.AT_LEAST_ONCE, OutboundAction.RESEND_QOS_2: QoS.EXACTLY_ONCE}
_OVER_LIMIT: Final = {
    OutboundEvent.RETRY_DUE: OutboundEvent.RETRY_OVER_LIMIT,
    OutboundEvent.REPLAY: OutboundEvent.REPLAY_OVER_LIMIT,
}
_RECORDED_AS: Final = {OutboundEvent.RETRY_DUE: Transition.RESENT, OutboundEvent.REPLAY: Transition.REPLAYED}


def replay(outbound: SessionOutbound, connection: SessionConnection, activation: Activation) -> None:
    """Sends everything unfinished again after a reconnect."""
    for entry in outbound.window:
        _resend(outbound, entry, OutboundEvent.REPLAY, connection, activation)
    for packet_id in outbound.abandoned.to_replay():
        activation.pubrel(connection, packet_id, None)


def retry(outbound: SessionOutbound, connection: SessionConnection, activation: Activation) -> None:
    """Sends again what has waited for `retry_interval`. Call it only for a connection on which timers run (`timers_run`)."""
    for entry in outbound.on_wire(connection):
        if _ack_due_ms(entry, outbound.settings) <= activation.now_ms:
            delivery = entry.delivery
            if outbound.attempts_used_up(delivery) and connection.may_be_sending(delivery.position, delivery.message):
                activation.fast_path.waits_for_fence = True
                continue
            entry.timeouts += 1
            _resend(outbound, entry, OutboundEvent.RETRY_DUE, connection, activation)


def timers_run(outbound: SessionOutbound, connection: SessionConnection) -> bool:
    """Returns True if timed resends are allowed. MQTT 5 forbids them on a live connection [MQTT-4.4.0-1]."""
    return connection.protocol_version < 5 or outbound.settings.retry_mqtt5 is RetryMqtt5.TIMER


def note_overdue(outbound: SessionOutbound, connection: SessionConnection, activation: Activation) -> None:
    """Records each acknowledgement that is overdue, once a transmission, on a connection where nothing follows from it."""
    for entry in outbound.on_wire(connection):
        if not entry.overdue and _ack_due_ms(entry, outbound.settings) <= activation.now_ms:
            entry.overdue = True
            activation.record(
                Transition.OVERDUE,
                entry.delivery.message.message_id,
                packet_id=entry.packet_id,
                attempt=entry.delivery.transmissions,
                detail="the client is connected and has not acknowledged it; MQTT 5: sent again when it reconnects (retry_mqtt5)",
            )


def is_stalled(outbound: SessionOutbound, connection: SessionConnection, now_ms: int) -> bool:
    """Returns True if the client has not acknowledged a message for longer than `retry_interval`."""
    return any(_ack_due_ms(entry, outbound.settings) <= now_ms for entry in outbound.on_wire(connection))


def next_ack_due_ms(outbound: SessionOutbound, connection: SessionConnection) -> int | None:
    """Returns when the next awaited acknowledgement becomes overdue; None = none is awaited."""
    on_wire = outbound.on_wire(connection)
    return min((_ack_due_ms(entry, outbound.settings) for entry in on_wire if not entry.overdue), default=None)


def connection_ended(outbound: SessionOutbound, connection: SessionConnection, now_ms: int) -> None:
    """Gives attempts back. An attempt counts only if the client had `retry_interval` to acknowledge it."""
    window, wire_quota = outbound.window, outbound.wire_quota(connection)
    for position, entry in enumerate(window):
        if position < wire_quota and _ack_due_ms(entry, outbound.settings) <= now_ms:
            entry.timeouts += 1
        else:
            give_attempt_back(outbound, entry.packet_id, connection.connection_id)
    outbound.abandoned.connection_ended()


def give_attempt_back(outbound: SessionOutbound, packet_id: PacketId, connection_id: int) -> None:
    """Applies the early end of this connection to an exchange. A PUBREL is no attempt."""
    entry = outbound.window.get(packet_id)
    assert entry is not None, "the caller has just seen it"
    action = outbound.window.step(packet_id, OutboundEvent.CONNECTION_ENDED_EARLY)
    if action is OutboundAction.GIVE_ATTEMPT_BACK:
        # When a late FastSent moves a message of the window, its attempt may have been given back already.
        entry.delivery.attempts = max(0, entry.delivery.attempts - 1)
        entry.given_back_by = connection_id
    else:
        assert action is OutboundAction.IGNORE


def count_crash(outbound: SessionOutbound, connection_id: int, packet_id: PacketId) -> None:
    """Counts a connection that ended while the client had a message and had not answered it. Call it after `connection_ended`.

    Args:
        connection_id: The connection; each counts once. After a takeover its report comes when the next one has begun.
        packet_id: The message, as in ConnectionLost.
    """
    entry = outbound.window.get(packet_id)
    if entry is None or entry.given_back_by != connection_id:
        return
    entry.given_back_by = 0
    action = outbound.window.step(packet_id, OutboundEvent.CLIENT_CRASHED)
    if action is OutboundAction.COUNT_CRASH:
        entry.delivery.crashes += 1
    else:
        assert action is OutboundAction.IGNORE


def _resend(
    outbound: SessionOutbound, entry: InflightEntry, cause: OutboundEvent, connection: SessionConnection, activation: Activation
) -> None:
    """Sends PUBLISH or PUBREL again, or ends a message that may not be sent again.

    Args:
        cause: RETRY_DUE or REPLAY.
    """
    delivery, now_ms = entry.delivery, activation.now_ms
    action = outbound.window.step(entry.packet_id, cause)
    entry.overdue = False
    if action is OutboundAction.RESEND_PUBREL:
        entry.sent_ms = now_ms
        activation.pubrel(connection, entry.packet_id, delivery.message.message_id)
        return
    qos = _QOS[action]
    if finished_over_limit(outbound, delivery, connection, qos, activation):
        _give_up(outbound, entry, _OVER_LIMIT[cause], qos, connection, activation)
        return
    entry.sent_ms = now_ms
    count_attempt(delivery, now_ms)
    activation.publish(  # DUP 1, because it is a repetition [MQTT-3.3.1-1] [MQTT-3.3.1-3]
        connection,
        delivery,
        transition=_RECORDED_AS[cause],
        packet_id=entry.packet_id,
        qos=qos,
        dup=True,
        detail=f"{lost_connections(delivery)} without an answer" if delivery.crashes else "",
    )


def _give_up(
    outbound: SessionOutbound,
    entry: InflightEntry,
    cause: OutboundEvent,
    qos: QoS,
    connection: SessionConnection,
    activation: Activation,
) -> None:
    """Ends the exchange of a message that was finished."""
    action = outbound.window.step(entry.packet_id, cause)
    if action is OutboundAction.WITHDRAW:
        leave_on_wire(outbound, entry.packet_id, qos, connection, activation)
        return
    assert action is OutboundAction.GIVE_UP
    outbound.abandoned.give_up(entry.packet_id, qos, holds_slot=False)
    outbound.slot_freed(connection, activation.now_ms)


def leave_on_wire(
    outbound: SessionOutbound, packet_id: PacketId, qos: QoS, connection: SessionConnection, activation: Activation
) -> None:
    """Ends an exchange whose PUBLISH may be on the wire of this connection.

    An MQTT 5 client counts the PUBLISH until it acknowledges it [MQTT-3.3.4-9].
    """
    quota_before = outbound.wire_quota(connection)
    outbound.abandoned.give_up(packet_id, qos, holds_slot=connection.protocol_version >= 5)
    if outbound.wire_quota(connection) == quota_before:
        outbound.slot_freed(connection, activation.now_ms)
    withdraw(packet_id, connection, activation)


def withdraw(packet_id: PacketId, connection: SessionConnection, activation: Activation) -> None:
    """Tells a gateway that holds back a PUBLISH under this id not to write it."""
    activation.add(
        WithdrawPublish(
            connection_id=connection.connection_id,
            partition=connection.partition,
            sequence=connection.next_sequence(),
            packet_ids=(packet_id,),
        )
    )


def _ack_due_ms(entry: InflightEntry, settings: SessionSettings) -> int:
    # Called for each entry in each activation, so the usual case avoids a call.
    wait_ms = retry_wait_ms(entry.timeouts, settings) if entry.timeouts else settings.retry_interval_ms
    return entry.sent_ms + wait_ms
