"""sinks.mqtt.connection.connection, in a connection."""

import mqtt5
import pytest

from sinks.mqtt.codec.packets import ClientPacket, ConnAck, ServerPacket
from sinks.mqtt.connection.handshake import V5, V311, Codec
from state.commands import CloseConnection, DropAwaitingRel, SendPublish, SendPubRel
from state.events import (
    ConnectionLost,
    PubAckReceived,
    PubCompReceived,
    PublishReceived,
    PubRecReceived,
    PubRelReceived,
    Subscribed,
    Unsubscribed,
)
from state.model import QoS, ReasonCode, Subscription
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, PINGRESP, ack, connected, send_publish, written
from tests.unit.sinks.mqtt.mqtt_bytes import packet, publish, text


class TestPublications:
    def test_puback_follows_the_confirmed_record(self) -> None:
        harness = connected()
        harness.confirming = False
        assert harness.send(publish("a/b", b"x", first_byte=0x33, packet_id=5)) == b""
        (record,) = harness.uplink
        assert record.value == b"x"
        assert dict(record.headers or [])["inflight-id"] == b"c1:77:1"
        assert dict(record.headers or [])["mqtt-retain"] == b"true"
        harness.confirm(record)
        assert harness.settle() == ack(0x40, 5)

    @pytest.mark.parametrize("call", ["write_settled", "tick", "peer_closed", "resume"])
    def test_answers_that_are_settled_leave_with_the_next_call(self, call: str) -> None:
        harness = connected()
        harness.confirming = False
        harness.send(publish("t", first_byte=0x32, packet_id=5) + publish("t", first_byte=0x32, packet_id=6))
        for record in harness.waiting:
            assert harness.connection.settle(record)
        assert harness.output() == b""
        harness.feed(call)
        assert harness.output() == ack(0x40, 5) + ack(0x40, 6)

    @pytest.mark.parametrize(("level", "goodbye"), [(4, b""), (5, bytes.fromhex("e0018b"))])
    def test_settled_answers_leave_before_the_connection_ends(self, level: int, goodbye: bytes) -> None:
        harness = connected(level)
        harness.confirming = False
        harness.send(publish("t", first_byte=0x32, packet_id=5, v5=b"" if level == 5 else None))
        (record,) = harness.waiting
        assert harness.connection.settle(record)
        harness.close("it stops", ReasonCode.SERVER_SHUTTING_DOWN)
        assert harness.output() == ack(0x40, 5) + goodbye
        harness.feed("write_settled")
        assert harness.output() == b""

    @pytest.mark.parametrize(
        ("capability", "data", "answer"),
        [
            ("retain_available", publish("t", first_byte=0x31, v5=b""), "e0019a"),
            ("shared_subscription_available", packet(0x82, b"\0\1\0", text("$share/g/t"), b"\0"), "900400010 09e"),
            ("subscription_id_available", packet(0x82, b"\0\1\2\x0b\1", text("t"), b"\0"), "e001a1"),
            ("wildcard_subscription_available", packet(0x82, b"\0\1\0", text("+/t/#"), b"\2"), "90040001 0002"),
        ],
    )
    def test_what_connack_says_is_available_is(self, capability: str, data: bytes, answer: str) -> None:
        """[MQTT-3.2.2-14]; Maximum QoS is 2, which CONNACK leaves out."""
        connack, _ = mqtt5.read(V5.encode(ConnAck()))
        is_available = answer.startswith("9004") and not answer.endswith("9e")
        assert getattr(connack, capability) is is_available
        assert int(connack.max_qos) == QoS.EXACTLY_ONCE
        assert connected(5, accept={"topic_filters": ()}).send(data) == bytes.fromhex(answer.replace(" ", ""))

    @pytest.mark.parametrize("qos", [0, 1, 2])
    def test_a_retained_publication_closes_in_mqtt_5(self, qos: int) -> None:
        """[MQTT-3.2.2-14] CONNACK says Retain Available 0. MQTT 3.1.1 cannot say so, and hands the flag on."""
        harness = connected(5)
        retained = 0x31 | qos << 1
        assert harness.send(publish("t", first_byte=retained, packet_id=qos or None, v5=b"")) == bytes.fromhex("e0019a")
        harness.last(ConnectionLost)
        assert harness.uplink == []

    def test_answers_keep_the_order_of_the_requests(self) -> None:
        """[MQTT-4.6.0-2]"""
        harness = connected()
        harness.confirming = False
        harness.send(publish("a", first_byte=0x32, packet_id=1), publish("b", first_byte=0x34, packet_id=2))
        first, second = harness.waiting
        harness.confirm(second)
        assert harness.settle() == b""
        harness.confirm(first)
        assert harness.settle() == ack(0x40, 1) + ack(0x50, 2)

    def test_pingreq_does_not_wait_for_kafka(self) -> None:
        harness = connected()
        harness.confirming = False
        assert harness.send(publish("a", first_byte=0x32, packet_id=1), PINGREQ) == PINGRESP

    def test_a_qos_2_publication_is_recorded_for_the_session(self) -> None:
        harness = connected()
        assert harness.send(publish("a", b"x", first_byte=0x34, packet_id=5)) == ack(0x50, 5)
        event = harness.last(PublishReceived)
        assert (event.packet_id, event.topic, event.payload, event.dup, event.publication_id) == (5, "a", b"x", False, "")
        assert harness.send(publish("a", b"x", first_byte=0x3C, packet_id=5)) == ack(0x50, 5)
        assert harness.last(PublishReceived).dup
        assert harness.send(ack(0x62, 5)) == ack(0x70, 5)
        assert harness.last(PubRelReceived).packet_id == 5
        assert harness.uplink == []

    def test_an_unknown_pubrel_is_completed_with_0x92(self) -> None:
        assert connected(5).send(ack(0x62, 9)) == bytes.fromhex("7003000992")
        assert connected(4).send(ack(0x62, 9)) == ack(0x70, 9)

    def test_packet_ids_that_the_session_dropped_are_unknown(self) -> None:
        harness = connected(5, accept={"awaiting_rel": (8, 9)})
        harness.command(DropAwaitingRel, packet_ids=(9,))
        assert harness.send(ack(0x62, 9)) == bytes.fromhex("7003000992")
        assert harness.send(ack(0x62, 8)) == ack(0x70, 8)

    def test_one_publication_too_many_closes_the_connection(self) -> None:
        """[MQTT-3.3.4-7]"""
        harness = connected(5, accept={"awaiting_rel": (1, 2)})
        assert harness.send(publish("a", first_byte=0x3C, packet_id=1, v5=b"")) == ack(0x50, 1)
        assert harness.send(publish("a", first_byte=0x34, packet_id=3, v5=b"")) == bytes.fromhex("e00193")
        assert isinstance(harness.events[-1], ConnectionLost)
        assert harness.counters.protocol_errors[0x93] == 1

    @pytest.mark.promise("max-awaiting-rel")
    def test_publications_before_an_overflow_are_answered_before_disconnect(self) -> None:
        """[MQTT-3.3.4-7]; else the device would send it all again, and overflow again."""
        harness = connected(5, keep_alive_s=10)
        harness.confirming = False
        packets = [publish("a", first_byte=0x34, packet_id=packet_id, v5=b"") for packet_id in (1, 2, 3, 4)]
        assert harness.send(*packets, PINGREQ) == b""
        first, second = harness.waiting
        harness.confirm(first)
        assert harness.settle() == ack(0x50, 1)
        assert harness.send(ack(0x62, 1), PINGREQ) == b"", "nothing counts after the violation"
        assert harness.pass_ms(60_000) == b"", "and nothing is expected"
        assert harness.wants_data, "what comes is read and dropped: a reset could destroy the answers"
        harness.confirm(second)
        assert harness.settle() == ack(0x50, 2) + bytes.fromhex("e00193")
        assert harness.connection.is_closed
        assert [type(event).__name__ for event in harness.events] == [
            "ClientConnected",
            "PublishReceived",
            "PublishReceived",
            "ConnectionLost",
        ]

    def test_an_overflowing_connection_ends_when_the_device_closes(self) -> None:
        harness = connected(5)
        harness.confirming = False
        harness.send(*(publish("a", first_byte=0x34, packet_id=packet_id, v5=b"") for packet_id in (1, 2, 3)))
        harness.feed("peer_closed")
        assert harness.connection.is_closed

    def test_a_failed_append_ends_an_overflowing_connection_at_once(self) -> None:
        harness = connected(5)
        harness.confirming = False
        harness.send(*(publish("a", first_byte=0x34, packet_id=packet_id, v5=b"") for packet_id in (1, 2, 3)))
        harness.confirm(harness.waiting[0], RuntimeError("no broker"))
        assert harness.settle() == bytes.fromhex("e00189")

    def test_too_many_qos_2_publications_of_mqtt_3_1_1_stop_reading(self) -> None:
        harness = connected(4)
        harness.confirming = False
        packets = [publish("a", first_byte=0x34, packet_id=packet_id) for packet_id in range(1, 6)]
        assert harness.send(*packets, ack(0x62, 1)) == b""
        assert len(harness.waiting) == 2
        assert not harness.wants_data
        harness.confirming = True
        assert harness.settle() == b"".join(ack(0x50, packet_id) for packet_id in range(1, 6)) + ack(0x70, 1)
        assert harness.wants_data

    def test_a_topic_alias_is_resolved_before_the_record(self) -> None:
        harness = connected(5)
        harness.send(publish("a/b", b"1", v5=b"\x23\x00\x01"), publish("", b"2", v5=b"\x23\x00\x01"))
        assert [dict(record.headers or [])["mqtt-topic"] for record in harness.uplink] == [b"a/b", b"a/b"]
        assert harness.send(publish("x", v5=b"\x23\x00\x11")) == bytes.fromhex("e00194")

    @pytest.mark.parametrize(
        ("data", "code"),
        [
            (b"\x90\x00", "82"),
            (b"\xc1\x00", "81"),
            (b"\xf0\x00", "8c"),
            (publish("a/#", v5=b""), "90"),
            (b"\x30\xff\xff\xff\x7f", "95"),
        ],
    )
    def test_what_mqtt_forbids_closes_the_connection_with_its_reason(self, data: bytes, code: str) -> None:
        """[MQTT-4.13.1-1]"""
        harness = connected(5)
        assert harness.send(data) == bytes.fromhex("e001" + code)
        assert harness.connection.is_closed
        assert len(harness.events) == 2
        harness.last(ConnectionLost)

    def test_mqtt_3_1_1_is_closed_without_disconnect(self) -> None:
        harness = connected(4)
        assert harness.send(b"\x90\x00") == b""
        harness.last(ConnectionLost)


class TestDelivery:
    def test_messages_are_metered_and_acknowledgements_recorded(self) -> None:
        harness = connected()
        assert send_publish(harness, 1) == written(1)
        assert send_publish(harness, 2, qos=2) == written(2, qos=2)
        assert send_publish(harness, 3) == b""
        assert send_publish(harness, 0, qos=0) == written(0, qos=0)
        assert harness.send(ack(0x40, 1)) == written(3)
        assert harness.last(PubAckReceived).packet_id == 1

    def test_pubrel_follows_the_confirmed_pubrec(self) -> None:
        harness = connected()
        send_publish(harness, 2, qos=2)
        harness.confirming = False
        assert harness.send(ack(0x50, 2)) == b""
        assert harness.last(PubRecReceived).pubrel_sent
        harness.confirming = True
        assert harness.settle() == ack(0x62, 2)
        assert harness.send(ack(0x70, 2)) == b""
        assert harness.last(PubCompReceived).packet_id == 2

    def test_an_unknown_or_refusing_pubrec_is_the_sessions_business(self) -> None:
        harness = connected(5)
        assert harness.send(ack(0x50, 9)) == b""
        assert not harness.last(PubRecReceived).pubrel_sent
        send_publish(harness, 2, qos=2)
        assert harness.send(bytes.fromhex("5003000297")) == b""
        event = harness.last(PubRecReceived)
        assert (event.reason_code, event.pubrel_sent) == (0x97, False)
        assert harness.command(SendPubRel, packet_id=9, reason_code=0x92) == bytes.fromhex("6203000992")

    def test_a_command_is_carried_out_once(self) -> None:
        harness = connected()
        sequence = harness.sequence + 1
        assert send_publish(harness, 0, qos=0) != b""
        again = harness.command(SendPublish, sequence=sequence, packet_id=0, topic="t", payload=b"p", qos=QoS(0))
        assert again == b""
        assert harness.counters.commands_repeated == 1

    def test_a_message_that_mqtt_cannot_carry_takes_no_slot(self) -> None:
        harness = connected(accept={"send_quota": 1})
        harness.command(SendPublish, packet_id=1, topic="x" * 70_000, payload=b"", qos=QoS(1))
        assert harness.counters.unsendable == 1
        assert send_publish(harness, 2) == written(2)

    def test_mqtt_5_gets_the_remaining_expiry_interval(self) -> None:
        harness = connected(5)
        data = harness.command(SendPublish, packet_id=0, topic="t", payload=b"", qos=QoS(0), expiry_interval_s=7)
        assert data == publish("t", v5=b"\x02\x00\x00\x00\x07")

    def test_waiting_time_is_subtracted_from_the_expiry_interval(self) -> None:
        """[MQTT-3.3.2-6] A message that was sent no longer expires."""
        harness = connected(5, accept={"send_quota": 1})
        for packet_id, expiry_s in ((1, 60), (2, 60), (3, None), (4, 5)):
            publish_1 = {"packet_id": packet_id, "topic": "t", "payload": b"p", "qos": QoS(1)}
            harness.command(SendPublish, **publish_1, expiry_interval_s=expiry_s)
        harness.now_ms += 20_500
        for acknowledged, left in ((1, b"\x02\x00\x00\x00\x28"), (2, b""), (3, b"\x02\x00\x00\x00\x01")):
            following = publish("t", b"p", first_byte=0x32, packet_id=acknowledged + 1, v5=left)
            assert harness.send(ack(0x40, acknowledged)) == following

    def test_the_end_of_a_taken_over_connection_is_not_reported(self) -> None:
        harness = connected(5)
        assert harness.command(CloseConnection, reason_code=ReasonCode.SESSION_TAKEN_OVER) == bytes.fromhex("e0018e")
        assert harness.connection.is_closed
        assert len(harness.events) == 1
        harness.feed("peer_closed")
        harness.settle()
        assert len(harness.events) == 1

    def test_a_close_by_the_engine_is_recorded_when_done(self) -> None:
        """[MQTT-3.1.2-23] The time of the session begins with it."""
        harness = connected(5)
        harness.command(CloseConnection, reason_code=0x83, reason="late")
        assert harness.last(ConnectionLost).reason == "late"
        assert len(harness.events) == 2
        harness.feed("peer_closed")
        harness.settle()
        assert len(harness.events) == 2

    def test_the_reason_string_of_a_close_is_sent_if_it_fits(self) -> None:
        """[MQTT-3.14.2-3]"""
        words = "a message was not acknowledged in time"
        spoken = packet(0xE0, b"\x83", bytes((len(words) + 3,)), b"\x1f", text(words))
        for limit, answer in ((len(spoken), spoken), (len(spoken) - 1, b"\xe0\x01\x83")):
            harness = connected(5, properties=b"\x27" + limit.to_bytes(4, "big"))
            assert harness.command(CloseConnection, reason_code=0x83, reason=words) == answer
            assert harness.connection.is_closed

    def test_the_reason_string_of_a_refusal_is_recorded(self) -> None:
        harness = connected(5)
        send_publish(harness, 1)
        harness.send(packet(0x40, b"\x00\x01\x87\x05\x1f", text("no")))
        assert (harness.last(PubAckReceived).reason_code, harness.last(PubAckReceived).reason) == (0x87, "no")
        send_publish(harness, 2, qos=2)
        harness.send(packet(0x50, b"\x00\x02\x97\x05\x1f", text("no")))
        assert (harness.last(PubRecReceived).reason_code, harness.last(PubRecReceived).reason) == (0x97, "no")


class TestSubscriptions:
    def test_suback_and_unsuback_follow_the_record(self) -> None:
        harness = connected()
        harness.confirming = False
        assert harness.send(packet(0x82, b"\x00\x09", text("a/#"), b"\x02", text("#/a"), b"\x00")) == b""
        assert harness.last(Subscribed).subscriptions == (Subscription(topic_filter="a/#", qos=QoS(2)),)
        harness.confirming = True
        assert harness.settle() == bytes.fromhex("900400090280")
        assert harness.send(packet(0xA2, b"\x00\x0a", text("a/#"))) == ack(0xB0, 10)
        assert harness.last(Unsubscribed).topic_filters == ("a/#",)

    def test_unsuback_of_mqtt_5_reports_a_missing_subscription(self) -> None:
        harness = connected(5, accept={"topic_filters": ("kept",)})
        unsubscribe = packet(0xA2, b"\x00\x0a\x00", text("kept"), text("other"))
        assert harness.send(unsubscribe) == bytes.fromhex("b005000a000011")
        assert harness.last(Unsubscribed).topic_filters == ("kept", "other")

    def test_a_refusal_needs_no_record_but_waits_for_its_turn(self) -> None:
        harness = connected(5)
        refused = packet(0x82, b"\x00\x09\x00", text("$share/g/a"), b"\x00")
        assert harness.send(refused) == bytes.fromhex("90040009009e")
        harness.confirming = False
        assert harness.send(publish("a", first_byte=0x32, packet_id=1, v5=b""), refused) == b""
        harness.confirming = True
        assert harness.settle() == ack(0x40, 1) + bytes.fromhex("90040009009e")
        assert not any(isinstance(event, Subscribed) for event in harness.events)

    def test_a_subscription_identifier_closes(self) -> None:
        """CONNACK said Subscription Identifiers Available = 0"""
        assert connected(5).send(packet(0x82, b"\x00\x09\x02\x0b\x01", text("a"), b"\x00")) == bytes.fromhex("e001a1")


class TestNoValueOfEachPacket:
    """Most packets are decoded and encoded without a packet object and without an event object."""

    def test_of_acknowledgements_and_of_what_the_session_sends(self, monkeypatch: pytest.MonkeyPatch) -> None:
        decoded: list[bytes] = []
        encoded: list[ServerPacket] = []

        def decode(packet: bytes, body_start: int) -> ClientPacket:
            decoded.append(packet)
            return V311.decode(packet, body_start)

        def encode(packet: ServerPacket) -> bytes:
            encoded.append(packet)
            return V311.encode(packet)

        codec = Codec(V311.protocol_version, decode, encode, V311.encode_publish)
        monkeypatch.setattr("sinks.mqtt.connection.handshake.V311", codec)
        harness = connected()
        assert [packet[0] for packet in decoded] == [0x10]
        assert send_publish(harness, 1, qos=1) == publish("t", b"p", first_byte=0x32, packet_id=1)
        assert send_publish(harness, 2, qos=2) == publish("t", b"p", first_byte=0x34, packet_id=2)
        assert harness.send(ack(0x40, 1)) == b""
        assert harness.send(ack(0x50, 2)) == ack(0x62, 2)
        assert harness.send(ack(0x70, 2)) == b""
        harness.send(publish("up", b"x", first_byte=0x34, packet_id=3))
        assert harness.send(ack(0x62, 3)) == ack(0x70, 3)
        assert [packet[0] for packet in decoded] == [0x10, 0x34]
        assert [type(packet) for packet in encoded] == [ConnAck]
        assert [type(event) for event in harness.events[-5:]] == [
            PubAckReceived,
            PubRecReceived,
            PubCompReceived,
            PublishReceived,
            PubRelReceived,
        ]
