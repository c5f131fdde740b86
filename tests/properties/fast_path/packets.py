"""MQTT between the device and a gateway."""

from typing import NamedTuple

from sinks.mqtt.codec.packets import PubAck, PubComp, Publish, PubRec, PubRel
from sinks.mqtt.connection.handshake import V5, V311, Codec
from tests.properties.fast_path.steps import CLIENT
from tests.unit.sinks.mqtt.mqtt_bytes import body_start, connect, packet, text

CODECS: dict[int, Codec] = {4: V311, 5: V5}


class ConnAckToDevice(NamedTuple):
    session_present: bool
    reason_code: int


class DisconnectToDevice(NamedTuple):
    pass


class SubAckToDevice(NamedTuple):
    """SUBACK or UNSUBACK."""

    packet_id: int


ToDevice = ConnAckToDevice | DisconnectToDevice | SubAckToDevice | Publish | PubAck | PubRec | PubRel | PubComp


def read_packets(data: bytes, version: int) -> list[ToDevice]:
    """Decodes what a gateway has written."""
    packets: list[ToDevice] = []
    while data:
        start = body_start(data)
        length = sum((data[1 + i] & 0x7F) << 7 * i for i in range(start - 1))
        one, data = data[: start + length], data[start + length :]
        match one[0] >> 4:
            case 2:
                packets.append(ConnAckToDevice(bool(one[start] & 1), one[start + 1]))
            case 9 | 11:
                packets.append(SubAckToDevice(int.from_bytes(one[start : start + 2], "big")))
            case 14:
                packets.append(DisconnectToDevice())
            case _:
                decoded = CODECS[version].decode(one, start)
                assert isinstance(decoded, Publish | PubAck | PubRec | PubRel | PubComp)
                packets.append(decoded)
    return packets


def connect_packet(version: int, client_id: str = CLIENT, *, clean_start: bool, expiry_s: int, receive_maximum: int) -> bytes:
    properties = None
    if version == 5:
        properties = b"\x11" + expiry_s.to_bytes(4, "big") + b"\x21" + receive_maximum.to_bytes(2, "big")
    return connect(level=version, flags=2 if clean_start else 0, keep_alive_s=0, properties=properties, payload=text(client_id))


def answer_packet(first_byte: int, packet_id: int, reason_code: int = 0) -> bytes:
    return packet(first_byte, packet_id.to_bytes(2, "big"), bytes((reason_code,)) if reason_code else b"")
