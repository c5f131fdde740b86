"""Packets that MQTT does not allow, of every type and in both versions, byte by byte; in MQTT 5 with the reason code it asks for.

For the codecs, which have to refuse them, and for the gateway, which has to close the connection. What is wrong before the body
of a packet is read, its type, its flags and its length, is the business of sinks/mqtt/codec/framing.py.
"""

from state.model import ReasonCode
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, publish, text

MALFORMED, PROTOCOL_ERROR = ReasonCode.MALFORMED_PACKET, ReasonCode.PROTOCOL_ERROR
NO_PROPERTIES = b"\x00"


def connect5(flags: int = 0x02, properties: bytes = b"", payload: bytes = text("c1")) -> bytes:
    return connect(level=5, flags=flags, properties=properties, payload=payload)


def will(properties: bytes = b"", topic: str | bytes = "w") -> bytes:
    return connect5(0x06, payload=text("c") + bytes((len(properties),)) + properties + text(topic) + text("bye"))


V311: dict[str, bytes] = {
    "reserved CONNECT flag": connect(flags=0x03),
    "will QoS without will": connect(flags=0x0A),
    "will retain without will": connect(flags=0x22),
    "will QoS 3": connect(flags=0x1E, payload=text("c") + text("w") + text("")),
    "password without user name": connect(flags=0x42, payload=text("c") + text("pw")),
    "missing user name": connect(flags=0x82),
    "missing will": connect(flags=0x06),
    "will topic with wildcard": connect(flags=0x06, payload=text("c") + text("w/#") + text("")),
    "empty will topic": connect(flags=0x06, payload=text("c") + text("") + text("")),
    "bytes after CONNECT": connect(payload=text("c") + b"x"),
    "client id not UTF-8": connect(payload=text(b"\xff")),
    "client id with a surrogate": connect(payload=text(b"\xed\xa0\x80")),
    "client id with U+0000": connect(payload=text("a\0")),
    "another protocol level": connect(level=6),
    "no body": packet(0x10),
    "topic with #": publish("a/#"),
    "topic with +": publish("+"),
    "empty topic": publish(""),
    "topic with U+0000": publish("a\0"),
    "topic not UTF-8": publish(b"\xc3\x28"),
    "topic longer than the packet": packet(0x30, b"\x00\x05ab"),
    "PUBLISH with packet id 0": publish("a", first_byte=0x32, packet_id=0),
    "PUBLISH without packet id": publish("a", first_byte=0x32),
    "PUBACK with packet id 0": bytes.fromhex("40020000"),
    "PUBACK too short": bytes.fromhex("400100"),
    "PUBACK too long": bytes.fromhex("4003000700"),
    "SUBSCRIBE without filters": packet(0x82, b"\x00\x09"),
    "SUBSCRIBE with QoS 3": packet(0x82, b"\x00\x09", text("a"), b"\x03"),
    "SUBSCRIBE with reserved bits": packet(0x82, b"\x00\x09", text("a"), b"\x41"),
    "SUBSCRIBE without QoS": packet(0x82, b"\x00\x09", text("a")),
    "SUBSCRIBE with packet id 0": packet(0x82, b"\x00\x00", text("a"), b"\x00"),
    "UNSUBSCRIBE without filters": packet(0xA2, b"\x00\x09"),
    "UNSUBSCRIBE with packet id 0": packet(0xA2, b"\x00\x00", text("a")),
    "PINGREQ with a body": b"\xc0\x01\x00",
    "DISCONNECT with a body": b"\xe0\x01\x00",
    "AUTH": b"\xf0\x00",
}

V5: dict[str, tuple[bytes, ReasonCode]] = {
    "reserved CONNECT flag": (connect5(0x03), MALFORMED),
    "will QoS without will": (connect5(0x0A), MALFORMED),
    "will retain without will": (connect5(0x22), MALFORMED),
    "will QoS 3": (connect5(0x1E, payload=text("c") + NO_PROPERTIES + text("w") + text("")), MALFORMED),
    "session expiry twice": (connect5(properties=b"\x11\x00\x00\x00\x01" * 2), PROTOCOL_ERROR),
    "Receive Maximum 0": (connect5(properties=b"\x21\x00\x00"), PROTOCOL_ERROR),
    "Maximum Packet Size 0": (connect5(properties=b"\x27\x00\x00\x00\x00"), PROTOCOL_ERROR),
    "Request Problem Information 2": (connect5(properties=b"\x17\x02"), PROTOCOL_ERROR),
    "unknown property": (connect5(properties=b"\x7f"), MALFORMED),
    "a property of PUBLISH in CONNECT": (connect5(properties=b"\x23\x00\x01"), MALFORMED),
    "authentication data without method": (connect5(properties=b"\x16" + text("x")), PROTOCOL_ERROR),
    "client id not UTF-8": (connect5(payload=text(b"\xff")), MALFORMED),
    "client id with a surrogate": (connect5(payload=text(b"\xed\xa0\x80")), MALFORMED),
    "client id with U+0000": (connect5(payload=text("a\0")), MALFORMED),
    "user name not UTF-8": (connect5(0x82, payload=text("c") + text(b"\xfe")), MALFORMED),
    "user property not UTF-8": (connect5(properties=b"\x26" + text("k") + text(b"\xc0\x80")), MALFORMED),
    "user property with U+0000": (connect5(properties=b"\x26" + text("k") + text("\0")), MALFORMED),
    "missing user name": (connect5(0x82), MALFORMED),
    "bytes after CONNECT": (connect5(payload=text("c") + b"x"), MALFORMED),
    "will topic with wildcard": (will(topic="w/+"), ReasonCode.TOPIC_NAME_INVALID),
    "will topic not UTF-8": (will(topic=b"\xff"), MALFORMED),
    "will payload format 2": (will(b"\x01\x02"), PROTOCOL_ERROR),
    "topic alias in a will": (will(b"\x23\x00\x01"), MALFORMED),
    "topic with #": (publish("a/#", v5=b""), ReasonCode.TOPIC_NAME_INVALID),
    "topic with U+0000": (publish("a\0", v5=b""), MALFORMED),
    "topic not UTF-8": (publish(b"\xc3\x28", v5=b""), MALFORMED),
    "empty topic without alias": (publish("", v5=b""), PROTOCOL_ERROR),
    "topic alias 0": (publish("a", v5=b"\x23\x00\x00"), ReasonCode.TOPIC_ALIAS_INVALID),
    "packet id 0": (publish("a", first_byte=0x32, packet_id=0, v5=b""), PROTOCOL_ERROR),
    "payload format 2": (publish("a", v5=b"\x01\x02"), PROTOCOL_ERROR),
    "payload format twice": (publish("a", v5=b"\x01\x01\x01\x01"), PROTOCOL_ERROR),
    "response topic with wildcard": (publish("a", v5=b"\x08" + text("r/#")), PROTOCOL_ERROR),
    "content type with U+0000": (publish("a", v5=b"\x03" + text("\0")), MALFORMED),
    "content type not UTF-8": (publish("a", v5=b"\x03" + text(b"\xff")), MALFORMED),
    "a subscription identifier from a client": (publish("a", v5=b"\x0b\x01"), PROTOCOL_ERROR),
    "properties longer than the packet": (packet(0x30, text("a"), b"\x50\x01"), MALFORMED),
    "properties longer than the packet, not ASCII": (packet(0x30, text("ü"), b"\x50\x01"), MALFORMED),
    "property length of five bytes": (packet(0x30, text("ü"), b"\xff\xff\xff\xff\x01"), MALFORMED),
    "no property length": (packet(0x30, text("a")), MALFORMED),
    "PUBACK with packet id 0": (bytes.fromhex("40020000"), PROTOCOL_ERROR),
    "PUBACK too short": (bytes.fromhex("400100"), MALFORMED),
    "PUBACK with bytes after it": (bytes.fromhex("40050001000061"), MALFORMED),
    "PUBACK with an unknown reason code": (bytes.fromhex("4003000105"), MALFORMED),
    "PUBREL with a reason code of PUBACK": (bytes.fromhex("6203000110"), MALFORMED),
    "PUBACK with a reason not UTF-8": (packet(0x40, b"\x00\x07\x00\x04\x1f", text(b"\xff")), MALFORMED),
    "PUBACK with a reason with U+0000": (packet(0x40, b"\x00\x07\x00\x04\x1f", text("\0")), MALFORMED),
    "SUBSCRIBE without filters": (packet(0x82, b"\x00\x09", NO_PROPERTIES), PROTOCOL_ERROR),
    "SUBSCRIBE with QoS 3": (packet(0x82, b"\x00\x09", NO_PROPERTIES, text("a"), b"\x03"), MALFORMED),
    "SUBSCRIBE with Retain Handling 3": (packet(0x82, b"\x00\x09", NO_PROPERTIES, text("a"), b"\x31"), MALFORMED),
    "SUBSCRIBE with reserved bits": (packet(0x82, b"\x00\x09", NO_PROPERTIES, text("a"), b"\x01", text("ü"), b"\x41"), MALFORMED),
    "SUBSCRIBE with reserved bits first": (
        packet(0x82, b"\x00\x09", NO_PROPERTIES, text("ü"), b"\x81", text("a"), b"\x01"),
        MALFORMED,
    ),
    "SUBSCRIBE with packet id 0": (packet(0x82, b"\x00\x00", NO_PROPERTIES, text("a"), b"\x00"), PROTOCOL_ERROR),
    "SUBSCRIBE with identifier 0": (packet(0x82, b"\x00\x09", b"\x02\x0b\x00", text("a"), b"\x00"), PROTOCOL_ERROR),
    "SUBSCRIBE with U+0000": (packet(0x82, b"\x00\x09", NO_PROPERTIES, text("a\0"), b"\x00"), MALFORMED),
    "SUBSCRIBE with a filter not UTF-8": (packet(0x82, b"\x00\x09", NO_PROPERTIES, text(b"\xff"), b"\x00"), MALFORMED),
    "No Local on a shared subscription": (packet(0x82, b"\x00\x09", NO_PROPERTIES, text("$share/g/a"), b"\x04"), PROTOCOL_ERROR),
    "UNSUBSCRIBE without filters": (packet(0xA2, b"\x00\x09", NO_PROPERTIES), PROTOCOL_ERROR),
    "UNSUBSCRIBE with a filter not UTF-8": (packet(0xA2, b"\x00\x09", NO_PROPERTIES, text(b"\xff")), MALFORMED),
    "PINGREQ with a body": (b"\xc0\x01\x00", MALFORMED),
    "DISCONNECT with an unknown reason code": (b"\xe0\x01\x01", MALFORMED),
    "DISCONNECT with a reason code of servers": (b"\xe0\x01\x8e", PROTOCOL_ERROR),
    "DISCONNECT with a server reference": (packet(0xE0, b"\x00\x04\x1c", text("s")), PROTOCOL_ERROR),
    "DISCONNECT with a reason not UTF-8": (packet(0xE0, b"\x00\x04\x1f", text(b"\xff")), MALFORMED),
    "AUTH": (bytes.fromhex("f000"), ReasonCode.BAD_AUTHENTICATION_METHOD),
}
