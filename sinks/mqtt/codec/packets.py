"""Defines MQTT control packets as values, the same for MQTT 3.1.1 and 5.

A codec decodes `ClientPacket` and encodes `ServerPacket`. A property that a version does not have keeps its default. Sizes are
bytes and times are seconds, as on the wire.
"""

from typing import Final, Protocol, TypeAlias

import msgspec

from state.model import NO_PROPERTIES, PacketId, PublishProperties, QoS, ReasonCode, Subscription, Will

DEFAULT_RECEIVE_MAXIMUM: Final = 65_535


class Packet(msgspec.Struct, frozen=True, kw_only=True):
    """Base of every packet."""


class Connect(Packet, frozen=True):
    """A CONNECT.

    Attributes:
        session_expiry_interval_s: None = the client cannot say (MQTT 3.1.1 with a kept session).
        topic_alias_maximum: The highest topic alias that the client takes; 0 = none.
        is_bridge: The level of MQTT 3.1 or 3.1.1 has the bit by which a broker says that it connects as a bridge.
    """

    protocol_version: int
    client_id: str
    clean_start: bool
    keep_alive_s: int = 0
    session_expiry_interval_s: int | None = 0
    username: str | None = None
    password: bytes | None = None
    will: Will | None = None
    receive_maximum: int = DEFAULT_RECEIVE_MAXIMUM
    maximum_packet_size_bytes: int | None = None
    authentication_method: str | None = None
    topic_alias_maximum: int = 0
    is_bridge: bool = False


class ConnAck(Packet, frozen=True):
    """A CONNACK. None = the property is left out.

    Attributes:
        reason_code: That of MQTT 5, which the MQTT 3.1.1 codec translates.
        has_routing: True if retained messages, shared subscriptions and subscription identifiers are available.
    """

    reason_code: int = ReasonCode.SUCCESS
    session_present: bool = False
    session_expiry_interval_s: int | None = None
    receive_maximum: int | None = None
    maximum_packet_size_bytes: int | None = None
    assigned_client_id: str | None = None
    topic_alias_maximum: int = 0
    server_keep_alive_s: int | None = None
    has_routing: bool = False


class Publish(Packet, frozen=True):
    """A PUBLISH.

    Attributes:
        topic: Empty when only `topic_alias` names it.
        packet_id: 0 at QoS 0.
    """

    topic: str
    payload: bytes
    qos: QoS = QoS.AT_MOST_ONCE
    packet_id: PacketId = 0
    dup: bool = False
    retain: bool = False
    expiry_interval_s: int | None = None
    topic_alias: int | None = None
    properties: PublishProperties = NO_PROPERTIES


class Content(Protocol):
    """The content of a PUBLISH. Packets, messages and commands have it, so none is converted before it is encoded."""

    @property
    def topic(self) -> str: ...
    @property
    def payload(self) -> bytes: ...
    @property
    def retain(self) -> bool: ...
    @property
    def properties(self) -> PublishProperties: ...


class EncodePublish(Protocol):
    """Encodes a PUBLISH for one version. MQTT 3.1.1 has none of the last four arguments, and ignores them.

    Args:
        packet_id: 0 at QoS 0.
        subscription_ids: In their order.
        topic_alias: 0 = none.
        omits_topic: The client knows the alias, which stands for the topic.

    Raises ValueError, OverflowError or UnicodeEncodeError for content that MQTT cannot carry.
    """

    def __call__(
        self,
        content: Content,
        *,
        qos: QoS,
        packet_id: PacketId,
        dup: bool = False,
        expiry_interval_s: int | None = None,
        subscription_ids: tuple[int, ...] = (),
        topic_alias: int = 0,
        omits_topic: bool = False,
    ) -> bytes: ...


class PubAck(Packet, frozen=True):
    """A PUBACK.

    Attributes:
        reason: A text for people that an MQTT 5 client may add; Inflight adds none.
    """

    packet_id: PacketId
    reason_code: int = ReasonCode.SUCCESS
    reason: str = ""


class PubRec(Packet, frozen=True):
    """A PUBREC.

    Attributes:
        reason: See PubAck.
    """

    packet_id: PacketId
    reason_code: int = ReasonCode.SUCCESS
    reason: str = ""


class PubRel(Packet, frozen=True):
    packet_id: PacketId
    reason_code: int = ReasonCode.SUCCESS


class PubComp(Packet, frozen=True):
    packet_id: PacketId
    reason_code: int = ReasonCode.SUCCESS


class Subscribe(Packet, frozen=True):
    """A SUBSCRIBE.

    Attributes:
        subscriptions: As requested, filters not yet checked.
        subscription_id: None = not given.
    """

    packet_id: PacketId
    subscriptions: tuple[Subscription, ...]
    subscription_id: int | None = None


class SubAck(Packet, frozen=True):
    packet_id: PacketId
    reason_codes: tuple[int, ...]


class Unsubscribe(Packet, frozen=True):
    packet_id: PacketId
    topic_filters: tuple[str, ...]


class UnsubAck(Packet, frozen=True):
    packet_id: PacketId
    reason_codes: tuple[int, ...]


class PingReq(Packet, frozen=True):
    pass


class PingResp(Packet, frozen=True):
    pass


class Disconnect(Packet, frozen=True):
    """A DISCONNECT.

    Attributes:
        session_expiry_interval_s: A new interval, only from an MQTT 5 client.
        reason: A text for people, only to an MQTT 5 client.
    """

    reason_code: int = ReasonCode.SUCCESS
    session_expiry_interval_s: int | None = None
    reason: str = ""


ClientPacket: TypeAlias = Connect | Publish | PubAck | PubRec | PubRel | PubComp | Subscribe | Unsubscribe | PingReq | Disconnect
ServerPacket: TypeAlias = ConnAck | Publish | PubAck | PubRec | PubRel | PubComp | SubAck | UnsubAck | PingResp | Disconnect

PING_REQ: Final = PingReq()
PING_RESP: Final = PingResp()
