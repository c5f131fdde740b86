"""Defines the settings of a session as plain values. The host reads, checks and explains them (streaming/config)."""

from dataclasses import dataclass
from enum import StrEnum

from state.dead_letters.exchanges import NO_EXCHANGES, Exchanges
from state.dead_letters.policy import NO_POLICY, Policy
from state.model import MAX_SESSION_PACKET_ID


class RetryMqtt5(StrEnum):
    """Says what happens when an MQTT 5 client does not acknowledge a message on a live connection [MQTT-4.4.0-1].

    `reconnect` closes the connection, so that the client reconnects and gets a replay. A client whose session ends with its
    connection (Session Expiry Interval 0) would get no replay, and is treated as by `wait`.
    """

    RECONNECT = "reconnect"
    TIMER = "timer"
    WAIT = "wait"


class Overflow(StrEnum):
    """Says which message a full queue drops: the one of the lowest rank (state/outbound/message_queue.py), or the new one.

    `drop_oldest` is named after the usual case, in which all messages have the same rank.
    """

    DROP_OLDEST = "drop_oldest"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffSettings:
    """Exponential backoff as in RocketMQ and gRPC.

    Attributes:
        jitter: A share of the wait; 0.2 = ± 20 %.
    """

    initial_ms: int = 1_000
    multiplier: float = 1.6
    jitter: float = 0.2
    max_ms: int = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """The limits and timers of one session, with EMQX's names and meanings where EMQX has them. 0 = no limit where marked.

    These are the defaults of [session] too: streaming/config/sections.py uses them.
    """

    retry_interval_ms: int = 30_000  # the first wait for an acknowledgement
    later_retry_intervals_ms: tuple[int, ...] = ()  # the later waits; the last one repeats; empty = always retry_interval_ms
    retry_mqtt5: RetryMqtt5 = RetryMqtt5.RECONNECT
    max_inflight: int = 32  # 0 = 32,767
    prefetch: int = 0
    max_mqueue_len: int = 1_000  # 0 = no limit of messages or bytes
    max_mqueue_bytes: int = 1_048_576  # 0 = no limit of bytes
    mqueue_store_qos0: bool = True
    overflow: Overflow = Overflow.DROP_OLDEST
    max_subscriptions: int = 1_000  # topic filters of a session; 0 = no limit
    max_subscription_bytes: int = 65_536  # … and their total length; always limited, so that one command can carry them all
    max_awaiting_rel: int = 100  # 0 = no limit
    await_rel_timeout_ms: int = 300_000
    session_expiry_interval_s: int = 7_200
    max_session_expiry_interval_s: int = 2_592_000  # a client that asks for more gets this
    delivery_limit: int = 20  # at least 1; -1 = off
    deduplication_window: int = 100  # explicit message ids remembered; 0 = off
    backoff: BackoffSettings = BackoffSettings()
    high_watermark: float = 0.8  # share of max_mqueue_len or max_mqueue_bytes at which throttling begins; 0 = off
    low_watermark: float = 0.5  # share at which throttling ends
    fast_path: bool = True  # a gateway may send to an online client before the session has read the message
    policy: Policy = NO_POLICY  # the policy of this client
    exchanges: Exchanges = NO_EXCHANGES  # the same for every client

    def granted_session_expiry_s(self, asked_s: int | None) -> int:
        """Returns the session expiry interval to grant.

        Args:
            asked_s: The interval in CONNECT or DISCONNECT; None = the client cannot give one.
        """
        return self.session_expiry_interval_s if asked_s is None else min(asked_s, self.max_session_expiry_interval_s)

    @property
    def window_limit(self) -> int:
        """`max_inflight`, with 0 replaced by the number of packet ids."""
        return self.max_inflight or MAX_SESSION_PACKET_ID
