"""What the sending half of a session holds: queue, window, packet ids, and what it remembers.

The steps are functions of the neighbouring modules, in the order of a message's way: admission, transmission, retransmission,
acknowledgements, refusals, endings. They take the connection where they may send, and the activation that collects what they
cause. Who is connected, and since when, is the session's business (state/session.py).
"""

from state.inbound.subscriptions import Subscriptions
from state.outbound.deduplication import RecentMessageIds, ReturnsOfBatch
from state.outbound.inflight_window import Delivery, InflightWindow
from state.outbound.message_queue import MessageQueue
from state.outbound.packet_ids import PacketIds
from state.settings import SessionSettings


class Outbound:
    """The sending half of a session.

    next_order: of the next message taken. quota_refusals: rounds of 0x97 in a row; blocked_until_ms: nothing leaves the queue
    before, None = not blocked. throttled_since_ms: since when backends are asked to wait, None = they are not.
    """

    __slots__ = (
        "blocked_until_ms",
        "next_order",
        "packet_ids",
        "queue",
        "quota_refusals",
        "recent_ids",
        "returns",
        "settings",
        "subscriptions",
        "throttled_since_ms",
        "window",
    )

    def __init__(self, settings: SessionSettings) -> None:
        self.settings = settings
        self.queue = MessageQueue(max_len=settings.max_mqueue_len, max_bytes=settings.max_mqueue_bytes)
        self.window = InflightWindow(settings.window_limit + settings.prefetch)
        self.packet_ids = PacketIds()
        self.subscriptions = Subscriptions()
        self.recent_ids = RecentMessageIds(settings.deduplication_window)
        self.returns = ReturnsOfBatch()
        self.next_order = 0
        self.quota_refusals = 0
        self.blocked_until_ms: int | None = None
        self.throttled_since_ms: int | None = None

    def may_dequeue(self, now_ms: int) -> bool:
        """The window has a free slot, and no backoff runs."""
        return self.window.send_quota > 0 and not self.blocked(now_ms)

    def blocked(self, now_ms: int) -> bool:
        """The client has said 0x97 (Quota exceeded), and the wait after it is not over."""
        return self.blocked_until_ms is not None and self.blocked_until_ms > now_ms

    def end_backoff(self) -> None:
        self.quota_refusals, self.blocked_until_ms = 0, None

    def next_dequeue_ms(self) -> int | None:
        """When the backoff ends that keeps messages from free slots, None = there is nothing to wait for."""
        return self.blocked_until_ms if self.queue and self.window.send_quota > 0 else None

    def attempts_used_up(self, delivery: Delivery) -> bool:
        return 0 <= self.settings.delivery_limit <= delivery.attempts
