"""MQTT packets put together by hand, for tests: independent of the codecs under test."""


def text(value: str | bytes) -> bytes:
    data = value.encode() if isinstance(value, str) else value
    return len(data).to_bytes(2, "big") + data


def packet(first_byte: int, *parts: bytes) -> bytes:
    body = b"".join(parts)
    length, digits = len(body), bytearray()
    while True:
        length, digit = divmod(length, 128)
        digits.append(digit | (0x80 if length else 0))
        if not length:
            return bytes((first_byte,)) + bytes(digits) + body


def body_start(data: bytes) -> int:
    position = 1
    while data[position] & 0x80:
        position += 1
    return position + 1


def connect(
    *,
    level: int = 4,
    name: str = "MQTT",
    flags: int = 0x02,
    keep_alive_s: int = 10,
    properties: bytes | None = None,
    payload: bytes = text("c1"),
) -> bytes:
    """properties: without their length; None = none, written as such only at level 5."""
    header = text(name) + bytes((level, flags)) + keep_alive_s.to_bytes(2, "big")
    return packet(0x10, header, _properties(level, properties), payload)


def publish(
    topic: str | bytes, payload: bytes = b"", *, first_byte: int = 0x30, packet_id: int | None = None, v5: bytes | None = None
) -> bytes:
    """v5: the properties without their length, None for MQTT 3.1.1."""
    identifier = b"" if packet_id is None else packet_id.to_bytes(2, "big")
    return packet(first_byte, text(topic), identifier, b"" if v5 is None else _properties(5, v5), payload)


def _properties(level: int, properties: bytes | None) -> bytes:
    if level & 0x7F < 5:
        return b""
    properties = properties or b""
    assert len(properties) < 128
    return bytes((len(properties),)) + properties
