"""Holds the state of the sending half of a session: queue, window, packet ids, and remembered ids and positions.

The steps are functions of the neighbouring modules, in the order of a message's way: admission, transmission, retransmission,
acknowledgements, refusals, endings; and adoption for the fast path (fast_path/). They get the connection where they may send, and
the activation that collects commands. The session decides who is connected, and since when (state/session.py).
"""

from collections.abc import Iterator
from typing import Final

from state.activation import Activation
from state.commands import ClearThrottle, SetThrottle
from state.connection import SessionConnection
from state.inbound.subscriptions import Subscriptions
from state.model import MAX_SESSION_PACKET_ID, MessageId
from state.outbound.backlog import Backlog
from state.outbound.deduplication import RecentMessageIds, ReturnsOfBatch
from state.outbound.fast_path.positions import Positions
from state.outbound.inflight_window import Delivery, InflightEntry, InflightWindow
from state.outbound.message_queue import MessageQueue
from state.outbound.packet_ids import AbandonedExchanges, PacketIds
from state.outbound.routing.session_routing import SessionRouting
from state.outbound.scheduled import ScheduledMessages
from state.outbound.send_rate import SendRate
from state.settings import SessionSettings

UNLIMITED_LEN: Final = 1 << 62
"""Length of a queue that only its bytes limit."""
PUSHED_BACK_AT: Final = 8


class SessionOutbound:
    """The sending half of a session.

    Attributes:
        next_order: Order number of the newest message accepted.
        quota_refusals: Number of rounds of 0x97 in a row.
        blocked_until_ms: Nothing leaves the queue before this time; None = no backoff.
        cancels: Ids of messages that a backend has cancelled while a gateway may be sending them by the fast path.
        backlog: Which limit of the queue holds, and who sends from it.
        rate: Limits the messages a second; None = `max_send_rate` is off.
        throttled_since_ms: Time since which backends are asked to wait; None = they are not.
    """

    __slots__ = (
        "abandoned",
        "backlog",
        "blocked_until_ms",
        "cancels",
        "next_order",
        "packet_ids",
        "positions",
        "queue",
        "quota_refusals",
        "rate",
        "recent_ids",
        "returns",
        "routing",
        "scheduled",
        "settings",
        "subscriptions",
        "throttled_since_ms",
        "window",
    )

    def __init__(self, settings: SessionSettings) -> None:
        self.settings = settings
        self.queue = MessageQueue(max_len=settings.max_mqueue_len, max_bytes=settings.max_mqueue_bytes)
        self.backlog = Backlog()
        self.window = InflightWindow(settings.window_limit)
        self.abandoned = AbandonedExchanges()
        self.packet_ids = PacketIds()
        self.positions = Positions()
        self.subscriptions = Subscriptions()
        self.recent_ids = RecentMessageIds(settings.deduplication_window)
        self.returns = ReturnsOfBatch()
        self.routing = SessionRouting()
        self.scheduled = ScheduledMessages()
        self.cancels: dict[MessageId, None] = {}
        self.rate = SendRate(settings.max_send_rate) if settings.max_send_rate else None
        self.next_order = 0
        self.quota_refusals = 0
        self.blocked_until_ms: int | None = None
        self.throttled_since_ms: int | None = None

    def wire_quota(self, connection: SessionConnection) -> int:
        """Returns how many messages of the window may be unacknowledged on the wire, besides those given up [MQTT-3.3.4-9]."""
        return max(0, min(connection.send_quota, connection.receive_maximum - len(self.abandoned.slots)))

    def send_quota(self, connection: SessionConnection) -> int:
        """Returns how many messages may enter the window now, without reading ahead."""
        slots_held = connection.send_quota - self.wire_quota(connection)
        return max(0, min(self.window.send_quota - slots_held, self._ids_left()))

    def read_ahead_quota(self, connection: SessionConnection) -> int:
        """Returns how many messages the gateway may get now, beyond those for which the wire has slots."""
        return max(0, min(self.wire_quota(connection) + self.settings.prefetch - len(self.window), self._ids_left()))

    def _ids_left(self) -> int:
        return MAX_SESSION_PACKET_ID - len(self.window) - len(self.abandoned)

    def may_dequeue(self, connection: SessionConnection | None, now_ms: int) -> bool:
        """Returns True if there is a connection, the window has a free slot, no backoff runs, and the rate allows a message."""
        return (
            connection is not None
            and self.send_quota(connection) > 0
            and not self.blocked(now_ms)
            and (self.rate is None or self.rate.tokens(now_ms) > 0)
        )

    def tokens(self, now_ms: int) -> int | None:
        """Returns how many messages the rate allows now; None = there is no rate."""
        return None if self.rate is None else self.rate.tokens(now_ms)

    def on_wire(self, connection: SessionConnection) -> Iterator[InflightEntry]:
        """Returns the entries that a gateway can have written. It holds back those above the wire's quota; the oldest go
        first."""
        return self.window.oldest(self.wire_quota(connection))

    def slot_freed(self, connection: SessionConnection, now_ms: int) -> None:
        """Restarts the timer of the message that a freed slot lets the gateway write, if there is one.

        Call it when an exchange has ended on a live connection.
        """
        self.window.restart_timer(self.wire_quota(connection), now_ms)

    def blocked(self, now_ms: int) -> bool:
        """Returns True during the backoff after a refusal with 0x97 (Quota exceeded)."""
        return self.blocked_until_ms is not None and self.blocked_until_ms > now_ms

    def end_backoff(self) -> None:
        self.quota_refusals, self.blocked_until_ms = 0, None

    def next_dequeue_ms(self, connection: SessionConnection) -> int | None:
        """Returns when the backoff ends that keeps messages from free slots, or when the rate allows the next ones; None = no
        message waits for either."""
        if not self.queue:
            return None
        has_slot = self.send_quota(connection) > 0
        if self.rate is None:
            return self.blocked_until_ms if has_slot else None
        next_ms = self.rate.next_ms(len(self.queue))
        if self.queue.has_qos0:  # it needs no slot, and passes a backoff
            return next_ms
        return max(next_ms, self.blocked_until_ms or next_ms) if has_slot else None

    def attempts_used_up(self, delivery: Delivery) -> bool:
        return 0 <= self.settings.delivery_limit <= delivery.attempts or self.crashes_used_up(delivery)

    def crashes_used_up(self, delivery: Delivery) -> bool:
        return 0 <= self.settings.crash_limit <= delivery.crashes

    def apply_limits(self) -> None:
        """Lets the limits hold that the backlog decides (backlog.py, rule 1)."""
        settings, queue = self.settings, self.queue
        queue.max_len, queue.max_bytes = settings.max_mqueue_len, settings.max_mqueue_bytes
        if self.backlog.keeps_up and settings.max_mqueue_len:
            queue.max_len = UNLIMITED_LEN
            queue.max_bytes = settings.max_mqueue_bytes and max(settings.max_backlog_bytes, settings.max_mqueue_bytes)

    def progressed(self, now_ms: int) -> None:
        """Notes that the client has connected, or that an acknowledgement has advanced an exchange.

        An acknowledgement that changes nothing is no progress: a client could send it without end.
        """
        kept_up = self.backlog.keeps_up
        self.backlog.progressed(now_ms, self.settings)
        if not kept_up:
            self.apply_limits()

    def leaves_to_gateway(self, delivery: Delivery, connection: SessionConnection, now_ms: int) -> bool:
        """Returns True if the gateway leads, and may be sending the message (backlog.py, rule 4)."""
        return self.backlog.leaves_to_gateway(delivery, connection, now_ms, unacknowledged=len(self.window))

    @property
    def load(self) -> float:
        """How near the queue is to asking backends to wait: it is compared with the watermarks; 0 without a limit.

        The limit that is nearer counts. For a client that keeps up it is an eighth: what is on its way until its backends know
        has to have room.
        """
        queue, settings = self.queue, self.settings
        if not queue.max_len:
            return 0.0
        if self.backlog.keeps_up:
            return PUSHED_BACK_AT * queue.size_bytes / queue.max_bytes if queue.max_bytes else 0.0
        by_bytes = queue.size_bytes / settings.max_mqueue_bytes if settings.max_mqueue_bytes else 0.0
        return max(len(queue) / settings.max_mqueue_len, by_bytes)

    def compare_with_watermarks(self, activation: Activation) -> None:
        """Asks backends to wait when the queue is long, and releases them when it is short again.

        Throttling begins at `high_watermark` and ends at `low_watermark`. The gap between both prevents many records
        for a queue whose length varies around one limit. Backends that send to a client that keeps up wait; those that send to
        another one are refused. They are told when that changes.
        """
        load, backlog = self.load, self.backlog
        if self.throttled_since_ms is None:
            if 0 < self.settings.high_watermark <= load:
                self._throttle(activation.now_ms, activation)
        elif self.settings.high_watermark <= 0 or load <= self.settings.low_watermark:
            activation.add(ClearThrottle())
            self.throttled_since_ms, backlog.told_progress = None, False
        elif backlog.told_progress is not backlog.keeps_up:
            self._throttle(self.throttled_since_ms, activation)

    def _throttle(self, since_ms: int, activation: Activation) -> None:
        reason = f"{len(self.queue)} messages ({self.queue.size_bytes} bytes) wait for the client"
        is_progressing = self.backlog.keeps_up
        activation.add(SetThrottle(since_ms=since_ms, reason=reason, is_progressing=is_progressing))
        self.throttled_since_ms, self.backlog.told_progress = since_ms, is_progressing
