"""Defines the values that a session works with: messages, properties, subscriptions, reasons. They are immutable.

Times are milliseconds since the Unix epoch (`_ms`), MQTT intervals are seconds (`_s`), sizes are bytes (`_bytes`).
All values are frozen msgspec structs: keyword-only, slotted, comparable, and encodable without a second definition
(docs/decisions/0001-msgspec-structs.md). They are encoded as arrays, so new fields go last and have a default.
"""

from enum import IntEnum, StrEnum
from typing import Final, NamedTuple, TypeAlias

import msgspec

MAX_PACKET_ID: Final = 65_535
MAX_SESSION_PACKET_ID: Final = 32_767
MIN_FAST_PACKET_ID: Final = 32_768
"""Sessions use the packet ids up to MAX_SESSION_PACKET_ID. Gateways use the others for the fast path (protocol.md, 7)."""
NEVER_EXPIRES_S: Final = 0xFFFF_FFFF
"""MQTT 5 Session Expiry Interval that means "never" [MQTT-3.1.2.11.2]."""

ClientId: TypeAlias = str
MessageId: TypeAlias = str
PacketId: TypeAlias = int


class Value(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """The base class of every immutable value."""


class Position(NamedTuple):
    """The numbered partition and the offset of a record in a Kafka topic.

    Attributes:
        partition: Kafka's number of the partition, and the generation of the topic: `numbered_partition`.
    """

    partition: int
    offset: int


_GENERATION: Final = 1 << 16
"""Kafka's own numbers of partitions lie below it."""


def numbered_partition(partition: int, generation: int) -> int:
    """Returns Kafka's number of a partition with the generation of its topic, which makes it another partition.

    Args:
        generation: How often an engine has gone on after the topic was recreated (docs/decisions/0050-recreated-topics.md).
    """
    return generation * _GENERATION + partition


def partition_and_generation(numbered: int) -> tuple[int, int]:
    """Returns both arguments of `numbered_partition`."""
    generation, partition = divmod(numbered, _GENERATION)
    return partition, generation


class QoS(IntEnum):
    AT_MOST_ONCE = 0
    AT_LEAST_ONCE = 1
    EXACTLY_ONCE = 2


class ReasonCode(IntEnum):
    """MQTT 5 reason codes that Inflight sends or evaluates (MQTT 5, table 2-6)."""

    SUCCESS = 0x00
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_ID_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_ID_IN_USE = 0x91
    PACKET_ID_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    SUBSCRIPTION_IDS_NOT_SUPPORTED = 0xA1


class Outcome(StrEnum):
    """Says how a message left its session. It is in the receipt and in the last ledger row of the message."""

    DELIVERED = "delivered"
    """The device completed the handshake (PUBACK, PUBCOMP)."""
    SENT = "sent"
    """QoS 0: given to a live connection. Whether the device received it is unknown."""
    EXPIRED = "expired"
    """Its own time to live or the queue's ran out while it waited. A message in the window never expires."""
    REJECTED = "rejected"
    """The client refused it for good: PUBACK or PUBREC with 0x87, 0x90 or 0x99; a routed message: any code of 0x80 or more."""
    MAXLEN = "maxlen"
    """The queue was full, and this message had the lowest rank; or it was refused (`overflow = "reject"`)."""
    DELIVERY_LIMIT = "delivery_limit"
    """Not acknowledged in `delivery_limit` attempts, or `crash_limit` connections ended while the client had it."""
    TOO_LARGE = "too-large"
    """Larger than the client's Maximum Packet Size, or than a lowered `engine.max_record_bytes`."""
    SESSION_ENDED = "session_ended"
    """The session ended while it had the message: by expiry, a clean start or a purge."""
    INVALID = "invalid"
    """The record broke the contract of `inflight.messages`; the detail says how."""
    OFFLINE = "offline"
    """QoS 0 for an offline client with `mqueue_store_qos0 = false`."""
    QUARANTINED = "quarantined"
    """The client's session cannot be used. The message always becomes a dead letter (state/dead_letters/quarantine.py)."""
    REPLACED = "replaced"
    """A later message with the same collapse key took its place in the queue."""
    CANCELLED = "cancelled"
    """The backend took it back before it was sent."""
    DUPLICATE = "duplicate"
    """The message id was already accepted within the deduplication window."""
    DEAD_LETTER_UNROUTABLE = "dead_letter_unroutable"
    """The dead letter had no destination: its exchange is unknown, no binding matched, or every destination closed a cycle."""


DEAD_LETTERED: Final = frozenset(
    {
        Outcome.EXPIRED,
        Outcome.REJECTED,
        Outcome.MAXLEN,
        Outcome.DELIVERY_LIMIT,
        Outcome.TOO_LARGE,
        Outcome.SESSION_ENDED,
        Outcome.INVALID,
    }
)
"""Outcomes that make a dead letter unless a policy says otherwise. `QUARANTINED` makes one whatever the policy says."""


class PublishProperties(Value, frozen=True):
    """Application properties of a PUBLISH, passed on end to end (MQTT 5, 3.3.2.3). MQTT 3.1.1 peers do not receive them."""

    payload_format: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    user_properties: tuple[tuple[str, str], ...] = ()


NO_PROPERTIES: Final = PublishProperties()


class DestinationKind(StrEnum):
    """The kinds of destination of a dead letter: a Kafka topic, the queue of a client."""

    TOPIC = "topic"
    CLIENT = "client"


class Destination(Value, frozen=True):
    kind: DestinationKind
    name: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.name}" if self.name else "the dead-letter topic"


class Death(Value, frozen=True):
    """Counts all deaths of a message in one queue for one reason: an element of `x-death`.

    Attributes:
        time_ms: Time of the first of these deaths. All fields but `count` are those of the first one.
        exchange, routing_keys: What the message was published with before it died. CC is included, BCC is not.
        original_expiration_ms: The time to live that ran out, the message's or the queue's; None for other reasons.
    """

    queue: ClientId
    reason: Outcome
    time_ms: int
    exchange: str
    routing_keys: tuple[str, ...]
    count: int = 1
    original_expiration_ms: int | None = None


class DeathHistory(Value, frozen=True):
    """Records the deaths of a message. Only the engine writes it (state/dead_letters/dead_letter.py).

    Attributes:
        deaths: Newest first, at most one for each queue and reason.
        first_reason, first_queue, first_exchange: Those of the very first death.
        last_exchange: The exchange to which the message was published before its newest death.
        last_time_ms: Time of the newest death.
        exchange, routing_key: What the dead letter was published with.
        credit: How many more dead letters this copy may become, its own copies included (`session.max_dead_letters`); None =
            not counted yet.
    """

    deaths: tuple[Death, ...]
    first_reason: Outcome
    first_queue: ClientId
    first_exchange: str
    last_exchange: str
    last_time_ms: int
    exchange: str
    routing_key: str
    credit: int | None = None


class Routing(Value, frozen=True):
    """Says why a routed message comes to a client: the publication and the matching subscriptions (protocol.md, section 8).

    Attributes:
        source: Identifies one partition of the log from which the publication was read (state/records/routing.py).
        mark: Its place in that source. A later publication has a higher one, or an equal one and another message id.
        connection_id, version: The list of subscriptions that matched (state/records/subscriptions.py).
        qos: The highest QoS that the matching subscriptions grant.
        retain: The Retain flag for this client.
        subscription_ids: Those of all matching subscriptions.
        share: The shared subscription `$share/GROUP/FILTER` whose member the client is; empty = not shared.
        is_named: The backend chose the message id, so a repetition in another publication is possible.
        tried: The members of the shared subscription for which the message was too large.
    """

    source: int
    mark: int
    connection_id: int
    version: int
    qos: QoS
    retain: bool = False
    subscription_ids: tuple[int, ...] = ()
    share: str = ""
    is_named: bool = False
    tried: tuple[ClientId, ...] = ()


class Message(Value, frozen=True):
    """A message addressed to one client.

    Attributes:
        accepted_ms: Time at which Kafka stored the record. Its time to live counts from here.
        expires_at_ms: Absolute time; None = never.
        expiration_ms: Time to live as the backend wrote it, kept for dead letters.
        headers: Kafka headers without a field of their own (dead-letter routing, x-death, unknown ones), passed on unchanged.
        history: None if this engine has never dead-lettered the message, whatever an `x-death` among the headers says.
        routing: None if the message names its client, and was not routed to it by its topic.
    """

    message_id: MessageId
    topic: str
    payload: bytes
    qos: QoS = QoS.AT_LEAST_ONCE
    retain: bool = False
    priority: int = 0
    accepted_ms: int = 0
    expires_at_ms: int | None = None
    expiration_ms: int | None = None
    properties: PublishProperties = NO_PROPERTIES
    headers: tuple[tuple[str, bytes], ...] = ()
    history: DeathHistory | None = None
    routing: Routing | None = None


class Subscription(Value, frozen=True):
    """One granted subscription of a client (MQTT 5, 3.8.3).

    Attributes:
        identifier: The Subscription Identifier of the SUBSCRIBE; None = it had none.
    """

    topic_filter: str
    qos: QoS
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int | None = None


class Will(Value, frozen=True):
    """The will message of a connection, published to the uplink unless the client sends DISCONNECT (MQTT 5, 3.1.2.5).

    Attributes:
        username: The user who logged in on the connection; empty if there was no login.
    """

    topic: str
    payload: bytes
    qos: QoS = QoS.AT_MOST_ONCE
    retain: bool = False
    delay_s: int = 0
    expiry_interval_s: int | None = None
    properties: PublishProperties = NO_PROPERTIES
    username: str = ""
