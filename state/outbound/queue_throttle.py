"""Back-pressure of one client: backends are asked to wait while its queue is long, and told when it is short again.

Two marks, so that a queue that hovers around one of them does not make a stream of records: throttled from `high_watermark` on,
free again from `low_watermark` down.
"""

from state.activation import Activation
from state.commands import ClearThrottle, SetThrottle
from state.outbound.message_queue import MessageQueue
from state.settings import SessionSettings


def follow_queue(
    queue: MessageQueue, throttled_since_ms: int | None, settings: SessionSettings, activation: Activation
) -> int | None:
    """Compares the queue with the marks, at the end of an activation. Returns since when the client is throttled, None = not."""
    load = queue.load
    if throttled_since_ms is None:
        if not 0 < settings.high_watermark <= load:
            return None
        reason = f"{len(queue)} messages ({queue.payload_bytes} bytes) wait for the client"
        activation.add(SetThrottle(since_ms=activation.now_ms, reason=reason))
        return activation.now_ms
    if settings.high_watermark > 0 and load > settings.low_watermark:
        return throttled_since_ms
    activation.add(ClearThrottle())
    return None
