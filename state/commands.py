"""Defines the commands of a session, in the imperative. `Session.handle` returns them in the order in which to carry them out.

A `GatewayCommand` goes through `inflight.commands` to the connection that it names. Each has a sequence number that only grows
within a connection, and a gateway applies a number once. The other commands become records of the other topics.
Commands are encoded as arrays with an integer tag. Never reuse a tag; for all other changes see state/records/record.py. A new
kind of `GatewayCommand` goes only to connections whose gateway has announced a `Capability` for it.
"""

from enum import StrEnum
from typing import TypeAlias

from state.model import (
    NO_PROPERTIES,
    ClientId,
    Destination,
    Message,
    MessageId,
    Outcome,
    PacketId,
    Position,
    PublishProperties,
    QoS,
    ReasonCode,
    Subscription,
    Value,
)
from state.records.receipts import Receipt


class KnownPublication(Value, frozen=True):
    """A QoS 2 publication of the client that the session knows. A repetition of it is not a new publication.

    Attributes:
        content: `content_hash` of topic and payload.
        publication_id: The `inflight-id` under which a gateway was to hand it on, and may have done so; empty = it is handed on.
        since_ms: Time by the log of its first PUBLISH.
        is_abandoned: The session does not wait for PUBREL any longer.
    """

    packet_id: PacketId
    content: bytes
    publication_id: str = ""
    since_ms: int = 0
    is_abandoned: bool = False


class AcceptConnection(Value, frozen=True, tag=1):
    """Answer CONNACK 0x00 and start the connection.

    Attributes:
        session_expiry_interval_s: The interval in force.
        send_quota: QoS 1 and 2 messages that the gateway may have unacknowledged on this wire.
        awaiting_rel: Packet ids of QoS 2 publications that the client has not released yet.
        max_awaiting_rel: The greatest number of them, sent as Receive Maximum in CONNACK; 0 = no limit.
        topic_filters: The client's subscriptions, from which the gateway answers SUBSCRIBE and UNSUBSCRIBE; None = they are
            longer than max_subscription_bytes.
        max_subscriptions: Topic filters that the session may have; 0 = no limit.
        max_subscription_bytes: Their greatest total length; 0 = no limit.
        subscriptions: The same subscriptions with their options; None as for topic_filters.
        list_connection_id, list_version: The list of `inflight.subscriptions` that has them.
        known_publications: Those of `awaiting_rel`, and abandoned ones. None = they are too many to tell, so the session hands on
            the publications of this connection.
        continues: The session is as ClientConnected.continued says. Without that it says nothing.
        max_left, max_left_bytes: Messages, and their size, of which a queue that is empty at the end of the connection surely
            drops none while the client is away; 0 = not even one.
    """

    connection_id: int
    partition: int
    sequence: int
    session_present: bool = False
    session_expiry_interval_s: int = 0
    send_quota: int = 65_535
    awaiting_rel: tuple[PacketId, ...] = ()
    max_awaiting_rel: int = 0
    topic_filters: tuple[str, ...] | None = None
    max_subscriptions: int = 0
    max_subscription_bytes: int = 0
    subscriptions: tuple[Subscription, ...] | None = None
    list_connection_id: int = 0
    list_version: int = 0
    known_publications: tuple[KnownPublication, ...] | None = ()
    continues: bool = False
    max_left: int = 0
    max_left_bytes: int = 0


class SendPublish(Value, frozen=True, tag=2):
    """Write a PUBLISH.

    Attributes:
        packet_id: 0 at QoS 0.
        expiry_interval_s: The time to live that is left; None = the message does not expire.
        message_id: Constant over resends and connections. A bridge names the message to its device by it.
        position: The message's position while a gateway may have sent it by the fast path without the session knowing
            (protocol.md, 7); None = no gateway can have sent it.
        subscription_ids: Subscription Identifiers of a routed message [MQTT-3.3.4-3].
    """

    connection_id: int
    partition: int
    sequence: int
    packet_id: PacketId
    topic: str
    payload: bytes
    qos: QoS
    dup: bool = False
    retain: bool = False
    expiry_interval_s: int | None = None
    properties: PublishProperties = NO_PROPERTIES
    message_id: MessageId = ""
    position: Position | None = None
    subscription_ids: tuple[int, ...] = ()


class SendPubRel(Value, frozen=True, tag=3):
    connection_id: int
    partition: int
    sequence: int
    packet_id: PacketId
    reason_code: int = ReasonCode.SUCCESS


class DropAwaitingRel(Value, frozen=True, tag=4):
    """Forget these packet ids: the session has discarded their QoS 2 publications (`await_rel_timeout`)."""

    connection_id: int
    partition: int
    sequence: int
    packet_ids: tuple[PacketId, ...]


class WithdrawPublish(Value, frozen=True, tag=5):
    """Forget these messages unless they have been written on this connection.

    The session has given them up, or the client has acknowledged them on an earlier connection. A message that was written counts
    towards an MQTT 5 client's Receive Maximum until it is acknowledged.
    """

    connection_id: int
    partition: int
    sequence: int
    packet_ids: tuple[PacketId, ...]


class CloseConnection(Value, frozen=True, tag=6):
    """Send DISCONNECT with this reason (MQTT 5) and close the socket. The session does not wait for `ConnectionLost`.

    Attributes:
        newest_connection_id: Set if the connection was refused because its id is not above this one. From now on the gateway
            makes ids above it. 0 = refused for another reason.
    """

    connection_id: int
    partition: int
    sequence: int
    reason_code: int
    reason: str = ""
    newest_connection_id: int = 0


class OpenFastPath(Value, frozen=True, tag=7):
    """Grants the fast path: the gateway may send messages of this client before the session has read them (protocol.md, 7).

    Attributes:
        after: The highest position that the session has handled, in the partition of this client's messages, and that does not
            wait in its queue.
        queued_to: The messages beyond `after` and up to this offset wait in the session's queue. So none of them is a repetition,
            or a copy; -1 = none waits.
        adopted: The offset of the highest `FastSent` of this connection that the session has read; -1 = none yet.
        ids_in_use: Packet ids of the fast path that are not free.
        last_id: The packet id that the fast path has used last; 0 = none yet.
        recent_ids: Digests of remembered message ids, 8 bytes each, concatenated. A message with such an id is a repetition.
        is_snapshot: True = `recent_ids` has all of them and replaces those of earlier grants; False = it adds to them.
        subscriptions: They cap the QoS of messages; None = unchanged since the last grant.
        marks: The highest mark of a routed message from each source that the session has read; None = unchanged since the last
            grant.
    """

    connection_id: int
    partition: int
    sequence: int
    after: Position
    adopted: int = -1
    ids_in_use: tuple[PacketId, ...] = ()
    last_id: PacketId = 0
    recent_ids: bytes = b""
    is_snapshot: bool = False
    subscriptions: tuple[Subscription, ...] | None = None
    marks: tuple[tuple[int, int], ...] | None = None
    queued_to: int = -1


class CloseFastPath(Value, frozen=True, tag=8):
    """Stop sending by the fast path, then append `FastPathClosed` behind everything that was sent under the grant."""

    connection_id: int
    partition: int
    sequence: int


class OfferPublish(Value, frozen=True, tag=9):
    """Offers a message that a router has read. The gateway sends it at once or leaves it to the session; the router decides
    nothing.

    The session does not make this command. It has no sequence number, and may arrive late, twice or not at all.

    Attributes:
        previous: The router knows of no message of this client between this offset and `position`.
        timestamp_ms, headers, payload: Those of the record of `inflight.messages`, without its recipients.
        recipient: The entry of this client among them, without its name; None = the record's key names the client.
    """

    connection_id: int
    position: Position
    previous: int
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
    payload: bytes = b""
    recipient: bytes | None = None


class ForwardPublication(Value, frozen=True, tag=20):
    """Write a device's publication (QoS 2, or a will) to `inflight.uplink`, once.

    Attributes:
        username: The user who logged in; empty if there was no login.
        may_be_copy_since_ms: A gateway may have written it, not before this time; None = nobody has.
    """

    publication_id: str
    topic: str
    payload: bytes
    qos: QoS
    retain: bool = False
    expiry_interval_s: int | None = None
    properties: PublishProperties = NO_PROPERTIES
    will: bool = False
    username: str = ""
    may_be_copy_since_ms: int | None = None


class DeadLetter(Value, frozen=True, tag=21):
    """Send the message to one of the destinations that an exchange has for it.

    Attributes:
        message: Its history includes this death.
        destination: None = the engine's own dead-letter topic, for a message that never reached a session.
    """

    message: Message
    reason: Outcome
    time_ms: int
    detail: str = ""
    destination: Destination | None = None


class SendReceipt(Value, frozen=True, tag=22):
    """Write the receipt of a message to `inflight.receipts`.

    Attributes:
        response_topic: The message's, which may name a client that gets the receipt too (docs/reference/receipts.md).
    """

    receipt: Receipt
    response_topic: str | None = None


class Transition(StrEnum):
    """The kinds of ledger row."""

    ACCEPTED = "accepted"
    """The session has read the message and takes it."""
    QUEUED = "queued"
    """It waits in the queue: the client is offline, its window is full, or it is backing off."""
    SCHEDULED = "scheduled"
    """Waits aside for its `deliver-at`."""
    SENT = "sent"
    """The session commanded the first PUBLISH of an attempt."""
    FAST_SENT = "fast_sent"
    """Sent by the gateway before the session had read the message; `time_ms` is the time of sending."""
    RESENT = "resent"
    """An unacknowledged packet was sent again after `retry_interval`."""
    REPLAYED = "replayed"
    """An unfinished packet was sent again on a new connection."""
    PUBREL_SENT = "pubrel_sent"
    """PUBREL was sent by the session."""
    PUBREC = "pubrec"
    """The client has the message of QoS 2; its payload is deleted here."""
    REFUSED = "refused"
    """The client refused the message, or a command for the session was refused; the detail says which."""
    FINISHED = "finished"
    """The message left the session; `outcome` says how."""
    DEAD_LETTERED = "dead_lettered"
    """A dead letter was sent; the detail names its destination."""
    DEAD_LETTER_DROPPED = "dead_letter_dropped"
    """A dead letter was not sent: it would close a cycle, or a limit or fault forbids it."""
    RETURNED = "returned"
    """A dead letter came to the queue of this client."""
    CANCEL_REFUSED = "cancel_refused"
    """A cancellation came too late, or its message is not known."""
    CONNECTED = "connected"
    """A connection was accepted."""
    CONNECTION_REFUSED = "connection_refused"
    """A connection was refused because a later one is known."""
    DISCONNECTED = "disconnected"
    """The connection ended; the detail has the reason."""
    SESSION_ENDED = "session_ended"
    """The session ended; the detail has the reason."""
    PUBLICATION_FORWARDED = "publication_forwarded"
    """A publication of QoS 2 is written to `inflight.uplink` by the session or the gateway, or a will by the session."""
    PUBLICATION_REPEATED = "publication_repeated"
    """The client repeated a publication of QoS 2; it was not written again."""
    PUBLICATION_RELEASED = "publication_released"
    """PUBREL came for a publication of QoS 2; its packet id is free."""
    PUBLICATION_ABANDONED = "publication_abandoned"
    """No PUBREL came within `await_rel_timeout`."""
    QUARANTINED = "quarantined"
    """The session cannot be used and was set aside; the detail has the reason."""
    RESTORED = "restored"
    """`inflight sessions restore` has ended the quarantine."""
    UNKNOWN_ACKNOWLEDGEMENT = "unknown_acknowledgement"
    """The client acknowledged a packet id without an exchange; ignored."""
    OVERDUE = "overdue"
    """An MQTT 5 client has not acknowledged the message within `retry_interval`, and it is not sent again before a reconnect."""
    ROUTED_NOWHERE = "routed_nowhere"
    """A routed message found no session or no subscription any more, or went back to the group of its shared subscription."""


class RecordTransition(Value, frozen=True, tag=23):
    """Write one row of `inflight.ledger`.

    Attributes:
        time_ms: When it happened. What a client did has the time by its gateway, everything else that of the activation.
        message_id: None if the transition is the session's.
    """

    transition: Transition
    time_ms: int
    message_id: MessageId | None = None
    packet_id: PacketId | None = None
    attempt: int = 0
    outcome: Outcome | None = None
    reason_code: int = 0
    detail: str = ""


class SetThrottle(Value, frozen=True, tag=24):
    """Ask backends to send nothing to this client for now: a record of `inflight.throttle`.

    Attributes:
        since_ms: Time at which throttling began.
        is_progressing: The client is connected and acknowledges, so backends wait for it. False = it is away or stands still.
    """

    since_ms: int
    reason: str = ""
    is_progressing: bool = False


class ClearThrottle(Value, frozen=True, tag=25):
    """Let backends send to this client again: a record of `inflight.throttle` without a value."""


class SetRoute(Value, frozen=True, tag=26):
    """Announce the client's connection to routers: a record of `inflight.routes`.

    Attributes:
        partition: The partition of `inflight.commands` that the connection's gateway reads.
    """

    connection_id: int
    partition: int


class ClearRoute(Value, frozen=True, tag=27):
    """Remove the client's route, because its connection is over: a record of `inflight.routes` without a value."""


class AnnounceSubscriptions(Value, frozen=True, tag=28):
    """Write the client's list to `inflight.subscriptions`: a session with shared subscriptions is online now, or offline.

    Attributes:
        connection_id, version: Those of the list, which `is_online` alone changes.
    """

    connection_id: int
    version: int
    subscriptions: tuple[Subscription, ...]
    is_online: bool


class EndSubscriptions(Value, frozen=True, tag=29):
    """Remove the client's list from `inflight.subscriptions`: its session has ended, and there is no other one.

    Attributes:
        connection_id: Of the newest connection of that session. Lists of later connections stay.
    """

    connection_id: int


class ReturnToGroup(Value, frozen=True, tag=30):
    """Publish a message of a shared subscription once more, for the other members (rule 10 of docs/decisions/0041).

    Attributes:
        message: Its routing names the shared subscription.
        time_ms: Time of the activation.
    """

    message: Message
    time_ms: int


class SetPresence(Value, frozen=True, tag=34):
    """Announce that the client is online, or offline with a session: a record of `inflight.presence`.

    Attributes:
        since_ms: Time of the activation.
        connection_id: The present connection, or the last one.
        gateway: Name of the gateway or bridge that has the connection; empty = offline, or unknown.
        session_expiry_interval_s: The interval in force.
        reason: Why the connection ended, for people; empty = online.
    """

    online: bool
    since_ms: int
    connection_id: int
    gateway: str
    protocol_version: int
    session_expiry_interval_s: int
    reason: str = ""


class ClearPresence(Value, frozen=True, tag=35):
    """Announce that the client has no session any more: a record of `inflight.presence` without a value.

    Attributes:
        connection_id: The last connection of the session.
        since_ms: Time of the activation.
        reason: Why the session ended, for people.
    """

    connection_id: int
    since_ms: int
    reason: str = ""


class MarkSession(Value, frozen=True, tag=36):
    """Mark in `inflight.subscriptions` that the client has a session.

    Attributes:
        connection_id: Of the connection that has begun it.
    """

    connection_id: int


class EndSessionMark(Value, frozen=True, tag=37):
    """Remove the mark of a session that has ended, and of no later one.

    Attributes:
        connection_id: Of its last connection.
        has_will: A will may still come, so the mark stays, and says that there is no session.
    """

    connection_id: int
    has_will: bool = False


GatewayCommand: TypeAlias = (
    AcceptConnection
    | SendPublish
    | SendPubRel
    | DropAwaitingRel
    | WithdrawPublish
    | CloseConnection
    | OpenFastPath
    | CloseFastPath
)
HeldCommand: TypeAlias = GatewayCommand | EndSessionMark
"""The commands that may have to wait until a will is in the log (state/inbound/wills.py)."""
Command: TypeAlias = (
    GatewayCommand
    | ForwardPublication
    | DeadLetter
    | SendReceipt
    | RecordTransition
    | SetThrottle
    | ClearThrottle
    | SetRoute
    | ClearRoute
    | AnnounceSubscriptions
    | EndSubscriptions
    | ReturnToGroup
    | SetPresence
    | ClearPresence
    | MarkSession
    | EndSessionMark
)


class CommandBatch(Value, frozen=True):
    """The value of a record of `inflight.commands`: commands of one micro-batch for one client in order, or a router's offers.

    Attributes:
        code: Identifies the code that made the record. It differs between versions and after an older copy of the checkpoint was
            restored. Only a re-execution with an equal value is sure to give the same commands. Empty in records of 0.1.0.
    """

    client_id: ClientId
    commands: tuple[GatewayCommand | OfferPublish, ...]
    code: str = ""
