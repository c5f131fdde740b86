"""Decides what happens to a message that the client has refused with a reason code of 0x80 or more.

 1. A routed message counts as acknowledged, and is not sent again [MQTT-4.4.0-2], to no other member of a group either
    [MQTT-4.8.2-6]. It is a dead letter. Rules 2 to 4 are for messages that a backend has addressed to the client.
 2. NOT_AUTHORIZED, TOPIC_NAME_INVALID, PAYLOAD_FORMAT_INVALID: the same message would be refused again, so it is a dead letter.
 3. QUOTA_EXCEEDED: it returns to its place in the queue, and nothing leaves the queue before the backoff is over.
 4. Any other code: it returns to its place in the queue, and is sent again at once under another packet id.

`delivery_limit` ends a message that is refused again and again.
"""

from typing import Final

from state.activation import Activation
from state.commands import Transition
from state.events import PubAckReceived, PubRecReceived
from state.model import Outcome, ReasonCode
from state.outbound.inflight_window import InflightEntry
from state.outbound.outbound import SessionOutbound
from state.outbound.retry import backoff_wait_ms

_PERMANENT_REFUSALS: Final = frozenset(
    {ReasonCode.NOT_AUTHORIZED, ReasonCode.TOPIC_NAME_INVALID, ReasonCode.PAYLOAD_FORMAT_INVALID}
)
_REASON_CHARACTERS: Final = 200
"""Characters kept of the client's Reason String: enough for people, and too few to fill ledger and dead letters."""


def handle_refusal(
    outbound: SessionOutbound, entry: InflightEntry, event: PubAckReceived | PubRecReceived, activation: Activation
) -> None:
    """Ends the message or returns it to the queue.

    Args:
        entry: The exchange that the refusal has ended.
    """
    delivery, reason_code, reason = entry.delivery, event.reason_code, event.reason[:_REASON_CHARACTERS]
    message_id = delivery.message.message_id
    refused_ms = activation.time_of(event.logged_ms, delivery)
    is_permanent = delivery.message.routing is not None or reason_code in _PERMANENT_REFUSALS
    delivery.last_refusal = reason_code
    # One round of refusals is one step of the backoff, however many messages of the round are refused.
    if not is_permanent and reason_code == ReasonCode.QUOTA_EXCEEDED and not outbound.blocked(activation.now_ms):
        outbound.quota_refusals += 1
        jitter_key = f"{activation.client_id}/{message_id}/{delivery.attempts}"
        wait_ms = backoff_wait_ms(outbound.quota_refusals, outbound.settings.backoff, jitter_key=jitter_key)
        outbound.blocked_until_ms = entry.sent_ms + wait_ms
    next_attempt = "" if is_permanent else _next_attempt(outbound, entry, refused_ms=refused_ms, now_ms=activation.now_ms)
    activation.record(
        Transition.REFUSED,
        message_id,
        packet_id=entry.packet_id,
        attempt=delivery.transmissions,
        reason_code=reason_code,
        detail=": ".join(filter(None, (next_attempt, reason))),
        time_ms=refused_ms,
    )
    if is_permanent:
        outbound.progressed(activation.now_ms)
        detail = f"the client refused it with reason code 0x{reason_code:02X}" + (f": {reason}" if reason else "")
        activation.finish(
            delivery,
            Outcome.REJECTED,
            packet_id=entry.packet_id,
            reason_code=reason_code,
            detail=detail,
            logged_ms=event.logged_ms,
        )
    else:
        outbound.queue.put_back(delivery)


def _next_attempt(outbound: SessionOutbound, entry: InflightEntry, *, refused_ms: int, now_ms: int) -> str:
    """Describes for people when a refused message is sent again.

    Args:
        refused_ms: Time of the ledger row, from which the second number counts.
        now_ms: Time of the activation.
    """
    if outbound.attempts_used_up(entry.delivery):
        return "it was the last attempt"
    throttled = entry.delivery.last_refusal == ReasonCode.QUOTA_EXCEEDED or outbound.blocked(now_ms)
    if outbound.blocked_until_ms is None or not throttled:
        return "next attempt at once"
    wait_ms, left_ms = outbound.blocked_until_ms - entry.sent_ms, max(0, outbound.blocked_until_ms - refused_ms)
    return f"next attempt {wait_ms} ms after the start of this one, in {left_ms} ms"
