"""sinks.mqtt.connection.outbound: the wire and a device that does not read. What may be on the wire is in test_wire_meter.py."""

from typing import Any

from sinks.mqtt.connection.handshake import V5, V311
from sinks.mqtt.connection.outbound import FastSend, Outbound
from sinks.mqtt.metrics import GatewayCounters
from state.commands import SendPublish
from state.model import Message, PublishProperties, QoS
from tests.unit.sinks.mqtt.mqtt_bytes import publish

MIB = 1 << 20


class Wire:
    """Outbound, and what they have written."""

    def __init__(self, **fields: Any) -> None:
        self.output: list[bytes] = []
        self.counters = GatewayCounters()
        given = {
            "send_quota": 2,
            "encode": V311.encode_publish,
            "output": self.output,
            "counters": self.counters,
            "max_blocked_qos0_bytes": MIB,
            **fields,
        }
        self.deliveries = Outbound(**given)
        self.now_ms = 1_000

    def send(self, packet_id: int, *, qos: int = 1, payload: bytes = b"p", **fields: Any) -> None:
        given = {"connection_id": 1, "partition": 0, "sequence": 1, "topic": "t", "qos": QoS(qos), **fields}
        self.deliveries.send(SendPublish(packet_id=packet_id, payload=payload, **given), self.now_ms)

    def written(self) -> list[bytes]:
        new = list(self.output)
        self.output.clear()
        return new


def wanted(packet_id: int, *, qos: int = 1) -> bytes:
    return publish("t", b"p", first_byte=0x30 | qos << 1, packet_id=packet_id if qos else None)


def test_an_answer_of_the_device_brings_out_what_waited_for_it() -> None:
    wire = Wire()
    for packet_id, qos in ((1, 1), (2, 2), (3, 1), (4, 1), (5, 1)):
        wire.send(packet_id, qos=qos)
    assert wire.written() == [wanted(1), wanted(2, qos=2)]
    wire.deliveries.acknowledged(1, wire.now_ms)
    assert wire.written() == [wanted(3)]
    assert wire.deliveries.received(2, 0, wire.now_ms), "PUBREL is to follow"
    assert wire.written() == [], "the slot is held until PUBCOMP"
    wire.deliveries.completed(2, wire.now_ms)
    assert wire.written() == [wanted(4)]
    assert not wire.deliveries.received(9, 0, wire.now_ms), "the session's business"
    wire.deliveries.withdraw((3,), wire.now_ms)
    assert wire.written() == [wanted(5)]
    assert wire.counters.publishes_sent == 5


def test_a_refusing_pubrec_brings_out_the_next_one() -> None:
    wire = Wire(send_quota=1)
    wire.send(1, qos=2)
    wire.send(2)
    wire.written()
    assert not wire.deliveries.received(1, 0x80, wire.now_ms)
    assert wire.written() == [wanted(2)]


def test_a_device_that_does_not_read_gets_nothing_new_but_qos_0_until_it_does() -> None:
    wire = Wire(is_blocked=True)
    wire.send(1)
    wire.send(0, qos=0)
    assert wire.written() == [wanted(0, qos=0)]
    wire.deliveries.block(False, wire.now_ms)
    assert wire.written() == [wanted(1)]
    wire.deliveries.block(True, wire.now_ms)
    wire.deliveries.acknowledged(1, wire.now_ms)
    wire.send(2)
    assert wire.written() == []
    wire.deliveries.block(False, wire.now_ms)
    assert wire.written() == [wanted(2)]


def test_qos_0_for_a_device_that_does_not_read_is_bounded_each_time() -> None:
    wire = Wire(is_blocked=True)
    wire.send(0, qos=0, payload=bytes(MIB - len("t")))
    wire.send(0, qos=0)
    assert len(wire.written()) == 1
    assert wire.counters.qos0_dropped == 1
    wire.deliveries.block(True, wire.now_ms)
    wire.send(0, qos=0)
    assert wire.written() == [wanted(0, qos=0)]


def test_properties_count_like_payload() -> None:
    wire = Wire(is_blocked=True, encode=V5.encode_publish, max_blocked_qos0_bytes=1_000)
    properties = PublishProperties(user_properties=tuple((f"k{number}", "v" * 20) for number in range(30)))
    wire.send(0, qos=0, properties=properties)
    wire.send(0, qos=0, properties=properties)
    assert len(wire.written()) == 1
    assert wire.counters.qos0_dropped == 1


def test_the_time_that_a_message_waits_here_is_taken_off_its_expiry_interval() -> None:
    """[MQTT-3.3.2-6]"""
    wire = Wire(send_quota=1, encode=V5.encode_publish)
    for packet_id, expiry_interval_s in ((1, 60), (2, 60), (3, None), (4, 5)):
        wire.send(packet_id, expiry_interval_s=expiry_interval_s)
    wire.now_ms += 20_000
    wire.send(2, expiry_interval_s=40, dup=True)  # a resend that finds the first one still here changes nothing
    wire.now_ms += 500
    for packet_id in (1, 2, 3):
        wire.deliveries.acknowledged(packet_id, wire.now_ms)
    assert wire.written() == [
        publish("t", b"p", first_byte=0x32, packet_id=1, v5=b"\x02" + (60).to_bytes(4, "big")),
        publish("t", b"p", first_byte=0x32, packet_id=2, v5=b"\x02" + (40).to_bytes(4, "big")),
        publish("t", b"p", first_byte=0x32, packet_id=3, v5=b""),
        publish("t", b"p", first_byte=0x32, packet_id=4, v5=b"\x02" + (1).to_bytes(4, "big")),
    ]


def test_a_publish_that_waits_is_dropped_when_the_session_releases_its_id() -> None:
    """[MQTT-4.3.3-6]"""
    wire = Wire(is_blocked=True)
    wire.send(1, qos=2, dup=True)
    wire.deliveries.release(1)
    wire.deliveries.block(False, wire.now_ms)
    assert wire.written() == []
    assert wire.counters.resends_dropped == 1


def test_a_written_message_that_is_given_up_keeps_its_slot_of_the_receive_maximum() -> None:
    """[MQTT-3.3.4-9]"""
    wire = Wire(send_quota=1, receive_maximum=1)
    wire.send(1)
    wire.send(2)
    wire.deliveries.withdraw((1,), wire.now_ms)
    assert wire.written() == [wanted(1)]
    wire.deliveries.acknowledged(1, wire.now_ms)
    assert wire.written() == [wanted(2)]


def test_a_withdrawn_message_leaves_no_waiting_time_to_the_next_one_under_its_id() -> None:
    wire = Wire(send_quota=1, encode=V5.encode_publish)
    wire.send(1)
    wire.send(2, expiry_interval_s=60)
    wire.deliveries.withdraw((2,), wire.now_ms)
    wire.now_ms += 30_000
    wire.send(2, expiry_interval_s=60)
    wire.written()
    wire.deliveries.acknowledged(1, wire.now_ms)
    assert wire.written() == [publish("t", b"p", first_byte=0x32, packet_id=2, v5=b"\x02" + (60).to_bytes(4, "big"))]


class TestHeldBytes:
    """Of messages that wait until they may be written."""

    SIZE = 1_000

    def held(self, wire: Wire) -> int:
        """In messages."""
        return wire.deliveries.held_bytes // self.SIZE

    def send(self, wire: Wire, packet_id: int, *, qos: int = 1) -> None:
        wire.send(packet_id, qos=qos, payload=bytes(self.SIZE))

    def test_what_is_written_does_not_count(self) -> None:
        wire = Wire()
        self.send(wire, 1)
        self.send(wire, 0, qos=0)
        assert wire.deliveries.held_bytes == 0

    def test_messages_that_wait_for_a_slot_count_until_they_have_it(self) -> None:
        wire = Wire(send_quota=1)
        for packet_id in (1, 2, 3):
            self.send(wire, packet_id, qos=2)
        assert self.held(wire) == 3
        wire.deliveries.withdraw((1,), wire.now_ms)
        assert self.held(wire) == 1
        wire.deliveries.release(3)
        assert wire.deliveries.held_bytes == 0

    def test_messages_for_a_device_that_does_not_read_count_until_it_does(self) -> None:
        wire = Wire(is_blocked=True, send_quota=8)
        for packet_id in (1, 2, 3):
            self.send(wire, packet_id)
        assert self.held(wire) == 4, "each takes more than its text"
        wire.deliveries.block(False, wire.now_ms)
        assert wire.deliveries.held_bytes == 0

    def test_qos_0_behind_a_message_of_the_fast_path_counts_until_it_is_written(self) -> None:
        wire = Wire(max_blocked_qos0_bytes=2_100)
        taken = FastSend(Message(message_id="m", topic="t", payload=b"f"), QoS(1), 9, None, b"f", wire.now_ms)
        assert wire.deliveries.take(taken)
        for _ in range(10):
            self.send(wire, 0, qos=0)
        assert wire.counters.qos0_dropped == 8
        assert self.held(wire) == 3
        wire.deliveries.confirmed(taken, wire.now_ms)
        assert wire.deliveries.held_bytes == 0
        assert len(wire.written()) == 3
