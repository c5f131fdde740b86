"""What a session may be told. Plain values: reading, checking and explaining them is the host's work (streaming/config)."""

from dataclasses import dataclass
from enum import StrEnum

from state.dead_letters.exchanges import NO_EXCHANGES, Exchanges
from state.dead_letters.policy import NO_POLICY, Policy
from state.model import MAX_SESSION_PACKET_ID


class RetryMqtt5(StrEnum):
    """What to do about an unacknowledged message of an MQTT 5 client on a live connection [MQTT-4.4.0-1].

    `reconnect` closes the connection, so that the client comes back to its replay; a client whose session ends with its
    connection (Session Expiry Interval 0) has nothing to come back to, and is treated as by `wait`.
    """

    RECONNECT = "reconnect"
    TIMER = "timer"
    WAIT = "wait"


class Overflow(StrEnum):
    """Which message a full queue gives up: that of the lowest rank (state/outbound/message_queue.py), or the new one.

    The name `drop_oldest` is that of the usual case, in which all rank alike.
    """

    DROP_OLDEST = "drop_oldest"
    REJECT = "reject"


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffSettings:
    """RocketMQ's and gRPC's exponential backoff. jitter: part of the wait, 0.2 = ± 20 %."""

    initial_ms: int = 1_000
    multiplier: float = 1.6
    jitter: float = 0.2
    max_ms: int = 120_000


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """The limits and timers of one session; EMQX's names and meanings where EMQX has them. 0 = no limit where so marked.

    These are the defaults of [session], too: streaming/config/sections.py takes them from here.
    """

    retry_interval_ms: int = 30_000  # the first wait for an answer
    later_retry_intervals_ms: tuple[int, ...] = ()  # those after it, the last one repeats; empty = always retry_interval_ms
    retry_mqtt5: RetryMqtt5 = RetryMqtt5.RECONNECT
    max_inflight: int = 32  # 0 = no limit but 32,767
    prefetch: int = 0
    max_mqueue_len: int = 1_000  # 0 = no limit, of bytes neither
    max_mqueue_bytes: int = 1_048_576  # 0 = no limit of bytes
    mqueue_store_qos0: bool = True
    overflow: Overflow = Overflow.DROP_OLDEST
    max_subscriptions: int = 1_000  # topic filters of a session; 0 = no limit
    max_subscription_bytes: int = 65_536  # … and their length together; always limited, so that a gateway can be told all of them
    max_awaiting_rel: int = 100  # 0 = no limit
    await_rel_timeout_ms: int = 300_000
    session_expiry_interval_s: int = 7_200
    max_session_expiry_interval_s: int = 2_592_000  # that a client may ask for; more is this
    delivery_limit: int = 20  # at least 1; -1 = off
    deduplication_window: int = 100  # explicit message ids remembered; 0 = off
    backoff: BackoffSettings = BackoffSettings()
    high_watermark: float = 0.8  # of max_mqueue_len or max_mqueue_bytes: backends are asked to wait; 0 = off
    low_watermark: float = 0.5  # they may go on
    fast_path: bool = True  # gateways that can may send to an online client before the session has read the message
    policy: Policy = NO_POLICY  # the one that holds for this client
    exchanges: Exchanges = NO_EXCHANGES  # those of the installation, the same for every client

    def granted_session_expiry_s(self, asked_s: int | None) -> int:
        """asked_s: None = the client cannot say."""
        return self.session_expiry_interval_s if asked_s is None else min(asked_s, self.max_session_expiry_interval_s)

    @property
    def window_limit(self) -> int:
        """`max_inflight` with 0 spelled out."""
        return self.max_inflight or MAX_SESSION_PACKET_ID
