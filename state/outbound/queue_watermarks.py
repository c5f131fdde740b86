"""The watermarks of a client's queue: backends are asked to wait while it is long, and told when it is short again.

Throttled from `high_watermark` on, free again from `low_watermark` down. There are two, so that a queue whose length stays near
one of them does not make a stream of records.
"""

from state.activation import Activation
from state.commands import ClearThrottle, SetThrottle
from state.outbound.outbound import Outbound


def compare_with_watermarks(outbound: Outbound, activation: Activation) -> None:
    """Tell backends about the length of the queue; the last step of an activation."""
    queue, settings = outbound.queue, outbound.settings
    load = queue.load
    if outbound.throttled_since_ms is None:
        if 0 < settings.high_watermark <= load:
            reason = f"{len(queue)} messages ({queue.payload_bytes} bytes) wait for the client"
            activation.add(SetThrottle(since_ms=activation.now_ms, reason=reason))
            outbound.throttled_since_ms = activation.now_ms
    elif settings.high_watermark <= 0 or load <= settings.low_watermark:
        activation.add(ClearThrottle())
        outbound.throttled_since_ms = None
