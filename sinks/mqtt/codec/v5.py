"""Converts MQTT 5 packets to values and back. The library `mqtt5` reads and writes the bytes.

This module refuses what the library accepts and the standard does not: strings with U+0000, packet id 0, the reserved CONNECT
flag, will flags without a will, invalid topics, a payload format above 1, reserved bits of subscription options, SUBSCRIBE and
UNSUBSCRIBE without a filter, authentication data without a method. The library refuses with a bare ValueError: such a packet is
malformed (0x81), or a protocol error (0x82) where the standard says so. The library writes and accepts a Property Length of 0
[MQTT-2.2.2-1], and knows only the reason codes that each packet may have [MQTT-3.4.2-1].
"""

from collections.abc import Callable, Iterator
from typing import Any, Final, cast

import mqtt5

from sinks.mqtt.codec import framing
from sinks.mqtt.codec.packets import (
    PING_REQ,
    ClientPacket,
    ConnAck,
    Connect,
    Disconnect,
    EncodePublish,
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
from sinks.mqtt.codec.strings_v5 import check_strings
from sinks.mqtt_topics import is_shared, is_topic_name
from state.errors import ProtocolViolation
from state.model import NO_PROPERTIES, PublishProperties, QoS, ReasonCode, Subscription, Will
from state.records.properties import PROPERTIES, Property, PropertyKind, generated

PROTOCOL_LEVEL: Final = 5

_QOS: Final = tuple(QoS)
_LIBRARY_QOS: Final = (mqtt5.QoS.AT_MOST_ONCE, mqtt5.QoS.AT_LEAST_ONCE, mqtt5.QoS.EXACTLY_ONCE)
# Only the text of the library's ValueError tells these errors, which MQTT 5 calls protocol errors, not malformed packets.
_PROTOCOL_ERRORS: Final = ("Duplicate value for unique property", "must be != 0", "Topic alias must be set", "Invalid boolean")
_NO_ALIAS: Final = "Topic alias must be != 0"
_CLIENT_DISCONNECT_CODES: Final = frozenset((0x00, 0x04, 0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99))


def _malformed(reason: str) -> ProtocolViolation:
    return ProtocolViolation(reason, reason_code=ReasonCode.MALFORMED_PACKET)


def decode(packet: bytes, body_start: int) -> ClientPacket:
    """Decodes a whole packet from `FrameBuffer.next_packet`. Raises ProtocolViolation.

    AUTH is refused with 0x8C, because no authentication method is offered [MQTT-4.12.0-7].
    """
    first_byte = packet[0]
    if first_byte == framing.AUTH:
        raise ProtocolViolation(
            "AUTH, but no authentication method was agreed on", reason_code=ReasonCode.BAD_AUTHENTICATION_METHOD
        )
    check_strings(packet, body_start)
    try:
        parsed, _ = mqtt5.read(memoryview(packet))
    except (ValueError, IndexError, OverflowError) as error:
        text = str(error)
        code = ReasonCode.PROTOCOL_ERROR if any(known in text for known in _PROTOCOL_ERRORS) else ReasonCode.MALFORMED_PACKET
        if _NO_ALIAS in text:
            code = ReasonCode.TOPIC_ALIAS_INVALID  # [MQTT-3.3.2-8]
        raise ProtocolViolation(f"the packet cannot be read: {text}", reason_code=code) from error
    except BaseException as error:
        # A panic of the library is a BaseException that it does not export. It must end only this connection.
        if type(error).__name__ != "PanicException":
            raise
        raise _malformed("the packet cannot be read") from error
    return _DECODERS[type(parsed)](parsed, packet, body_start)


def _decode_publish(parsed: Any, packet: bytes, body_start: int) -> Publish:
    topic: str = parsed.topic
    topic_alias: int | None = parsed.topic_alias
    if not is_topic_name(topic):
        if "\0" in topic:
            raise _malformed("a string contains U+0000 [MQTT-1.5.4-2]")
        if topic or topic_alias is None:
            raise ProtocolViolation(
                "PUBLISH to what is not a topic name [MQTT-3.3.2-2]", reason_code=ReasonCode.TOPIC_NAME_INVALID
            )
    qos = _QOS[int(parsed.qos)]
    packet_id = 0
    if qos:
        packet_id = _packet_id(parsed)
    if parsed.subscription_ids:
        raise ProtocolViolation("a subscription identifier from a client [MQTT-3.3.4-6]")
    return Publish(
        topic=topic,
        payload=parsed.payload,
        qos=qos,
        packet_id=packet_id,
        dup=parsed.duplicate,
        retain=parsed.retain,
        expiry_interval_s=parsed.message_expiry_interval,
        topic_alias=topic_alias,
        properties=_publish_properties(parsed),
    )


def _check_flag(name: str, value: int) -> None:
    if value > 1:
        raise ProtocolViolation(f"{name} above 1")


def _check_text(name: str, text: str) -> None:
    if "\0" in text:
        raise _malformed("a string contains U+0000 [MQTT-1.5.4-2]")


def _check_topic_name(name: str, topic: str) -> None:
    if not is_topic_name(topic):
        raise ProtocolViolation(f"the {name.lower()} is not a topic name [MQTT-3.3.2-14]")


def _check_pairs(name: str, pairs: list[tuple[str, str]]) -> None:
    for pair in pairs:
        _check_text(name, "".join(pair))


def _library_name(row: Property) -> str:
    """Returns the name that the library has for a property: the standard's, user properties in the plural."""
    name = row.mqtt_name.lower().replace(" ", "_")
    return name.removesuffix("y") + "ies" if row.kind is PropertyKind.TEXT_PAIRS else name


_CHECKS: Final[dict[PropertyKind, Callable[[str, Any], None]]] = {
    PropertyKind.FLAG: _check_flag,
    PropertyKind.TEXT: _check_text,
    PropertyKind.TOPIC_NAME: _check_topic_name,
    PropertyKind.TEXT_PAIRS: _check_pairs,
}
_DECODED: Final = {PropertyKind.FLAG: "{0} or None", PropertyKind.TEXT_PAIRS: "tuple({0})"}
"""The library gives 0 for an absent flag, which means the same, and an empty list for absent pairs."""


def _decoding_lines() -> Iterator[str]:
    """Yields the source of `_publish_properties`."""
    given = {row: row.field if row.kind in _DECODED else f"{row.field} is not None" for row in PROPERTIES}
    yield "def generated(parsed):"
    for row in PROPERTIES:
        yield f"    {row.field} = parsed.{_library_name(row)}"
    yield f"    if not ({' or '.join(given.values())}): return NO_PROPERTIES"
    for row in PROPERTIES:
        if row.kind in _CHECKS:
            yield f"    if {given[row]}: {row.kind.name}({row.mqtt_name!r}, {row.field})"
    arguments = (f"{row.field}={_DECODED.get(row.kind, '{0}').format(row.field)}" for row in PROPERTIES)
    yield f"    return PublishProperties({', '.join(arguments)})"


_publish_properties: Final = cast(
    Callable[[Any], PublishProperties],
    generated(
        _decoding_lines(),
        NO_PROPERTIES=NO_PROPERTIES,
        PublishProperties=PublishProperties,
        **{kind.name: check for kind, check in _CHECKS.items()},
    ),
)
"""Returns the properties of a PUBLISH or a will."""


def _check_texts(text: str | None, user_properties: list[tuple[str, str]]) -> None:
    if (text is not None and "\0" in text) or any("\0" in name or "\0" in value for name, value in user_properties):
        raise _malformed("a string contains U+0000 [MQTT-1.5.4-2]")


def _packet_id(parsed: Any) -> int:
    packet_id: int = parsed.packet_id
    if packet_id == 0:
        raise ProtocolViolation("packet id 0 [MQTT-2.2.1-3]")
    return packet_id


def _acknowledgement(
    make: type[PubAck] | type[PubRec] | type[PubRel] | type[PubComp],
) -> Callable[[Any, bytes, int], PubAck | PubRec | PubRel | PubComp]:
    def decode_acknowledgement(parsed: Any, packet: bytes, body_start: int) -> PubAck | PubRec | PubRel | PubComp:
        packet_id, reason_code = _packet_id(parsed), int(parsed.reason_code)
        if len(packet) <= 5:
            return make(packet_id=packet_id, reason_code=reason_code)
        _check_texts(parsed.reason_str, parsed.user_properties)
        if make is PubAck or make is PubRec:
            return make(packet_id=packet_id, reason_code=reason_code, reason=parsed.reason_str or "")
        return make(packet_id=packet_id, reason_code=reason_code)

    return decode_acknowledgement


def _decode_connect(parsed: Any, packet: bytes, body_start: int) -> Connect:
    """Decodes a CONNECT. The library reads each part of the payload exactly if its flag says so [MQTT-3.1.2-9]."""
    flags = packet[body_start + 7]
    if flags & 0x01:
        raise _malformed("the reserved CONNECT flag is set [MQTT-3.1.2-3]")
    if not flags & 0x04 and flags & 0x38:
        raise _malformed("will QoS or will retain without a will [MQTT-3.1.2-11]")
    if parsed.authentication_data is not None and parsed.authentication_method is None:
        raise ProtocolViolation("authentication data without a method")
    _check_texts(parsed.client_id + (parsed.username or "") + (parsed.authentication_method or ""), parsed.user_properties)
    return Connect(
        protocol_version=PROTOCOL_LEVEL,
        client_id=parsed.client_id,
        clean_start=parsed.clean_start,
        session_expiry_interval_s=parsed.session_expiry_interval,
        keep_alive_s=parsed.keep_alive,
        will=None if parsed.will is None else _decode_will(parsed.will),
        username=parsed.username,
        password=parsed.password,
        receive_maximum=parsed.receive_max,
        maximum_packet_size_bytes=parsed.max_packet_size,
        authentication_method=parsed.authentication_method,
        topic_alias_maximum=parsed.topic_alias_max,
    )


def _decode_will(will: Any) -> Will:
    if not is_topic_name(will.topic):
        raise ProtocolViolation("the will topic is not a topic name", reason_code=ReasonCode.TOPIC_NAME_INVALID)
    return Will(
        topic=will.topic,
        payload=will.payload or b"",
        qos=_QOS[int(will.qos)],
        retain=will.retain,
        delay_s=will.will_delay_interval,
        expiry_interval_s=will.message_expiry_interval,
        properties=_publish_properties(will),
    )


def _decode_subscribe(parsed: Any, packet: bytes, body_start: int) -> Subscribe:
    _check_texts(None, parsed.user_properties)
    if not parsed.topic_filters:
        raise ProtocolViolation("SUBSCRIBE without a topic filter [MQTT-3.8.3-2]")
    # The library ignores the two reserved bits of the options; options are the last byte of each filter, found from its length.
    position = len(packet) - sum(3 + len(entry.pattern.encode()) for entry in parsed.topic_filters)
    subscriptions: list[Subscription] = []
    for entry in parsed.topic_filters:
        position += 3 + len(entry.pattern.encode())
        if packet[position - 1] & 0xC0:
            raise _malformed("reserved bits of the subscription options [MQTT-3.8.3-5]")
        _check_texts(entry.pattern, [])
        if entry.no_local and is_shared(entry.pattern):
            raise ProtocolViolation("No Local on a shared subscription [MQTT-3.8.3-4]")
        subscriptions.append(
            Subscription(
                topic_filter=entry.pattern,
                qos=_QOS[int(entry.max_qos)],
                no_local=entry.no_local,
                retain_as_published=entry.retain_as_published,
                retain_handling=int(entry.retain_handling),
            )
        )
    return Subscribe(packet_id=_packet_id(parsed), subscriptions=tuple(subscriptions), subscription_id=parsed.subscription_id)


def _decode_unsubscribe(parsed: Any, packet: bytes, body_start: int) -> Unsubscribe:
    _check_texts("".join(parsed.patterns), parsed.user_properties)
    if not parsed.patterns:
        raise ProtocolViolation("UNSUBSCRIBE without a topic filter [MQTT-3.10.3-2]")
    return Unsubscribe(packet_id=_packet_id(parsed), topic_filters=tuple(parsed.patterns))


def _decode_disconnect(parsed: Any, packet: bytes, body_start: int) -> Disconnect:
    _check_texts(parsed.reason_str, parsed.user_properties)
    reason_code = int(parsed.reason_code)
    if reason_code not in _CLIENT_DISCONNECT_CODES or parsed.server_reference is not None:
        raise ProtocolViolation("a DISCONNECT that only a server may send")
    return Disconnect(reason_code=reason_code, session_expiry_interval_s=parsed.session_expiry_interval)


_DECODERS: Final[dict[type[Any], Callable[[Any, bytes, int], ClientPacket]]] = {
    mqtt5.PublishPacket: _decode_publish,
    mqtt5.PubAckPacket: _acknowledgement(PubAck),
    mqtt5.PubRecPacket: _acknowledgement(PubRec),
    mqtt5.PubRelPacket: _acknowledgement(PubRel),
    mqtt5.PubCompPacket: _acknowledgement(PubComp),
    mqtt5.ConnectPacket: _decode_connect,
    mqtt5.SubscribePacket: _decode_subscribe,
    mqtt5.UnsubscribePacket: _decode_unsubscribe,
    mqtt5.PingReqPacket: lambda parsed, packet, body_start: PING_REQ,
    mqtt5.DisconnectPacket: _decode_disconnect,
}


def encode(packet: ServerPacket) -> bytes:
    """Encodes a packet. A DISCONNECT has no Session Expiry Interval [MQTT-3.14.2-2].

    Raises ValueError, OverflowError or UnicodeEncodeError for a value that MQTT cannot carry.
    """
    match packet:
        case Publish():
            return encode_publish(
                packet,
                qos=packet.qos,
                packet_id=packet.packet_id,
                dup=packet.dup,
                expiry_interval_s=packet.expiry_interval_s,
            )
        case PubAck():
            return mqtt5.PubAckPacket(packet.packet_id, reason_code=mqtt5.PubAckReasonCode(packet.reason_code)).write()
        case PubRec():
            return mqtt5.PubRecPacket(packet.packet_id, reason_code=mqtt5.PubRecReasonCode(packet.reason_code)).write()
        case PubRel():
            return mqtt5.PubRelPacket(packet.packet_id, reason_code=mqtt5.PubRelReasonCode(packet.reason_code)).write()
        case PubComp():
            return mqtt5.PubCompPacket(packet.packet_id, reason_code=mqtt5.PubCompReasonCode(packet.reason_code)).write()
        case SubAck():
            return mqtt5.SubAckPacket(packet.packet_id, [mqtt5.SubAckReasonCode(code) for code in packet.reason_codes]).write()
        case UnsubAck():
            return mqtt5.UnsubAckPacket(
                packet.packet_id, [mqtt5.UnsubAckReasonCode(code) for code in packet.reason_codes]
            ).write()
        case PingResp():
            return b"\xd0\x00"
        case ConnAck():
            return _encode_connack(packet)
        case Disconnect(reason_code=ReasonCode.BAD_AUTHENTICATION_METHOD):
            return bytes((framing.DISCONNECT, 1, packet.reason_code))  # in table 2-6 of the standard, not in the library
        case Disconnect():
            return mqtt5.DisconnectPacket(
                reason_code=mqtt5.DisconnectReasonCode(packet.reason_code), reason_str=packet.reason or None
            ).write()


def _encoding_lines() -> Iterator[str]:
    """Yields the source of `encode_publish`. The library takes pairs as a list only."""
    encoded = {PropertyKind.FLAG: "properties.{} or 0", PropertyKind.TEXT_PAIRS: "list(properties.{})"}
    given = (f"{_library_name(row)}={encoded.get(row.kind, 'properties.{}').format(row.field)}" for row in PROPERTIES)
    properties = ", ".join(given)
    packet = (
        "content.payload, qos=LIBRARY_QOS[qos], retain=content.retain, packet_id=packet_id or None, duplicate=dup, "
        "message_expiry_interval=expiry_interval_s"
    )
    routed = f"{packet}, subscription_ids=list(subscription_ids), topic_alias=topic_alias or None"
    yield "def generated(content, *, qos, packet_id, dup=False, expiry_interval_s=None, subscription_ids=(), topic_alias=0,"
    yield "              omits_topic=False):"
    yield "    properties = content.properties"
    yield "    if subscription_ids or topic_alias:"
    yield "        topic = '' if omits_topic else content.topic"
    yield f"        if properties == NO_PROPERTIES: return PublishPacket(topic, {routed}).write()"
    yield f"        return PublishPacket(topic, {routed}, {properties}).write()"
    yield f"    if properties == NO_PROPERTIES: return PublishPacket(content.topic, {packet}).write()"
    yield f"    return PublishPacket(content.topic, {packet}, {properties}).write()"


encode_publish: Final = cast(
    EncodePublish,
    generated(_encoding_lines(), PublishPacket=mqtt5.PublishPacket, LIBRARY_QOS=_LIBRARY_QOS, NO_PROPERTIES=NO_PROPERTIES),
)


def _encode_connack(packet: ConnAck) -> bytes:
    """Encodes a CONNACK. A refusal says only its reason [MQTT-3.2.2-6], success what this server does not do [MQTT-3.2.2.3]."""
    reason_code = mqtt5.ConnAckReasonCode(packet.reason_code)
    if packet.reason_code:
        return mqtt5.ConnAckPacket(reason_code=reason_code).write()
    return mqtt5.ConnAckPacket(
        reason_code=reason_code,
        session_present=packet.session_present,
        session_expiry_interval=packet.session_expiry_interval_s,
        assigned_client_id=packet.assigned_client_id,
        receive_max=packet.receive_maximum or 65_535,
        topic_alias_max=packet.topic_alias_maximum,
        server_keep_alive=packet.server_keep_alive_s,
        max_packet_size=packet.maximum_packet_size_bytes,
        retain_available=packet.has_routing,
        subscription_id_available=packet.has_routing,
        shared_subscription_available=packet.has_routing,
    ).write()
