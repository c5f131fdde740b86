"""Defines the settings of a session, the keys of [session], and those of record writers: names of topics and limits of sizes."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from state.dead_letters.exchanges import NO_EXCHANGES, Exchanges
from state.dead_letters.policy import NO_POLICY, Policy
from state.model import MAX_PACKET_ID, MAX_SESSION_PACKET_ID, NEVER_EXPIRES_S
from state.setting import DAY, HOUR, KIB, MIB, SECOND, Setting


class RetryMqtt5(StrEnum):
    """Says what happens when an MQTT 5 client does not acknowledge a message on a live connection [MQTT-4.4.0-1].

    `wait` sends the message again when the client reconnects by itself (docs/decisions/0040-unanswered-in-mqtt-5.md).
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


_PACKETS: Final = (0, MAX_PACKET_ID)


def _check_delivery_limit(attempts: int) -> None:
    if attempts == 0:
        raise ValueError("0 attempts would deliver nothing: write 1 or more, or -1 for no limit")


@dataclass(frozen=True, slots=True, kw_only=True)
class BackoffSettings:
    """Exponential backoff after a receiver has said that it is throttled (0x97), as RocketMQ and gRPC have it."""

    initial_ms: int = Setting("the first wait, without jitter", (1, HOUR), key="initial").default(1_000)
    multiplier: float = 1.6
    """Each wait is this many times the one before."""
    jitter: float = 0.2
    """Part of the wait by which it is made longer or shorter, after the cap: ± 20 %."""
    max_ms: int = Setting("the longest wait, before jitter; at least `initial`", (1, DAY), key="max").default(120_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSettings:
    """Limits and timers of a session, with EMQX's names and meanings. [[profiles]] has others for some clients."""

    retry_interval_ms: int = Setting(
        "an unacknowledged PUBLISH or PUBREL is sent again after this long; a list is a schedule: "
        '["30s", "1m", "5m"] = after 30 s, 1 min more, then every 5 min',
        (100, DAY),
        key="retry_interval",
        later="later_retry_intervals_ms",
    ).default(30_000)
    later_retry_intervals_ms: tuple[int, ...] = ()  # the later waits; the last one repeats; empty = always retry_interval_ms
    retry_mqtt5: RetryMqtt5 = Setting(
        "what happens after retry_interval with MQTT 5, which forbids resends on a live connection: wait = nothing, the device "
        "gets it again when it reconnects; reconnect = close it, so that the device comes back and gets everything again; "
        "timer = send again all the same"
    ).default(RetryMqtt5.WAIT)
    max_inflight: int = Setting(
        "QoS 1 and 2 messages unacknowledged at once; the client's Receive Maximum may be smaller; 0 = 32767", _PACKETS
    ).default(32)
    prefetch: int = Setting(
        "messages that the gateway holds beyond max_inflight for a device that acknowledges quickly, so that it need not wait "
        "for micro-batches; none that may expire, has a collapse key, or is limited by max_send_rate",
        _PACKETS,
    ).default(8_192)
    max_mqueue_len: int = Setting(
        "messages that wait for a client that is away, or stands still; 0 = no limit, whatever max_mqueue_bytes says",
        (0, 1_000_000),
    ).default(1_000)
    max_mqueue_bytes: int = Setting("size of this queue, headers included; 0 = no limit", (0, 1 << 30)).default(1_048_576)
    max_backlog_bytes: int = Setting(
        "size of the queue of a client that is connected and acknowledges, whatever its length; 0 = max_mqueue_len and "
        "max_mqueue_bytes hold for it, too",
        (0, 1 << 30),
    ).default(64 * MIB)
    progress_timeout_ms: int = Setting(
        "a client stands still when it has acknowledged nothing for this long; one that has gone away keeps its longer queue for "
        "this long",
        (SECOND, DAY),
        key="progress_timeout",
    ).default(30_000)
    max_send_rate: int = Setting(
        "messages a second that a client is sent, resends not counted; the others wait, and the fast path is off for it; "
        "0 = no limit",
        (0, 100_000),
    ).default(0)
    mqueue_store_qos0: bool = Setting("keep QoS 0 messages while the client is offline").default(True)
    overflow: Overflow = Setting(
        "which message a full queue drops: drop_oldest = QoS 0 first, then the lowest priority, then the oldest, the new "
        "message counted; reject = always the new message"
    ).default(Overflow.DROP_OLDEST)
    max_subscriptions: int = Setting(
        "topic filters of a session; SUBACK refuses one more with 0x97 (0x80 in MQTT 3.1.1); 0 = no limit", (0, 1_000_000)
    ).default(3_000)
    # Always limited, so that one command can carry them all.
    max_subscription_bytes: int = Setting("total length of these topic filters; beyond, refused likewise", (KIB, MIB)).default(
        196_608
    )
    max_awaiting_rel: int = Setting(
        "QoS 2 publications of a device in flight: in MQTT 5 not yet released, and the Receive Maximum of CONNACK; in MQTT "
        "3.1.1 not yet answered, and beyond it the gateway does not read from the device; 0 = no limit",
        _PACKETS,
    ).default(100)
    await_rel_timeout_ms: int = Setting(
        "a QoS 2 publication that is not released is forgotten after this long", (SECOND, DAY), key="await_rel_timeout"
    ).default(300_000)
    session_expiry_interval_s: int = Setting(
        "how long an MQTT 3.1.1 session outlives its connection; MQTT 5 clients say it themselves",
        (0, NEVER_EXPIRES_S),
        key="session_expiry_interval",
    ).default(7_200)
    max_session_expiry_interval_s: int = Setting(
        "the longest that an MQTT 5 client gets; CONNACK tells it", (0, NEVER_EXPIRES_S), key="max_session_expiry_interval"
    ).default(2_592_000)
    high_watermark: float = Setting(
        "backends are asked to send this client nothing more (PREFIX.throttle) at this part of max_mqueue_len or "
        "max_mqueue_bytes, and to wait at an eighth of this part of max_backlog_bytes; 0 = never",
        (0, 1),
    ).default(0.8)
    low_watermark: float = Setting("backends may go on at this part; below high_watermark", (0, 1)).default(0.5)
    delivery_limit: int = Setting(
        "attempts before a message is dead-lettered; -1 = no limit", (-1, 1_000_000), check=_check_delivery_limit
    ).default(20)
    crash_limit: int = Setting(
        "connections that a device may lose over a message, which it got and did not answer, before the message is "
        "dead-lettered; -1 = no limit",
        (-1, 1_000_000),
        check=_check_delivery_limit,
    ).default(20)
    max_dead_letters: int = Setting(
        "dead letters of one message over its life, each further destination of a death counted as 10 for every 64 KiB; one more "
        "goes to PREFIX.dead-letters alone",
        (1, 1_000_000),
    ).default(1_000)
    deduplication_window: int = Setting(
        "message ids per client of which a repetition is recognised; 0 = none", (0, 100_000)
    ).default(100)
    backoff: BackoffSettings = Setting().default(BackoffSettings())
    leads_from: int = 16  # FastSent of one activation from which on the gateway leads (state/outbound/backlog.py)
    max_record_bytes: int = 0  # that of RecordLimits: a larger PUBLISH cannot be written to Kafka; 0 = no limit
    max_client_id_bytes: int = 1_024  # that of RecordLimits
    fast_path: bool = True  # a gateway may send to an online client before the session has read the message
    messages_generation: int = 0  # of the messages topic that is read now (state.model.numbered_partition)
    routing: bool = False  # matchers route publications by topic, from lists that the session announces
    routed_receipts: bool = False  # a routed message has a receipt, as any other has
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Topics:
    """Names of the Kafka topics. `messages` and `events` are the engine's input, the others its output or other processes'."""

    messages: str = "inflight.messages"
    events: str = "inflight.events"
    commands: str = "inflight.commands"
    uplink: str = "inflight.uplink"
    receipts: str = "inflight.receipts"
    dead_letters: str = "inflight.dead-letters"
    ledger: str = "inflight.ledger"
    throttle: str = "inflight.throttle"
    routes: str = "inflight.routes"
    subscriptions: str = "inflight.subscriptions"
    publications: str = "inflight.publications"
    retained: str = "inflight.retained"
    presence: str = "inflight.presence"


_EVENTS_BEFORE: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordLimits:
    """Limits of one message and of one record."""

    max_payload_bytes: int = Setting("a larger message is dead-lettered as `invalid`", (1, 64 * MIB)).default(262_144)
    max_headers_bytes: int = 65_536
    """All headers of a message, each with its name, its value and `HEADER_BYTES`; one with more is dead-lettered as `invalid`."""
    max_routing_keys: int = Setting(
        "keys in CC and BCC of a message together; one with more is dead-lettered as `invalid`", (0, 10_000)
    ).default(64)
    max_record_bytes: int = Setting(
        "largest record that Inflight writes to Kafka; the topics must allow it (max.message.bytes)", (64 * KIB, 96 * MIB)
    ).default(900_000)
    """No record that we write is larger than about this, so that no broker refuses one and stops the query: batches of commands
    and of ledger rows are divided, payloads of dead letters that were never acceptable are cut."""
    max_client_id_bytes: int = 1_024
    """A longer key of a record addresses nobody; gateways refuse such clients."""

    dead_letter_topic_bytes: int = 0x7FFF_FFFF
    """The least `max.message.bytes` of the topics that get dead letters, as it is when the engine starts. It may be below
    `max_record_bytes`: then dead letters are cut to it."""

    @property
    def max_message_record_bytes(self) -> int:
        """Returns the size of the largest record of `messages` that is taken in. No valid message is larger."""
        return self.max_record_bytes

    @property
    def max_event_record_bytes(self) -> int:
        """Returns the size of the largest record of `events` that is taken in.

        Gateways have acknowledged what is in it, perhaps before `max_record_bytes` was lowered, so it is several times as much.
        """
        return _EVENTS_BEFORE * self.max_record_bytes

    @property
    def max_dead_letter_bytes(self) -> int:
        """The largest record that all topics of dead letters take."""
        return min(self.max_record_bytes, self.dead_letter_topic_bytes)

    def __post_init__(self) -> None:
        needed = self.max_payload_bytes + 2 * self.max_headers_bytes
        if needed > self.max_record_bytes:
            raise ValueError(
                f"max_record_bytes is {self.max_record_bytes}, but a message of the largest size needs {needed}: "
                "raise max_record_bytes (and max.message.bytes of the topics) or lower max_payload_bytes"
            )
