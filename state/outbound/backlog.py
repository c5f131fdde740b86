"""Decides which limit of the queue holds, and who sends what waits in it.

1. A client *keeps up* while it is connected and acknowledges: its queue may have `max_backlog_bytes`, whatever its length. For a
   client that is away or stands still `max_mqueue_len` and `max_mqueue_bytes` hold.
2. It stands still when no acknowledgement has advanced an exchange for `progress_timeout` while there was something to
   acknowledge. A message that it refuses and gets again is not advanced. A client that goes away has the same time to come back.
   Then one more look has to say the same after `_CONFIRMED_MS`: after a standstill of the engine its acknowledgements may be in
   the log behind the messages that are read first.
3. What is above the lower limit then is dropped as by a full queue, and not before a gateway that may be sending it has stopped.
4. The gateway *leads* while it sends the messages of a busy client by the fast path: the session has just read `leads_from`
   FastSent. Then the session leaves to it what it may be sending. A copy of the session's would break the chain of offers, and
   cost a micro-batch. The lead ends once the client has acknowledged everything, or with acknowledgements and no FastSent.
"""

from typing import Final

from state.activation import Activation
from state.connection import PathState, SessionConnection
from state.outbound.inflight_window import Delivery
from state.settings import SessionSettings

_CONFIRMED_MS: Final = 5_000
LEAD_MS: Final = 500
"""The gateway leads for this long at most after such an activation: it may have refused a message, and sends none behind it."""


class Backlog:
    """The part of a session that decides about its queue.

    Attributes:
        keeps_up_until_ms: Rule 2; 0 = the client does not keep up.
        is_doubted: The time was over once, and the second look is due.
        lead_until_ms: Rule 4; 0 = the gateway does not lead.
        told_progress: The throttle that backends were told says that the client keeps up.
    """

    __slots__ = ("is_doubted", "keeps_up_until_ms", "lead_until_ms", "told_progress")

    def __init__(
        self, keeps_up_until_ms: int = 0, is_doubted: bool = False, lead_until_ms: int = 0, told_progress: bool = False
    ) -> None:
        self.keeps_up_until_ms = keeps_up_until_ms
        self.is_doubted = is_doubted
        self.lead_until_ms = lead_until_ms
        self.told_progress = told_progress

    @property
    def keeps_up(self) -> bool:
        return self.keeps_up_until_ms > 0

    @property
    def is_stored(self) -> bool:
        """Says that the stored session has to remember something of it."""
        return self.keeps_up or self.lead_until_ms > 0 or self.told_progress

    def progressed(self, now_ms: int, settings: SessionSettings) -> None:
        """Notes progress: see rule 2, and a connected client without a queue makes it in each activation."""
        if settings.max_backlog_bytes:
            self.keeps_up_until_ms, self.is_doubted = now_ms + settings.progress_timeout_ms, False

    def pass_time(self, now_ms: int, *, has_only_answers: bool) -> bool:
        """Ends what is over. Returns True if the client no longer keeps up (rule 2).

        Args:
            has_only_answers: The activation has acknowledgements and no FastSent.
        """
        if self.lead_until_ms <= now_ms or has_only_answers:
            self.lead_until_ms = 0
        if self.keeps_up_until_ms > now_ms or not self.keeps_up:
            return False
        stands_still = self.is_doubted
        self.keeps_up_until_ms = 0 if stands_still else now_ms + _CONFIRMED_MS
        self.is_doubted = not stands_still
        return stands_still

    def next_ms(self) -> int | None:
        """Returns when `pass_time` changes something."""
        return min((time_ms for time_ms in (self.lead_until_ms, self.keeps_up_until_ms) if time_ms), default=None)

    def connection_ended(self, now_ms: int, settings: SessionSettings) -> None:
        """Gives a client that kept up the time to come back, also with an empty queue: messages that were sent while it was
        connected may be in the log behind the end of its connection, as it is read."""
        self.lead_until_ms = 0
        if self.keeps_up:
            self.progressed(now_ms, settings)

    def note_fast_sent(self, activation: Activation) -> None:
        """Counts a FastSent of the present connection (rule 4)."""
        activation.fast_path.read += 1
        if activation.fast_path.read >= activation.settings.leads_from:
            self.lead_until_ms = activation.now_ms + LEAD_MS

    def leaves_to_gateway(self, delivery: Delivery, connection: SessionConnection, now_ms: int, *, unacknowledged: int) -> bool:
        """Returns True if the gateway leads, and may be sending the message.

        Args:
            unacknowledged: Messages of the window.
        """
        path = connection.fast_path
        is_open = path is not None and path.state is PathState.OPEN
        leads = self.lead_until_ms > now_ms and unacknowledged > 0 and is_open
        return leads and connection.may_be_sending(delivery.position, delivery.message)
