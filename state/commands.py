"""What a session wants done, in the imperative. Returned by `Session.handle` in the order in which it must be carried out.

`GatewayCommand`s go to the connection named in them, through `inflight.commands`; each carries a sequence number that only grows
within a connection, and a gateway applies a number once. The others become records of the other topics.
Encoded as arrays with an integer tag: never reuse a tag; for all other changes see state/records/record.py. A new kind of
`GatewayCommand`, and any command of a new version, goes only to connections whose gateway has named a `Capability` for it.
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


class AcceptConnection(Value, frozen=True, tag=1):
    """Answer CONNACK 0x00 and start the connection.

    session_expiry_interval_s: the one in force. send_quota: QoS 1 and 2 messages that the gateway may have unacknowledged on
    this wire. awaiting_rel: packet ids of QoS 2 publications that the client has not released yet; max_awaiting_rel: how many
    there may be (0 = no limit), the Receive Maximum of CONNACK. topic_filters: of the subscriptions, so that UNSUBACK can say
    that there was none, and SUBACK that there are enough; None = they are longer than max_subscription_bytes.
    max_subscriptions: how many topic filters the session may have; max_subscription_bytes: how long they may be together;
    0 = no limit.
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


class SendPublish(Value, frozen=True, tag=2):
    """Write a PUBLISH. packet_id: 0 at QoS 0. expiry_interval_s: what is left of the message's life, None = no expiry.

    message_id: stays the same through resends and connections; a bridge names the message to its device by it.
    position: of the message in `inflight.messages`, for as long as a gateway may have sent it by the fast path without the
    session knowing (docs/protocol.md, 7); None = it cannot have.
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


class SendPubRel(Value, frozen=True, tag=3):
    connection_id: int
    partition: int
    sequence: int
    packet_id: PacketId
    reason_code: int = ReasonCode.SUCCESS


class DropAwaitingRel(Value, frozen=True, tag=4):
    """The session has discarded these QoS 2 publications (`await_rel_timeout`): forget the ids."""

    connection_id: int
    partition: int
    sequence: int
    packet_ids: tuple[PacketId, ...]


class WithdrawPublish(Value, frozen=True, tag=5):
    """Forget these messages if they have not been written on this connection: the session has given them up, or the client has
    answered them on an earlier one. What was written keeps its slot of an MQTT 5 client's Receive Maximum until it is answered.
    """

    connection_id: int
    partition: int
    sequence: int
    packet_ids: tuple[PacketId, ...]


class CloseConnection(Value, frozen=True, tag=6):
    """Send DISCONNECT with this reason (MQTT 5) and close the socket. No `ConnectionLost` is expected in return.

    newest_connection_id: for a connection that was refused because its id is not above this one; the ids that are made from now
    on have to be. 0 = the id is not why.
    """

    connection_id: int
    partition: int
    sequence: int
    reason_code: int
    reason: str = ""
    newest_connection_id: int = 0


class OpenFastPath(Value, frozen=True, tag=7):
    """Grants the fast path: the gateway may send messages of this client before the session has read them (docs/protocol.md, 7).

    after: the highest position that the session has handled, in the partition of this client's messages.
    adopted: the offset of the highest `FastSent` of this connection that the session has read; -1 = none yet.
    ids_in_use: packet ids of the fast path that are not free. last_id: the one that was used last, 0 = none yet.
    recent_ids: digests of remembered message ids, 8 bytes each, concatenated. A message with such an id is a repetition.
    is_snapshot: `recent_ids` has all of them and replaces those of earlier grants; False = it adds to them.
    subscriptions: cap the QoS of messages; None = unchanged since the last grant.
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


class CloseFastPath(Value, frozen=True, tag=8):
    """The grant is over; say `FastPathClosed` behind what was sent under it."""

    connection_id: int
    partition: int
    sequence: int


class OfferPublish(Value, frozen=True, tag=9):
    """A message that a router has read, for the gateway to send at once or to leave to the session. No router decides anything.

    It is no command of the session's: it has no sequence number, and may come late, twice or not at all.
    previous: the router knows of no message of this client between this offset and `position`. headers, payload, timestamp_ms:
    of the record of `inflight.messages`.
    """

    connection_id: int
    position: Position
    previous: int
    timestamp_ms: int
    headers: tuple[tuple[str, bytes | None], ...] = ()
    payload: bytes = b""


class ForwardPublication(Value, frozen=True, tag=20):
    """Hand a device's publication (QoS 2, or a will) to the backends, once: a record of `inflight.uplink`.

    username: who had logged in; empty = nobody.
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


class DeadLetter(Value, frozen=True, tag=21):
    """Give the message to one destination of those that an exchange has for it. message: with the death in its history.

    destination: None = the engine's own dead-letter topic, for what never reached a session.
    """

    message: Message
    reason: Outcome
    time_ms: int
    detail: str = ""
    destination: Destination | None = None


class SendReceipt(Value, frozen=True, tag=22):
    """The last word of this session about a message: a record of `inflight.receipts`. first_sent_ms: None = never sent.

    destinations: where its dead letters went; deaths: how often it has died by now, this time included. While one of the
    destinations is the queue of a client, that client's session has the next word.
    response_topic, correlation_data: of the message; see docs/receipts.md for who else gets the receipt.
    fast_path: the first transmission went by the fast path.
    """

    message_id: MessageId
    client_id: ClientId
    outcome: Outcome
    reason_code: int
    attempts: int
    accepted_ms: int
    first_sent_ms: int | None
    outcome_ms: int
    detail: str = ""
    destinations: tuple[Destination, ...] = ()
    deaths: int = 0
    response_topic: str | None = None
    correlation_data: bytes | None = None
    fast_path: bool = False


class Transition(StrEnum):
    """What the ledger can say about a message or a session."""

    ACCEPTED = "accepted"
    QUEUED = "queued"
    SENT = "sent"
    FAST_SENT = "fast_sent"
    """By the gateway before the session had read the message; `time_ms` is when."""
    RESENT = "resent"
    REPLAYED = "replayed"
    PUBREL_SENT = "pubrel_sent"
    PUBREC = "pubrec"
    REFUSED = "refused"
    FINISHED = "finished"
    DEAD_LETTERED = "dead_lettered"
    DEAD_LETTER_DROPPED = "dead_letter_dropped"
    RETURNED = "returned"
    CONNECTED = "connected"
    CONNECTION_REFUSED = "connection_refused"
    DISCONNECTED = "disconnected"
    SESSION_ENDED = "session_ended"
    PUBLICATION_FORWARDED = "publication_forwarded"
    PUBLICATION_REPEATED = "publication_repeated"
    PUBLICATION_RELEASED = "publication_released"
    PUBLICATION_ABANDONED = "publication_abandoned"
    QUARANTINED = "quarantined"
    RESTORED = "restored"
    UNKNOWN_ACKNOWLEDGEMENT = "unknown_acknowledgement"


class RecordTransition(Value, frozen=True, tag=23):
    """One row of `inflight.ledger`. message_id: None for what happens to the session itself."""

    transition: Transition
    time_ms: int
    message_id: MessageId | None = None
    packet_id: PacketId | None = None
    attempt: int = 0
    outcome: Outcome | None = None
    reason_code: int = 0
    detail: str = ""


class SetThrottle(Value, frozen=True, tag=24):
    """Ask backends to send this client nothing for now: a record of `inflight.throttle`. since_ms: when this began."""

    since_ms: int
    reason: str = ""


class ClearThrottle(Value, frozen=True, tag=25):
    """Backends may send to this client again: a null record of `inflight.throttle`."""


class SetRoute(Value, frozen=True, tag=26):
    """Routers find the client at this connection: a record of `inflight.routes`. partition: of `inflight.commands`."""

    connection_id: int
    partition: int


class ClearRoute(Value, frozen=True, tag=27):
    """The connection of the route is over: a null record of `inflight.routes`."""


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
)


class CommandBatch(Value, frozen=True):
    """The value of a record of `inflight.commands`: what one micro-batch has for one client's connections, in order, or what a
    router has.

    code: which code has made it, the same for as long as a micro-batch that is executed again says the same for certain: another
    one with each version, and with an older copy of the checkpoint. Empty in records of 0.1.0.
    """

    client_id: ClientId
    commands: tuple[GatewayCommand | OfferPublish, ...]
    code: str = ""
