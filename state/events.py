"""What can happen to a session, in the past tense. Made by gateways, bridges and the host; consumed by `Session.handle`.

`LoggedEvent` is also the value of `inflight.events` (key: client id); state/records/events.py has the bytes. Encoded as arrays
with an integer tag: never reuse a tag; for all other changes see state/records/record.py.
`connection_id` names the connection that the event happened on; a later connection of a client has a larger one. Of a connection
that the session has left, endings are ignored; publications, subscriptions and acknowledgements count, because the client was
answered as soon as they were in the log.
"""

from enum import IntFlag
from typing import TypeAlias

from state.model import NO_PROPERTIES, Message, PacketId, Position, PublishProperties, QoS, ReasonCode, Subscription, Value, Will


class Capability(IntFlag):
    """What a gateway can do beyond 0.1.0, because a command that it does not know would make a whole record unreadable to it."""

    NONE = 0
    FAST_PATH = 1


class ClientConnected(Value, frozen=True, tag=1):
    """A CONNECT was accepted on the wire and waits for `AcceptConnection`, or for `CloseConnection` if a later one is known.

    connection_id: taken when the CONNECT was read. lease_id: of the lease under which its gateway holds it; the engine ends it
    with the lease. Empty = of a version that had none.
    commands_partition: where the gateway that holds the socket reads commands.
    protocol_version: 4 (MQTT 3.1.1) or 5. clean_start: also MQTT 3.1.1's clean session.
    session_expiry_interval_s: None = the client cannot say (MQTT 3.1.1 with a kept session), the configured default holds.
    receive_maximum: QoS 1 and 2 messages that the client takes unacknowledged; maximum_packet_size_bytes: None = no limit.
    capabilities: of the gateway, a sum of `Capability`.
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


class ClientDisconnected(Value, frozen=True, tag=2):
    """The client sent DISCONNECT. session_expiry_interval_s: a new one, if the packet carried it."""

    connection_id: int
    reason_code: int = 0
    session_expiry_interval_s: int | None = None


class ConnectionLost(Value, frozen=True, tag=3):
    """The connection ended without DISCONNECT, or a gateway was told to use one that it does not hold. reason: for people.

    reconnect_grace_ms: the gateway has ended it for a reason of its own, and a client that is back within this has not been away:
    its will is not published before that.
    """

    connection_id: int
    reason: str = ""
    reconnect_grace_ms: int = 0


class PubAckReceived(Value, frozen=True, tag=4):
    """reason: MQTT 5's Reason String, for people."""

    connection_id: int
    packet_id: PacketId
    reason_code: int = ReasonCode.SUCCESS
    reason: str = ""


class PubRecReceived(Value, frozen=True, tag=5):
    """pubrel_sent: the gateway has already answered with PUBREL, the session only records it. reason: as in PubAckReceived."""

    connection_id: int
    packet_id: PacketId
    reason_code: int = ReasonCode.SUCCESS
    pubrel_sent: bool = False
    reason: str = ""


class PubCompReceived(Value, frozen=True, tag=6):
    connection_id: int
    packet_id: PacketId
    reason_code: int = ReasonCode.SUCCESS


class PublishReceived(Value, frozen=True, tag=7):
    """A QoS 2 PUBLISH of the device; QoS 0 and 1 never reach the session (they go to `inflight.uplink` directly).

    publication_id: unique per record, the `inflight-id` of the uplink record. Set from the record's Kafka position by the host;
    a gateway leaves it empty. username: who has logged in on the connection; empty = nobody.
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


class PubRelReceived(Value, frozen=True, tag=8):
    connection_id: int
    packet_id: PacketId
    reason_code: int = ReasonCode.SUCCESS


class Subscribed(Value, frozen=True, tag=9):
    """Subscriptions that the gateway has granted; the same filter replaces the older subscription [MQTT-3.8.4-3]."""

    connection_id: int
    subscriptions: tuple[Subscription, ...]


class Unsubscribed(Value, frozen=True, tag=10):
    connection_id: int
    topic_filters: tuple[str, ...]


class MessageReturned(Value, frozen=True, tag=11):
    """A dead letter that an exchange has routed to this client's queue. Written by the engine itself, and by `inflight replay`.

    It travels in `inflight.events`, which no backend may write: that is why its history can be believed.
    message: `accepted_ms` is set by the host, to when Kafka took the record.
    return_id: tells repetitions of the record from other returns of the same message, as message ids do; empty = an exchange
    has sent it, and message id and history tell.
    """

    message: Message
    return_id: str = ""


class FastSent(Value, frozen=True, tag=12):
    """The gateway has taken an offer: it writes this message when this record is in the log (docs/protocol.md, 7).

    previous: the offset up to which the session's grant and what was taken under it went before. packet_id: of the fast path's
    half, 0 at QoS 0. message: as the session would have read it. explicit_id: as in MessageSubmitted. sent_ms: by the gateway's
    clock.
    """

    connection_id: int
    position: Position
    previous: int
    packet_id: PacketId
    qos: QoS
    message: Message
    sent_ms: int
    explicit_id: bool = False


class FastPathClosed(Value, frozen=True, tag=13):
    """`CloseFastPath` has been carried out: all `FastSent` of the grant are in the log before this."""

    connection_id: int


class SessionPurged(Value, frozen=True, tag=14):
    """`inflight sessions purge`: an operator ends the session, unless its client is connected when this is read."""


class RestoreRequested(Value, frozen=True, tag=18):
    """`inflight sessions restore`: a quarantined client gets its session back, if it can be decoded and no longer fails."""


class DropRequested(Value, frozen=True, tag=19):
    """`inflight sessions drop`: the session of a quarantined client ends, and the client can begin a new one."""


class MessageSubmitted(Value, frozen=True, tag=20):
    """A backend's message for this client. explicit_id: the backend named the message id itself, so a repetition can exist.

    position: of its record; None = it has none, as in tests.
    """

    message: Message
    explicit_id: bool = False
    position: Position | None = None


class MessageRefused(Value, frozen=True, tag=21):
    """A record of `inflight.messages` that breaks its contract. detail: what is wrong and what is allowed, for people."""

    message: Message
    detail: str
    position: Position | None = None


class DeadlineReached(Value, frozen=True, tag=22):
    """The host calls because `next_deadline_ms()` has come, or just in case; handling it early does nothing."""


GatewayEvent: TypeAlias = (
    ClientConnected
    | ClientDisconnected
    | ConnectionLost
    | PubAckReceived
    | PubRecReceived
    | PubCompReceived
    | PublishReceived
    | PubRelReceived
    | Subscribed
    | Unsubscribed
    | FastSent
    | FastPathClosed
)
Acknowledgement: TypeAlias = PubAckReceived | PubRecReceived | PubCompReceived | PubRelReceived
"""Of the device: a step of an exchange that says nothing but which one."""
QuarantineRequest: TypeAlias = RestoreRequested | DropRequested
"""Not for the session itself, which may be unreadable: state/dead_letters/quarantine.py has what becomes of them."""
LoggedEvent: TypeAlias = GatewayEvent | MessageReturned | SessionPurged | QuarantineRequest
Event: TypeAlias = GatewayEvent | MessageReturned | SessionPurged | MessageSubmitted | MessageRefused | DeadlineReached
