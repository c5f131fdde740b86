"""Ends messages without an acknowledgement: a message expires in the queue, or the session ends.

A message that a gateway may be sending by the fast path does not end before the path is closed (protocol.md, section 7).
"""

from typing import Final

from state.activation import Activation
from state.connection import SessionConnection
from state.model import Outcome
from state.outbound.backlog import Backlog
from state.outbound.cancellation import cancel_fenced, unsent
from state.outbound.inflight_window import Delivery
from state.outbound.outbound import SessionOutbound
from state.outbound.routing import routed
from state.settings import Overflow
from state.transitions import OutboundAction, OutboundEvent

_ENDED: Final = "the session has ended"
_PAYLOAD_KEPT: Final = {OutboundAction.END: True, OutboundAction.END_RECEIVED: False}


def drop_expired(outbound: SessionOutbound, connection: SessionConnection | None, activation: Activation) -> None:
    """Ends messages that expired while they waited [MQTT-3.3.2-5], or that were cancelled. A message that was sent once does not
    expire [MQTT-4.3.3-7]."""
    queue = outbound.queue
    expired, wait_for_fence = queue.expired(activation.now_ms), False
    if connection is not None and connection.fence is not None:
        may_be_sent = [delivery for delivery in queue if connection.may_be_sending(delivery.position, delivery.message)]
        wait_for_fence = any(
            outbound.attempts_used_up(delivery) or delivery.expired(activation.now_ms) for delivery in may_be_sent
        )
        expired = [delivery for delivery in expired if not connection.may_be_sending(delivery.position, delivery.message)]
    activation.fast_path.waits_for_fence = wait_for_fence
    for delivery in queue.remove(expired):
        activation.finish(delivery, Outcome.EXPIRED)
    if outbound.cancels:
        cancel_fenced(outbound, connection, activation)


def drop_above_limit(outbound: SessionOutbound, connection: SessionConnection | None, activation: Activation) -> None:
    """Applies the limits of the queue after the fence had suspended them, or when lower ones hold (backlog.py, rule 3)."""
    if activation.limits_lowered and connection is not None and connection.fence is not None:
        connection.fence.over_limit |= outbound.queue.is_overfull
    elif activation.fast_path.fence_lifted or activation.limits_lowered:
        detail = "dropped from a full queue when the fast path was closed"
        if activation.limits_lowered:
            detail = "dropped from a queue that was too long when the client stood still (progress_timeout)"
        newest_first = outbound.settings.overflow is Overflow.REJECT
        for delivery in outbound.queue.trim(newest_first=newest_first):
            activation.finish(delivery, Outcome.MAXLEN, detail=detail)


def end(outbound: SessionOutbound, activation: Activation, *, with_scheduled: bool, sent_before_ms: int | None = None) -> None:
    """Ends everything in window and queue with `session_ended`, or gives it back to the group of its shared subscription.

    Args:
        with_scheduled: Ends what waits for its `deliver-at` too.
        sent_before_ms: What names the client and got into Kafka from this time on is of the next session; None = nothing is.
    """
    for entry in outbound.window:
        action = outbound.window.step(entry.packet_id, OutboundEvent.SESSION_ENDED)
        if routed.goes_back(entry.delivery, action):
            routed.give_back(outbound, entry.delivery, _ENDED, activation)
            continue
        activation.finish(entry.delivery, Outcome.SESSION_ENDED, packet_id=entry.packet_id, payload_kept=_PAYLOAD_KEPT[action])
    waiting = outbound.queue.remove([delivery for delivery in outbound.queue if not _is_of_next(delivery, sent_before_ms)])
    if with_scheduled:
        waiting += [unsent(message) for message in outbound.scheduled.pop_all(sent_before_ms)]
    for delivery in waiting:
        if routed.goes_back(delivery):
            routed.give_back(outbound, delivery, _ENDED, activation)
        else:
            activation.finish(delivery, Outcome.SESSION_ENDED)
    outbound.cancels.clear()
    outbound.backlog = Backlog()
    outbound.apply_limits()
    outbound.abandoned.end()
    outbound.subscriptions.clear()
    outbound.end_backoff()


def _is_of_next(delivery: Delivery, sent_before_ms: int | None) -> bool:
    message = delivery.message
    return sent_before_ms is not None and message.routing is None and message.accepted_ms >= sent_before_ms
