"""Converts MQTT 3.1.1 packets to values and back, strictly by the standard. No maintained library has only this codec.

MQTT 3.1 differs in the name in CONNECT, has no session present flag in CONNACK, and needs a client id. Its packets with DUP
other than PUBLISH are malformed here, too.

Every deviation is a `ProtocolViolation`. MQTT 3.1.1 cannot tell the client the reason, so the reason code is for metrics only.
"""

from typing import Final

from msgspec.structs import replace

from sinks.mqtt.codec import framing
from sinks.mqtt.codec.packets import (
    PING_REQ,
    ClientPacket,
    ConnAck,
    Connect,
    Content,
    Disconnect,
    PingResp,
    PubAck,
    PubComp,
    Publish,
    PubRec,
    PubRel,
    ServerPacket,
    SubAck,
    Subscribe,
    UnsubAck,
    Unsubscribe,
)
from sinks.mqtt_topics import is_topic_name
from state.errors import ProtocolViolation
from state.model import PacketId, QoS, ReasonCode, Subscription, Will

PROTOCOL_LEVEL: Final = 4
PROTOCOL_LEVEL_3_1: Final = 3
BRIDGE_BIT: Final = 0x80
"""Brokers set it in the level when they connect as a bridge, as Mosquitto does by default. Nothing depends on it here."""

_LEVELS: Final = {"MQTT": PROTOCOL_LEVEL, "MQIsdp": PROTOCOL_LEVEL_3_1}
_QOS: Final = tuple(QoS)
_TOO_SHORT: Final = "the packet ends too early"
_RETURN_CODES: Final[dict[int, int]] = {
    ReasonCode.SUCCESS: 0,
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_ID_NOT_VALID: 2,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
}
_SERVER_UNAVAILABLE: Final = 3
_SUBACK_FAILURE: Final = 0x80
_ACKNOWLEDGEMENTS: Final[dict[int, type[PubAck] | type[PubRec] | type[PubRel] | type[PubComp]]] = {
    framing.PUBACK: PubAck,
    framing.PUBREC: PubRec,
    framing.PUBREL: PubRel,
    framing.PUBCOMP: PubComp,
}


def _malformed(reason: str) -> ProtocolViolation:
    return ProtocolViolation(reason, reason_code=ReasonCode.MALFORMED_PACKET)


class _BodyReader:
    """Reads one packet's body from front to back."""

    __slots__ = ("_data", "_position")

    def __init__(self, data: bytes, position: int) -> None:
        self._data = data
        self._position = position

    @property
    def at_end(self) -> bool:
        return self._position == len(self._data)

    def byte(self) -> int:
        return self._take(1)[0]

    def uint16(self) -> int:
        data, position = self._data, self._position
        if position + 2 > len(data):
            raise _malformed(_TOO_SHORT)
        self._position = position + 2
        return data[position] << 8 | data[position + 1]

    def binary(self) -> bytes:
        return self._take(self.uint16())

    def text(self) -> str:
        try:
            text = self.binary().decode()  # a byte order mark stays [MQTT-1.5.4-3]
        except UnicodeDecodeError as error:
            raise _malformed("a string is not UTF-8 [MQTT-1.5.4-1]") from error
        if "\0" in text:
            raise _malformed("a string contains U+0000 [MQTT-1.5.4-2]")
        return text

    def packet_id(self) -> int:
        packet_id = self.uint16()
        if packet_id == 0:
            raise ProtocolViolation("packet id 0 [MQTT-2.2.1-3]")
        return packet_id

    def rest(self) -> bytes:
        position, self._position = self._position, len(self._data)
        return self._data[position:]

    def end(self) -> None:
        if not self.at_end:
            raise _malformed("bytes after the end of the packet")

    def _take(self, size: int) -> bytes:
        end = self._position + size
        if end > len(self._data):
            raise _malformed(_TOO_SHORT)
        taken = self._data[self._position : end]
        self._position = end
        return taken


def decode(packet: bytes, body_start: int) -> ClientPacket:
    """Decodes a whole packet from `FrameBuffer.next_packet`. Raises ProtocolViolation."""
    first_byte = packet[0]
    reader = _BodyReader(packet, body_start)
    if first_byte & 0xF0 == framing.PUBLISH:
        return _decode_publish(first_byte, reader)
    acknowledgement = _ACKNOWLEDGEMENTS.get(first_byte)
    if acknowledgement is not None:
        packet_id = reader.packet_id()
        reader.end()
        return acknowledgement(packet_id=packet_id)
    match first_byte:
        case framing.CONNECT:
            return _decode_connect(reader)
        case framing.SUBSCRIBE:
            return _decode_subscribe(reader)
        case framing.UNSUBSCRIBE:
            return _decode_unsubscribe(reader)
        case framing.PINGREQ:
            reader.end()
            return PING_REQ
        case framing.DISCONNECT:
            reader.end()
            return Disconnect()
        case _:
            raise ProtocolViolation("MQTT 3.1.1 has no packet of this type")


def _decode_connect(reader: _BodyReader) -> Connect:
    """Decodes a CONNECT. Each part of the payload is there exactly if its flag says so, in this order [MQTT-3.1.2-9]."""
    name, stated_level = reader.text(), reader.byte()
    level = stated_level & ~BRIDGE_BIT
    if _LEVELS.get(name) != level:
        raise ProtocolViolation("not MQTT 3.1 or 3.1.1", reason_code=ReasonCode.UNSUPPORTED_PROTOCOL_VERSION)
    flags = reader.byte()
    has_username, has_password, has_will = bool(flags & 0x80), bool(flags & 0x40), bool(flags & 0x04)
    if flags & 0x01:
        raise _malformed("the reserved CONNECT flag is set [MQTT-3.1.2-3]")
    if flags & 0x18 == 0x18 or (not has_will and flags & 0x38):
        raise _malformed("will QoS or will retain without a will, or will QoS 3 [MQTT-3.1.2-11]")
    if has_password and not has_username:
        raise _malformed("a password without a user name [MQTT-3.1.2-22] of MQTT 3.1.1")
    clean_start = bool(flags & 0x02)
    keep_alive_s = reader.uint16()
    client_id = reader.text()
    will = None
    if has_will:
        topic = reader.text()
        if not is_topic_name(topic):
            raise ProtocolViolation("the will topic is not a topic name", reason_code=ReasonCode.TOPIC_NAME_INVALID)
        will = Will(topic=topic, payload=reader.binary(), qos=_QOS[flags >> 3 & 3], retain=bool(flags & 0x20))
    username = reader.text() if has_username else None
    password = reader.binary() if has_password else None
    reader.end()
    return Connect(
        protocol_version=level,
        client_id=client_id,
        clean_start=clean_start,
        session_expiry_interval_s=0 if clean_start else None,
        keep_alive_s=keep_alive_s,
        will=will,
        username=username,
        password=password,
        is_bridge=level != stated_level,
    )


def _decode_publish(first_byte: int, reader: _BodyReader) -> Publish:
    qos = _QOS[first_byte >> 1 & 3]
    topic = reader.text()
    if not is_topic_name(topic):
        raise ProtocolViolation("PUBLISH to what is not a topic name [MQTT-3.3.2-2]", reason_code=ReasonCode.TOPIC_NAME_INVALID)
    packet_id = reader.packet_id() if qos else 0
    return Publish(
        topic=topic,
        payload=reader.rest(),
        qos=qos,
        packet_id=packet_id,
        dup=bool(first_byte & 0x08),
        retain=bool(first_byte & 0x01),
    )


def _decode_subscribe(reader: _BodyReader) -> Subscribe:
    packet_id = reader.packet_id()
    subscriptions: list[Subscription] = []
    while not reader.at_end:
        topic_filter, qos = reader.text(), reader.byte()
        if qos > QoS.EXACTLY_ONCE:
            raise _malformed("SUBSCRIBE with reserved bits or QoS 3 [MQTT-3.8.3-4] of MQTT 3.1.1")
        subscriptions.append(Subscription(topic_filter=topic_filter, qos=_QOS[qos]))
    if not subscriptions:
        raise ProtocolViolation("SUBSCRIBE without a topic filter [MQTT-3.8.3-3] of MQTT 3.1.1")
    return Subscribe(packet_id=packet_id, subscriptions=tuple(subscriptions))


def _decode_unsubscribe(reader: _BodyReader) -> Unsubscribe:
    packet_id = reader.packet_id()
    topic_filters: list[str] = []
    while not reader.at_end:
        topic_filters.append(reader.text())
    if not topic_filters:
        raise ProtocolViolation("UNSUBSCRIBE without a topic filter [MQTT-3.10.3-2]")
    return Unsubscribe(packet_id=packet_id, topic_filters=tuple(topic_filters))


def encode(packet: ServerPacket) -> bytes:
    """Encodes a packet. DISCONNECT, which a server cannot send in this version, has no bytes.

    Raises ValueError for a topic that does not fit.
    """
    match packet:
        case Publish():
            return encode_publish(packet, qos=packet.qos, packet_id=packet.packet_id, dup=packet.dup)
        case PubAck():
            return b"\x40\x02" + packet.packet_id.to_bytes(2, "big")
        case PubRec():
            return b"\x50\x02" + packet.packet_id.to_bytes(2, "big")
        case PubRel():
            return b"\x62\x02" + packet.packet_id.to_bytes(2, "big")
        case PubComp():
            return b"\x70\x02" + packet.packet_id.to_bytes(2, "big")
        case SubAck():
            codes = bytes(min(code, _SUBACK_FAILURE) for code in packet.reason_codes)
            return b"\x90" + framing.encode_length(2 + len(codes)) + packet.packet_id.to_bytes(2, "big") + codes
        case UnsubAck():
            return b"\xb0\x02" + packet.packet_id.to_bytes(2, "big")
        case PingResp():
            return b"\xd0\x00"
        case ConnAck():
            return_code = _RETURN_CODES.get(packet.reason_code, _SERVER_UNAVAILABLE)
            return bytes((0x20, 2, packet.session_present and not return_code, return_code))  # [MQTT-3.2.2-6]
        case Disconnect():
            return b""


def encode_3_1(packet: ServerPacket) -> bytes:
    """Encodes a packet of MQTT 3.1, whose CONNACK has no session present flag. Raises as `encode`."""
    return encode(replace(packet, session_present=False) if isinstance(packet, ConnAck) else packet)


def encode_publish(
    content: Content,
    *,
    qos: QoS,
    packet_id: PacketId,
    dup: bool = False,
    expiry_interval_s: int | None = None,
    subscription_ids: tuple[int, ...] = (),
    topic_alias: int = 0,
    omits_topic: bool = False,
) -> bytes:
    """Encodes a PUBLISH, see EncodePublish. This version has no expiry and no properties."""
    topic, payload = content.topic.encode(), content.payload
    if len(topic) > 0xFFFF:
        raise ValueError(f"a topic of {len(topic)} bytes, MQTT allows 65,535")
    first_byte = framing.PUBLISH | dup << 3 | qos << 1 | content.retain
    id_bytes = packet_id.to_bytes(2, "big") if qos else b""
    length = 2 + len(topic) + len(id_bytes) + len(payload)
    return b"".join(
        (bytes((first_byte,)), framing.encode_length(length), len(topic).to_bytes(2, "big"), topic, id_bytes, payload)
    )
