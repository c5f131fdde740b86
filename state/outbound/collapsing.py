"""Replaces messages by newer ones with the same collapse key (docs/guides/scheduling.md).

1. A message that is accepted replaces those with its key that wait in the queue. It takes their place, so that a key which is
   updated all the time is sent no later than others.
2. What is in flight is not replaced, nor what a gateway may be sending by the fast path. Then the newer message is the last of
   the queue. So of two messages with a key, the one with the higher `order` is the newer one.
3. In each activation the older ones of a key leave the queue: one that a gateway has not sent after all, or that the client has
   refused.
4. A dead letter that returns replaces nothing, because it is older than what waits.
"""

from state.activation import Activation
from state.connection import SessionConnection
from state.model import Message, Outcome
from state.outbound.inflight_window import Delivery
from state.outbound.outbound import SessionOutbound
from state.records.scheduling import collapse_key


def replaced_by(outbound: SessionOutbound, message: Message, connection: SessionConnection | None) -> list[Delivery]:
    """Returns what the message replaces in the queue (rules 1 and 2)."""
    waiting = outbound.queue.with_key(collapse_key(message))
    return [each for each in waiting if connection is None or not connection.may_be_sending(each.position, each.message)]


def take_place(outbound: SessionOutbound, newer: Delivery, replaced: list[Delivery]) -> None:
    """Gives the newer message the place of what it replaces, unless an earlier one with its key is left (rules 1 and 2).

    Args:
        replaced: Not in the queue any more.
    """
    key = collapse_key(newer.message)
    in_flight = any(collapse_key(entry.delivery.message) == key for entry in outbound.window)
    if not in_flight and not outbound.queue.with_key(key):
        newer.order = min(older.order for older in replaced)


def drop_superseded(outbound: SessionOutbound, connection: SessionConnection | None, activation: Activation) -> None:
    """Applies rule 3. Only a message that was read from `inflight.messages` has a position, and is newer than a dead letter."""
    for key in outbound.queue.repeated_keys():
        waiting = outbound.queue.with_key(key)
        submitted = [delivery for delivery in waiting if delivery.position is not None]
        if not submitted:
            continue
        newest = max(submitted, key=lambda delivery: delivery.order)
        older = [d for d in replaced_by(outbound, newest.message, connection) if d.order < newest.order]
        finish_replaced(newest, outbound.queue.remove(older), activation)


def finish_replaced(newer: Delivery, replaced: list[Delivery], activation: Activation) -> None:
    """Ends messages that were removed because there is a newer one with their collapse key."""
    for delivery in replaced:
        activation.finish(delivery, Outcome.REPLACED, detail=f"by {newer.message.message_id}, which has the same collapse-key")
