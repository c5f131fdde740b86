"""Takes messages back that a backend has cancelled (docs/guides/scheduling.md).

1. What waits aside for its `deliver-at` or in the queue leaves with `cancelled`. Its id stays remembered, so that a repetition of
   the message is still recognised.
2. What is in the window stays: a gateway may have written it. So does what has left the session. A ledger row says so, and is all
   that becomes of the cancellation. A copy of a cancellation finds nothing any more.
3. What a gateway may be sending by the fast path waits in the queue until the path has closed. Then rule 1 or 2 applies. Nothing
   leaves the queue meanwhile.
"""

from state.activation import Activation
from state.commands import Transition
from state.connection import SessionConnection
from state.model import Message, MessageId, Outcome
from state.outbound.inflight_window import Delivery
from state.outbound.outbound import SessionOutbound


def cancel(
    outbound: SessionOutbound, message_id: MessageId, connection: SessionConnection | None, activation: Activation
) -> None:
    """Takes the messages with this id back."""
    outbound.cancels.pop(message_id, None)
    waiting = [delivery for delivery in outbound.queue if delivery.message.message_id == message_id]
    fenced = [d for d in waiting if connection is not None and connection.may_be_sending(d.position, d.message)]
    if fenced:  # step 3
        outbound.cancels[message_id] = None
        activation.fast_path.waits_for_fence = True
    leaving = [unsent(message) for message in outbound.scheduled.pop_id(message_id)]
    leaving += outbound.queue.remove([delivery for delivery in waiting if delivery not in fenced])
    for delivery in leaving:  # step 1
        activation.finish(delivery, Outcome.CANCELLED, detail="a backend has cancelled it")
    if not leaving and not fenced:  # step 2
        in_window = any(entry.delivery.message.message_id == message_id for entry in outbound.window)
        detail = "too late: it was sent" if in_window else "no message with this id waits for the client"
        activation.record(Transition.CANCEL_REFUSED, message_id, detail=detail)


def cancel_fenced(outbound: SessionOutbound, connection: SessionConnection | None, activation: Activation) -> None:
    """Tries again what waited for the fast path to close. Call it where the fence may have been lifted."""
    for message_id in tuple(outbound.cancels):
        cancel(outbound, message_id, connection, activation)


def unsent(message: Message) -> Delivery:
    """Returns the delivery of a message that waited aside, for its end."""
    return Delivery(message=message, qos=message.qos, order=0)
