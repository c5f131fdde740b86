"""Endings that no acknowledgement brings about: a message expires in the queue, or the session ends around it."""

from typing import Final

from state.activation import Activation
from state.model import Outcome
from state.outbound.outbound import Outbound
from state.transitions import OutboundAction, OutboundEvent

_PAYLOAD_KEPT: Final = {OutboundAction.END: True, OutboundAction.END_RECEIVED: False}


def drop_expired(outbound: Outbound, activation: Activation) -> None:
    """Messages whose time ran out while they waited [MQTT-3.3.2-5]; what was sent once does not expire [MQTT-4.3.3-7]."""
    for delivery in outbound.queue.take_expired(activation.now_ms):
        activation.finish(delivery, Outcome.EXPIRED)


def end(outbound: Outbound, activation: Activation) -> None:
    """The session is over: everything in window and queue leaves with `session_ended`."""
    for entry in outbound.window:
        action = outbound.window.step(entry.packet_id, OutboundEvent.SESSION_ENDED)
        activation.finish(entry.delivery, Outcome.SESSION_ENDED, packet_id=entry.packet_id, payload_kept=_PAYLOAD_KEPT[action])
    for delivery in outbound.queue.take_all():
        activation.finish(delivery, Outcome.SESSION_ENDED)
    outbound.owed.end()
    outbound.subscriptions.clear()
    outbound.end_backoff()
