"""Defines the events of a session, in the past tense. Gateways, bridges and the host make them; `Session.handle` applies them.

`LoggedEvent` is the value of `inflight.events` too (key: client id); state/records/events.py has the bytes. Events are encoded
as arrays with an integer tag. Never reuse a tag; for all other changes see state/records/record.py.
`connection_id` names the connection on which the event happened; later connections of a client have larger ids. Endings of a
connection that the session has left are ignored. Its publications, subscriptions and acknowledgements count, because the client
was answered as soon as they were in the log.
`logged_ms` is Kafka's timestamp of the event's record, but not after the present micro-batch. An acknowledgement that was
appended later than it came has the time at which it came. The host sets it; 0 = not known.
"""

from collections.abc import Callable
from enum import IntEnum, IntFlag
from typing import Final, TypeAlias

from state.model import NO_PROPERTIES, Message, PacketId, Position, PublishProperties, QoS, ReasonCode, Subscription, Value, Will

PROTOCOL_NAMES: Final = {3: "3.1", 4: "3.1.1", 5: "5"}
"""The versions of MQTT by their protocol level in CONNECT."""


class Capability(IntFlag):
    """Features that a gateway has beyond version 0.1.0.

    A command that a gateway does not know would make the whole record unreadable to it.
    """

    NONE = 0
    FAST_PATH = 1


class Claim(IntEnum):
    """The gateway's word about the session, in a CONNACK that does not wait for the session (protocol.md, section 1)."""

    NONE = 0
    """CONNACK waits for the session, or the CONNECT has Clean Start."""
    NEW = 1
    RESUMED = 2


class ExpiredSession(Value, frozen=True):
    """The session that a gateway takes for expired (state/records/session_marks.py).

    Attributes:
        connection_id: The last connection of the session that its gateway knows. The end of it is in the log.
        left_ms: When that connection was over, in milliseconds since 1970, by the brokers.
        interval_s: The session expiry interval that its device was told; 0 = the session ended with the connection.
        claimed_ms: Time of the record. A gateway leaves it at 0, and the host sets it.
    """

    connection_id: int
    left_ms: int
    interval_s: int
    claimed_ms: int = 0


class Continued(Value, frozen=True):
    """Says where a gateway goes on that has served the client's connection before this one (protocol.md, 7).

    Attributes:
        connection_id: That connection.
        after: Of the messages up to here none is left: each has been sent there, and has ended.
        is_granted: The gateway goes on by the session's grant; else with what is routed by the client's list.
        list_connection_id, list_version: That list, as in AcceptConnection.
    """

    connection_id: int
    after: Position
    is_granted: bool
    list_connection_id: int = 0
    list_version: int = 0


class ClientConnected(Value, frozen=True, tag=1):
    """A gateway has read a CONNECT. It waits for `AcceptConnection`, or for `CloseConnection` if a later connection is known.

    Attributes:
        connection_id: Assigned when the CONNECT was read.
        commands_partition: The partition from which the gateway of the connection reads commands.
        protocol_version: 3 (MQTT 3.1), 4 (MQTT 3.1.1) or 5.
        clean_start: Clean Start, or MQTT 3.1.1's clean session.
        session_expiry_interval_s: None = the configured default, because an MQTT 3.1.1 client with a kept session cannot give
            one.
        receive_maximum: QoS 1 and 2 messages that the client accepts unacknowledged.
        maximum_packet_size_bytes: None = no limit.
        lease_id: The lease under which the gateway holds the connection; the engine ends both together. Empty = version without
            leases.
        capabilities: Of the gateway, a sum of `Capability`.
        gateway: Name of the gateway or bridge, for people; empty = a version that did not say it.
        claim: A `Claim`. If it is wrong, the session refuses the connection.
        expired: With `Claim.NEW`: the session that has expired, if the log does not say so yet.
        continued: With `Claim.RESUMED`: the gateway sends what waits for the client, without a grant.
    """

    connection_id: int
    commands_partition: int
    protocol_version: int = 4
    clean_start: bool = True
    session_expiry_interval_s: int | None = 0
    receive_maximum: int = 65_535
    maximum_packet_size_bytes: int | None = None
    will: Will | None = None
    lease_id: str = ""
    capabilities: int = 0
    gateway: str = ""
    claim: int = 0
    expired: ExpiredSession | None = None
    logged_ms: int = 0
    continued: Continued | None = None


class ClientDisconnected(Value, frozen=True, tag=2):
    """The client sent DISCONNECT.

    Attributes:
        session_expiry_interval_s: The new interval, if the packet carried one.
        unanswered: As in ConnectionLost; 0 if the reason code is below 0x80.
    """

    connection_id: int
    reason_code: int = 0
    session_expiry_interval_s: int | None = None
    unanswered: PacketId = 0


class ConnectionLost(Value, frozen=True, tag=3):
    """The connection ended without DISCONNECT, or a gateway got a command for a connection that it does not have.

    Attributes:
        reason: Text for people.
        reconnect_grace_ms: Grace period after an end that the gateway caused: the will is published no earlier.
        unanswered: The oldest PUBLISH that the gateway had written on this connection and the device had not answered, if the
            device or a takeover ended the connection; 0 = none, or unknown.
    """

    connection_id: int
    reason: str = ""
    reconnect_grace_ms: int = 0
    unanswered: PacketId = 0


class PubAckReceived(Value, frozen=True, tag=4):
    """The client acknowledged a QoS 1 message.

    Attributes:
        reason: MQTT 5's Reason String, for people.
    """

    connection_id: int
    packet_id: PacketId
    reason_code: int = ReasonCode.SUCCESS
    reason: str = ""
    logged_ms: int = 0


class PubRecReceived(Value, frozen=True, tag=5):
    """The client received a QoS 2 message.

    Attributes:
        pubrel_sent: The gateway has already answered with PUBREL; the session only records it.
        reason: MQTT 5's Reason String, for people.
    """

    connection_id: int
    packet_id: PacketId
    reason_code: int = ReasonCode.SUCCESS
    pubrel_sent: bool = False
    reason: str = ""
    logged_ms: int = 0


class PubCompReceived(Value, frozen=True, tag=6):
    """The client has ended the exchange of a QoS 2 message."""

    connection_id: int
    packet_id: PacketId
    reason_code: int = ReasonCode.SUCCESS
    logged_ms: int = 0


class PublishReceived(Value, frozen=True, tag=7):
    """The device sent a QoS 2 PUBLISH, and the session hands it on. Publications of QoS 0 and 1 never reach the session; gateways
    write them to `inflight.uplink` directly.

    Attributes:
        publication_id: Unique per record; the `inflight-id` of the uplink record. A gateway leaves it empty, and the host sets it
            from the record's Kafka position.
        username: The user who logged in on the connection; empty if there was no login.
    """

    connection_id: int
    packet_id: PacketId
    topic: str
    payload: bytes
    dup: bool = False
    retain: bool = False
    expiry_interval_s: int | None = None
    properties: PublishProperties = NO_PROPERTIES
    publication_id: str = ""
    username: str = ""


class PublishAccepted(Value, frozen=True, tag=15):
    """The gateway accepted a QoS 2 PUBLISH, and hands it on to `inflight.uplink` itself when this is in the log.

    The device gets PUBREC when Kafka has both. The session only keeps the packet id.

    Attributes:
        content: `content_hash` of topic and payload.
        publication_id: The `inflight-id` of the record of `inflight.uplink`. A repetition has that of the first PUBLISH.
        is_repetition: The session has told the gateway of the first PUBLISH (`AcceptConnection.known_publications`).
        since_ms: Time by the log of the first PUBLISH. The gateway leaves it at 0 if this is the first one, and the host sets it.
    """

    connection_id: int
    packet_id: PacketId
    content: bytes
    publication_id: str
    dup: bool = False
    is_repetition: bool = False
    since_ms: int = 0


class PubRelReceived(Value, frozen=True, tag=8):
    """The client releases the packet id of a QoS 2 publication."""

    connection_id: int
    packet_id: PacketId
    reason_code: int = ReasonCode.SUCCESS
    logged_ms: int = 0


class Subscribed(Value, frozen=True, tag=9):
    """The gateway granted these subscriptions. A filter that exists already replaces its older subscription [MQTT-3.8.4-3].

    Attributes:
        version: Number of the list that this makes, as in the client's record of `inflight.subscriptions`.
    """

    connection_id: int
    subscriptions: tuple[Subscription, ...]
    version: int = 0


class Unsubscribed(Value, frozen=True, tag=10):
    """The client dropped these filters.

    Attributes:
        version: As in Subscribed.
    """

    connection_id: int
    topic_filters: tuple[str, ...]
    version: int = 0


class MessageReturned(Value, frozen=True, tag=11):
    """An exchange routed a dead letter to this client's queue. The engine itself writes this event, and so does `inflight
    replay`.

    It is in `inflight.events`, to which no backend may write, so its history can be trusted.

    Attributes:
        message: The host sets its `accepted_ms` to the time at which Kafka stored the record.
        return_id: Distinguishes a repetition of the record from other returns of the same message. Empty = an exchange sent it,
            and message id and history distinguish it.
    """

    message: Message
    return_id: str = ""


class FastSent(Value, frozen=True, tag=12):
    """The gateway accepted an offer. It writes the message once this record is in the log (protocol.md, 7).

    Attributes:
        previous: The offset that the grant and the messages sent under it had reached before this message. Without a grant: the
            offset of the last message that was sent like this one; -1 = it is the first.
        packet_id: Of the fast path's half; 0 at QoS 0.
        message: The message as the session would have read it.
        explicit_id: As in MessageSubmitted.
        sent_ms: Time by the gateway's clock.
        is_granted: False = a routed message of a new session, which needs no grant (state/outbound/fast_path/grants.py, rule 5).
            Earlier messages of the client may be unread.
    """

    connection_id: int
    position: Position
    previous: int
    packet_id: PacketId
    qos: QoS
    message: Message
    sent_ms: int
    explicit_id: bool = False
    logged_ms: int = 0
    is_granted: bool = True


class FastPathClosed(Value, frozen=True, tag=13):
    """The gateway carried out `CloseFastPath`: all `FastSent` of the grant are in the log before this event."""

    connection_id: int


class SessionPurged(Value, frozen=True, tag=14):
    """An operator ends the session (`inflight sessions purge`), unless its client is connected when this is read."""


class RestoreRequested(Value, frozen=True, tag=18):
    """An operator restores a quarantined session (`inflight sessions restore`), if it can be decoded and no longer fails."""


class DropRequested(Value, frozen=True, tag=19):
    """An operator ends a quarantined session (`inflight sessions drop`). The client can then begin a new one."""


class MessageSubmitted(Value, frozen=True, tag=20):
    """A backend sent a message for this client.

    Attributes:
        explicit_id: The backend chose the message id, so a repetition is possible.
        position: The position of the record; None = it has none, as in tests.
    """

    message: Message
    explicit_id: bool = False
    position: Position | None = None


class MessageRefused(Value, frozen=True, tag=21):
    """A record of `inflight.messages` breaks the contract of that topic.

    Attributes:
        detail: What is wrong and what is allowed, for people.
    """

    message: Message
    detail: str
    position: Position | None = None


class CancelRequested(Value, frozen=True, tag=23):
    """A backend takes a message back that this client may not have been sent yet (docs/guides/scheduling.md).

    Attributes:
        position: As in MessageSubmitted.
    """

    message_id: str
    position: Position | None = None


class MessageArrived(Value, frozen=True):
    """A record of `inflight.messages` has come. The session reads its content, unless it has adopted the message before.

    It stands for the event of the record, and is never stored. Reading a record costs more than ignoring it.

    Attributes:
        read: Returns the event that the record becomes. It has the same position.
    """

    position: Position
    read: Callable[[], "MessageEvent"]


class DeadlineReached(Value, frozen=True, tag=22):
    """The host calls because `next_deadline_ms()` has come. Handling it early, or twice, has no effect.

    In the log it is written by the engine (streaming/engine/pacing/session_timers.py).
    """


GatewayEvent: TypeAlias = (
    ClientConnected
    | ClientDisconnected
    | ConnectionLost
    | PubAckReceived
    | PubRecReceived
    | PubCompReceived
    | PublishReceived
    | PublishAccepted
    | PubRelReceived
    | Subscribed
    | Unsubscribed
    | FastSent
    | FastPathClosed
)
Acknowledgement: TypeAlias = PubAckReceived | PubRecReceived | PubCompReceived | PubRelReceived
"""Events of the device that only name a step of an exchange."""
QuarantineRequest: TypeAlias = RestoreRequested | DropRequested
"""Requests about a session that may be unreadable, so the session does not get them (state/dead_letters/quarantine.py)."""
LoggedEvent: TypeAlias = GatewayEvent | MessageReturned | SessionPurged | QuarantineRequest | DeadlineReached
MessageEvent: TypeAlias = MessageSubmitted | MessageRefused | CancelRequested
"""The events that a record of `inflight.messages` becomes."""
Event: TypeAlias = GatewayEvent | MessageReturned | SessionPurged | MessageEvent | DeadlineReached
