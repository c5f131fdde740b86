"""The device: one socket at a time, its half of every QoS 2 handshake, and the books of its application."""

from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from sinks.mqtt.codec.packets import Publish, PubRel
from sinks.mqtt.connection.handshake import V5, V311, Codec
from tests.unit.sinks.mqtt.mqtt_bytes import body_start, connect, packet, text

CLIENT = "device"
CODECS: dict[int, Codec] = {4: V311, 5: V5}


class ConnAckToDevice(NamedTuple):
    session_present: bool
    reason_code: int


class DisconnectToDevice(NamedTuple):
    pass


ToDevice = ConnAckToDevice | DisconnectToDevice | Publish | PubRel


def read_packets(data: bytes, version: int) -> list[ToDevice]:
    """What a gateway has written; answers to what this device never asks do not come."""
    packets: list[ToDevice] = []
    while data:
        start = body_start(data)
        length = sum((data[1 + i] & 0x7F) << 7 * i for i in range(start - 1))
        one, data = data[: start + length], data[start + length :]
        match one[0] >> 4:
            case 2:
                packets.append(ConnAckToDevice(bool(one[start] & 1), one[start + 1]))
            case 14:
                packets.append(DisconnectToDevice())
            case _:
                decoded = CODECS[version].decode(one, start)
                assert isinstance(decoded, Publish | PubRel)
                packets.append(decoded)
    return packets


def connect_packet(version: int, *, clean_start: bool, expiry_s: int, receive_maximum: int) -> bytes:
    properties = None
    if version == 5:
        properties = b"\x11" + expiry_s.to_bytes(4, "big") + b"\x21" + receive_maximum.to_bytes(2, "big")
    return connect(level=version, flags=2 if clean_start else 0, keep_alive_s=0, properties=properties, payload=text(CLIENT))


def answer_packet(first_byte: int, packet_id: int, reason_code: int = 0) -> bytes:
    return packet(first_byte, packet_id.to_bytes(2, "big"), bytes((reason_code,)) if reason_code else b"")


@dataclass
class Device:
    """received_ids: QoS 2 messages between PUBREC and PUBREL, by packet id. got: how often its application got each payload;
    order: the payloads, in the order in which they came first. refused: payloads that it has said no to."""

    received_ids: dict[int, str] = field(default_factory=dict)
    got: Counter[str] = field(default_factory=Counter)
    order: list[str] = field(default_factory=list)
    refused: set[str] = field(default_factory=set)

    def take(self, publish: Publish) -> None:
        """A PUBLISH that it accepts."""
        name = publish.payload.decode().rstrip()
        if publish.qos == 2:
            held = self.received_ids.get(publish.packet_id)
            assert held in (None, name), f"{name} under packet id {publish.packet_id}, which the device holds for {held}: lost"
            if held is not None:
                return
            self.received_ids[publish.packet_id] = name
        self.got[name] += 1
        if self.got[name] == 1:
            self.order.append(name)
