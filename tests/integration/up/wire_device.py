"""Has a device on a bare socket that obeys both versions of MQTT, and a backend that exchanges Kafka records with it.

The device reads what the server writes by the standard alone, without a line of the product's codecs.
"""

import json
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import pytest
from kafka import KafkaConsumer, KafkaProducer

from sinks.kafka.kafka_python import subscribe
from tests.integration.gateway.gateway_fakes import RawClient
from tests.support.waiting import DEADLINE_S, wait_until
from tests.unit.sinks.mqtt.mqtt_bytes import body_start, connect, packet, publish, text

both_versions = pytest.mark.parametrize("level", [4, 5], ids=["3.1.1", "5"])
PATIENCE_S = DEADLINE_S
PUBACK, PUBREC, PUBREL, PUBCOMP = 0x40, 0x50, 0x62, 0x70
SESSION_EXPIRY, RECEIVE_MAXIMUM, MAXIMUM_PACKET_SIZE = 0x11, 0x21, 0x27


def acknowledgement(first_byte: int, packet_id: int, reason_code: int = 0) -> bytes:
    """PUBACK, PUBREC, PUBREL or PUBCOMP; a reason code other than 0 only in MQTT 5."""
    body = packet_id.to_bytes(2, "big") + (bytes((reason_code,)) if reason_code else b"")
    return bytes((first_byte, len(body))) + body


def receive_maximum(number: int) -> bytes:
    """The property of CONNECT."""
    return bytes((RECEIVE_MAXIMUM,)) + number.to_bytes(2, "big")


@dataclass(frozen=True)
class Received:
    """A PUBLISH of the server. expiry_interval_s: None = without one."""

    payload: bytes
    qos: int
    dup: bool
    packet_id: int
    expiry_interval_s: int | None = None
    topic: str = field(default="", compare=False)


class WireDevice(RawClient):
    """A connection of one client. level: 4 (MQTT 3.1.1) or 5. connack: the whole packet.

    expiry_s: None = a session that ends with the connection; else MQTT 5 asks for that long, MQTT 3.1.1 for a kept session.
    """

    def __init__(
        self,
        address: tuple[str, int],
        client_id: str,
        level: int,
        *,
        expiry_s: int | None = 3_600,
        properties: bytes = b"",
        flags: int = 0,
        payload: bytes = b"",
    ) -> None:
        super().__init__(socket.create_connection(address, timeout=PATIENCE_S))
        self.level = level
        if level == 5 and expiry_s is not None:
            properties = bytes((SESSION_EXPIRY,)) + expiry_s.to_bytes(4, "big") + properties
        flags |= 0 if expiry_s is not None else 0x02
        self.send(connect(level=level, flags=flags, keep_alive_s=0, properties=properties, payload=text(client_id) + payload))
        self.connack = self.packet()
        assert self.connack[:1] == b"\x20", self.connack
        assert self.connack[3] == 0, self.connack
        self.session_present = bool(self.connack[2])

    def __enter__(self) -> Self:
        return self

    def receive(self) -> Received:
        """The next packet, which has to be a PUBLISH."""
        return self.parse(self.packet())

    def parse(self, data: bytes) -> Received:
        assert (data or b"\0")[0] & 0xF0 == 0x30, f"not a PUBLISH: {data.hex(' ')}"
        start = body_start(data) + 2
        position = start + int.from_bytes(data[start - 2 : start], "big")
        topic = data[start:position].decode()
        qos, packet_id, expiry_interval_s = data[0] >> 1 & 3, 0, None
        if qos:
            packet_id = int.from_bytes(data[position : position + 2], "big")
            position += 2
        if self.level == 5:
            length = data[position]
            assert length < 128, "longer properties are not read here"
            properties = data[position + 1 : position + 1 + length]
            position += 1 + length
            if properties[:1] == b"\x02":
                expiry_interval_s = int.from_bytes(properties[1:5], "big")
        return Received(data[position:], qos, bool(data[0] & 0x08), packet_id, expiry_interval_s, topic)

    def receive_payloads(self, count: int) -> list[bytes]:
        return [self.receive().payload for _ in range(count)]

    def answer(self, first_byte: int, message: Received, reason_code: int = 0) -> None:
        self.send(acknowledgement(first_byte, message.packet_id, reason_code))

    def finish(self, message: Received) -> None:
        """Acknowledges a message completely, as a device should."""
        if message.qos == 1:
            self.answer(PUBACK, message)
        elif message.qos == 2:
            self.answer(PUBREC, message)
            self.expect(acknowledgement(PUBREL, message.packet_id))
            self.answer(PUBCOMP, message)

    def publish(self, payload: bytes, *, qos: int, packet_id: int, dup: bool = False, properties: bytes = b"") -> None:
        first_byte = 0x30 | qos << 1 | dup << 3
        v5 = properties if self.level == 5 else None
        self.send(publish("up/t", payload, first_byte=first_byte, packet_id=packet_id if qos else None, v5=v5))

    def expect_disconnect(self, reason_code: int) -> None:
        """Expects nothing but DISCONNECT with this reason code (MQTT 5) or a bare close (MQTT 3.1.1)."""
        said = self.packet()
        assert (said[:1] + said[2:3] if said else b"") == (bytes((0xE0, reason_code)) if self.level == 5 else b"")
        self.expect_closed()


class DeviceWithWill(WireDevice):
    """Has a retained will on its topic, and a clean session that ends with the connection, as many firmwares have it."""

    def __init__(self, address: tuple[str, int], client_id: str, level: int) -> None:
        self.topic = f"{client_id}/status"
        will = b"\x00" * (level == 5) + text(self.topic) + text("offline")
        super().__init__(address, client_id, level, expiry_s=None, flags=0x2C, payload=will)

    def retain(self, payload: bytes) -> None:
        """Publishes to the topic of the will, and waits for PUBACK."""
        v5 = b"" if self.level == 5 else None
        self.send(publish(self.topic, payload, first_byte=0x33, packet_id=1, v5=v5))
        self.expect(acknowledgement(PUBACK, 1))

    def reset(self) -> None:
        """Loses the connection without DISCONNECT."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.socket.close()

    def retained_value(self) -> bytes:
        """Returns the retained message that a new subscriber of the topic gets. What is routed to it meanwhile has no RETAIN."""
        v5 = b"\x00" * (self.level == 5)
        self.send(packet(0x82, b"\x00\x02" + v5, text(self.topic) + b"\x00"))
        while (received := self.packet()) and received[0] != 0x31:
            pass
        return self.parse(received).payload


class Backend:
    """Writes `inflight.messages`, reads `inflight.uplink` and `inflight.receipts` as they grow."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._producer = KafkaProducer(bootstrap_servers=bootstrap_servers, acks="all")
        self._receipts: dict[str, dict[str, Any]] = {}
        self._uplink: dict[str, list[Any]] = defaultdict(list)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._read)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        self._producer.close()

    def _read(self) -> None:
        consumer = KafkaConsumer(bootstrap_servers=self._bootstrap_servers, auto_offset_reset="earliest", group_id=None)
        subscribe(consumer, ["inflight.uplink", "inflight.receipts"])
        while not self._stop.is_set():
            for records in consumer.poll(timeout_ms=100).values():
                for record in records:
                    if record.topic.endswith("uplink"):
                        self._uplink[record.key.decode()].append(record)
                    else:
                        receipt = json.loads(record.value)
                        self._receipts[receipt["message_id"]] = receipt
        consumer.close()

    def send(self, client_id: str, *payloads: bytes, qos: int = 1, **headers: str) -> list[str]:
        """Messages in order, confirmed by Kafka; their ids. headers: `_` stands for `-`."""
        names = [f"{client_id}/{payload.decode()}" for payload in payloads]
        extra = [(name.replace("_", "-"), value.encode()) for name, value in headers.items()]
        sent = []
        for name, payload in zip(names, payloads, strict=True):
            fields = [("mqtt-topic", b"cmd"), ("mqtt-qos", b"%d" % qos), ("message-id", name.encode()), *extra]
            sent.append(self._producer.send("inflight.messages", key=client_id.encode(), value=payload, headers=fields))
        for future in sent:
            future.get(timeout=PATIENCE_S)
        return names

    def publish(self, topic: str, payload: bytes) -> None:
        """Writes a record of `inflight.publications`, and returns when Kafka has confirmed it."""
        headers = [("mqtt-topic", topic.encode())]
        self._producer.send("inflight.publications", value=payload, headers=headers).get(timeout=PATIENCE_S)

    def receipt(self, message_id: str) -> dict[str, Any]:
        """Returns the newest receipt, once there is one."""
        return wait_until(lambda: self._receipts.get(message_id), f"the receipt of {message_id}")

    def outcome(self, message_id: str) -> str:
        """Returns the outcome of the receipt, once it is there."""
        return str(self.receipt(message_id)["outcome"])

    def outcomes(self, message_ids: Sequence[str]) -> list[str]:
        return [self.outcome(message_id) for message_id in message_ids]

    def uplink(self, client_id: str, last: bytes) -> list[bytes]:
        """Returns the client's publications in the order of the log, up to and with the payload `last`.

        Copies are left out, which have the same `inflight-id` as one before them.
        """
        wait_until(lambda: any(record.value == last for record in list(self._uplink[client_id])), f"{last!r} of {client_id}")
        by_id: dict[bytes, bytes] = {}
        for record in self._uplink[client_id]:
            payload = by_id.setdefault(dict(record.headers)["inflight-id"], record.value)
            assert payload == record.value, "a copy has the same payload"
        return list(by_id.values())

    def uplink_headers(self, client_id: str) -> list[dict[str, bytes]]:
        return [dict(record.headers) for record in self._uplink[client_id]]
