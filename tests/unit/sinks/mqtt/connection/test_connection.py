"""sinks.mqtt.connection.connection: a device and an engine in a few lines around it, no sockets, no Kafka, time by hand."""

from typing import Any

import pytest

from sinks.mqtt.connection.appends import Append
from sinks.mqtt.connection.connection import Connection, Phase
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.commands import (
    AcceptConnection,
    CloseConnection,
    DropAwaitingRel,
    GatewayCommand,
    SendPublish,
    SendPubRel,
    WithdrawPublish,
)
from state.events import (
    ClientConnected,
    ClientDisconnected,
    ConnectionLost,
    GatewayEvent,
    PubAckReceived,
    PubCompReceived,
    PublishReceived,
    PubRecReceived,
    PubRelReceived,
    Subscribed,
    Unsubscribed,
)
from state.model import QoS, ReasonCode, Subscription
from state.records.codec import decode_event
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, publish, text

PINGREQ, PINGRESP = b"\xc0\x00", b"\xd0\x00"


class Harness:
    """confirming: whether Kafka confirms at once."""

    def __init__(self, *, partition: int | None = 3, **settings: Any) -> None:
        self.now_ms = 1_000
        self.counters = GatewayCounters()
        self.partition = partition
        self.confirming = True
        self.waiting: list[Append] = []
        self.events: list[GatewayEvent] = []
        self.uplink: list[Append] = []
        self.sequence = 0
        self.connection = Connection(GatewaySettings(**settings), self, self.counters, self.now_ms)

    # Registrar
    def register(self, connection: Connection) -> tuple[int, int] | None:
        return None if self.partition is None else (77, self.partition)

    def new_client_id(self) -> str:
        return "assigned"

    # host
    def settle(self) -> bytes:
        """What a host does after each call; the bytes for the device."""
        output = b""
        while True:
            output += self.connection.take_output()
            appends = self.connection.take_appends()
            for append in appends:
                (self.uplink if append.is_uplink else self.events).append(
                    append if append.is_uplink else decode_event(append.value)
                )  # type: ignore[attr-defined]
            self.waiting += appends
            if not (self.confirming and self.waiting):
                return output
            for append in list(self.waiting):
                self.confirm(append)

    def confirm(self, append: Append, error: Exception | None = None, *, too_large: bool = False) -> None:
        self.waiting.remove(append)
        self.connection.confirm(append, error, self.now_ms, too_large=too_large)

    def send(self, *data: bytes) -> bytes:
        self.connection.receive(b"".join(data), self.now_ms)
        return self.settle()

    def command(self, kind: type[GatewayCommand], *, sequence: int | None = None, **fields: Any) -> bytes:
        self.sequence += 1
        self.connection.apply(kind(connection_id=77, partition=3, sequence=sequence or self.sequence, **fields), self.now_ms)
        return self.settle()

    def pass_ms(self, ms: int) -> bytes:
        self.now_ms += ms
        self.connection.tick(self.now_ms)
        return self.settle()

    def last(self, kind: type[Any]) -> Any:
        event = self.events[-1]
        assert isinstance(event, kind), event
        return event


def connected(
    level: int = 4, *, keep_alive_s: int = 10, properties: bytes = b"", accept: dict[str, Any] | None = None, **settings: Any
) -> Harness:
    harness = Harness(**settings)
    assert harness.send(connect(level=level, keep_alive_s=keep_alive_s, properties=properties)) == b""
    answer = harness.command(AcceptConnection, **{"send_quota": 2, "max_awaiting_rel": 2, **(accept or {})})
    assert answer[0] == 0x20
    assert answer[3] == 0
    return harness


def send_publish(harness: Harness, packet_id: int, *, qos: int = 1, dup: bool = False, payload: bytes = b"p") -> bytes:
    return harness.command(SendPublish, packet_id=packet_id, topic="t", payload=payload, qos=QoS(qos), dup=dup)


def written(packet_id: int, *, qos: int = 1, dup: bool = False) -> bytes:
    return publish("t", b"p", first_byte=0x30 | qos << 1 | dup << 3, packet_id=packet_id if qos else None)


def ack(first_byte: int, packet_id: int) -> bytes:
    return bytes((first_byte, 2)) + packet_id.to_bytes(2, "big")


class TestConnect:
    def test_connack_waits_for_the_engine(self) -> None:
        harness = Harness()
        assert harness.send(connect(level=4, flags=0x00)) == b""
        event = harness.last(ClientConnected)
        assert (event.connection_id, event.commands_partition, event.clean_start) == (77, 3, False)
        assert event.session_expiry_interval_s is None
        assert harness.command(AcceptConnection, session_present=True) == bytes.fromhex("20020100")
        assert harness.connection.phase is Phase.CONNECTED

    def test_clean_session_of_mqtt_3_1_1_means_a_session_that_ends_with_the_connection(self) -> None:
        harness = Harness()
        harness.send(connect(level=4, flags=0x02))
        event = harness.last(ClientConnected)
        assert (event.clean_start, event.session_expiry_interval_s) == (True, 0)

    def test_an_empty_client_id_gets_one(self) -> None:
        harness = Harness()
        harness.send(connect(level=5, payload=text("")))
        assert harness.connection.client_id == "assigned"
        assert b"\x12" + text("assigned") in harness.command(AcceptConnection)

    def test_packets_sent_before_connack_wait_and_are_then_worked_off(self) -> None:
        """[MQTT-3.1.4-5]"""
        harness = Harness()
        assert harness.send(connect(), PINGREQ, publish("t", first_byte=0x32, packet_id=5)) == b""
        assert harness.uplink == []
        assert harness.command(AcceptConnection) == bytes.fromhex("20020000") + PINGRESP + ack(0x40, 5)

    def test_an_early_flood_is_not_read_for_ever(self) -> None:
        harness = Harness()
        harness.send(connect(), PINGREQ)
        assert harness.connection.wants_data
        harness.send(PINGREQ * 40_000)
        assert not harness.connection.wants_data
        harness.command(AcceptConnection)
        assert harness.connection.wants_data

    @pytest.mark.parametrize(("level", "answer"), [(4, "20020003"), (5, "2003008800")])
    def test_without_a_partition_the_server_is_unavailable(self, level: int, answer: str) -> None:
        harness = Harness(partition=None)
        assert harness.send(connect(level=level)) == bytes.fromhex(answer)
        assert harness.connection.is_closed
        assert harness.events == []

    @pytest.mark.parametrize(("level", "answer"), [(4, "20020003"), (5, "2003008800")])
    def test_an_engine_that_does_not_answer_in_time_is_unavailable(self, level: int, answer: str) -> None:
        harness = Harness(accept_timeout_ms=30_000)
        harness.send(connect(level=level))
        assert harness.pass_ms(29_999) == b""
        assert harness.pass_ms(1) == bytes.fromhex(answer)
        assert harness.last(ConnectionLost).connection_id == 77

    def test_a_socket_without_connect_is_closed(self) -> None:
        harness = Harness(connect_timeout_ms=5_000)
        harness.send(connect()[:5])
        assert harness.pass_ms(5_000) == b""
        assert harness.connection.is_closed
        assert harness.events == []

    def test_a_client_that_leaves_before_connack_is_lost(self) -> None:
        harness = Harness()
        harness.send(connect())
        harness.connection.peer_closed(harness.now_ms)
        harness.settle()
        harness.last(ConnectionLost)

    def test_an_engine_that_closes_instead_of_accepting_is_answered_with_connack(self) -> None:
        harness = Harness()
        harness.send(connect(level=5))
        assert harness.command(CloseConnection, reason_code=0x97) == bytes.fromhex("2003009700")
        assert len(harness.events) == 1

    def test_a_reason_that_connack_cannot_carry_becomes_unavailable(self) -> None:
        harness = Harness()
        harness.send(connect(level=5))
        assert harness.command(CloseConnection, reason_code=0x8E) == bytes.fromhex("2003008800")

    def test_a_second_connect_is_a_protocol_error(self) -> None:
        """[MQTT-3.1.0-2]"""
        harness = connected(5)
        assert harness.send(connect(level=5)) == bytes.fromhex("e00182")
        harness.last(ConnectionLost)


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

    def test_qos_0_is_recorded_and_not_answered(self) -> None:
        harness = connected()
        assert harness.send(publish("a", b"x")) == b""
        assert len(harness.uplink) == 1

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

    def test_qos_2_is_told_to_the_session(self) -> None:
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

    def test_ids_that_the_session_knows_are_known(self) -> None:
        harness = connected(5, accept={"awaiting_rel": (9,)})
        assert harness.send(ack(0x62, 9)) == ack(0x70, 9)

    def test_ids_that_the_session_has_dropped_are_unknown(self) -> None:
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

    def test_unanswered_qos_1_publications_count_in_mqtt_5(self) -> None:
        harness = connected(5)
        harness.confirming = False
        one = publish("a", first_byte=0x32, packet_id=1, v5=b"")
        assert harness.send(one, one) == b""
        assert harness.send(one) == bytes.fromhex("e00193")

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

    def test_mqtt_3_1_1_is_closed_without_a_word(self) -> None:
        harness = connected(4)
        assert harness.send(b"\x90\x00") == b""
        harness.last(ConnectionLost)


class TestBackPressure:
    def test_a_device_that_outruns_kafka_is_not_read_until_half_is_confirmed(self) -> None:
        harness = connected(max_unconfirmed_appends=4)
        harness.confirming = False
        harness.send(*(publish("a", b"%d" % number) for number in range(10)))
        assert [record.value for record in harness.uplink] == [b"0", b"1", b"2", b"3"]
        assert not harness.connection.wants_data
        harness.confirm(harness.waiting[0])
        harness.settle()
        assert len(harness.uplink) == 4
        harness.confirm(harness.waiting[0])
        harness.settle()
        assert [record.value for record in harness.uplink[4:]] == [b"4", b"5"]
        harness.confirming = True
        harness.settle()
        assert len(harness.uplink) == 10
        assert harness.connection.wants_data

    def test_what_came_before_the_end_of_the_stream_is_still_recorded(self) -> None:
        harness = connected(max_unconfirmed_appends=2)
        harness.confirming = False
        harness.send(*(publish("a", b"%d" % number) for number in range(5)), b"\xe0\x00")
        harness.connection.peer_closed(harness.now_ms)
        harness.confirming = True
        harness.settle()
        assert len(harness.uplink) == 5
        harness.last(ClientDisconnected)
        assert harness.connection.is_closed

    def test_a_device_that_we_do_not_read_is_not_silent(self) -> None:
        harness = connected(max_unconfirmed_appends=1, keep_alive_s=1)
        harness.confirming = False
        harness.send(publish("a"))
        harness.pass_ms(60_000)
        assert not harness.connection.is_closed

    @pytest.mark.parametrize(("too_large", "code"), [(False, "89"), (True, "95")])
    def test_a_record_that_kafka_does_not_take_closes_without_an_answer(self, too_large: bool, code: str) -> None:
        harness = connected(5)
        harness.confirming = False
        harness.send(publish("a", first_byte=0x32, packet_id=1, v5=b""), publish("a", first_byte=0x34, packet_id=2, v5=b""))
        first, second = harness.waiting
        harness.confirm(first, OSError("told to fail"), too_large=too_large)
        harness.confirm(second)
        assert harness.settle() == bytes.fromhex("e001" + code)
        harness.last(ConnectionLost)
        assert harness.connection.is_closed

    def test_nothing_but_qos_0_is_written_for_a_device_that_does_not_read(self) -> None:
        harness = connected()
        harness.connection.writing_blocked(True, harness.now_ms)
        assert not harness.connection.wants_data
        assert send_publish(harness, 1) == b""
        assert send_publish(harness, 0, qos=0) == written(0, qos=0)
        assert len(send_publish(harness, 0, qos=0, payload=bytes(1 << 20))) == 0
        assert harness.counters.qos0_dropped == 1
        harness.connection.writing_blocked(False, harness.now_ms)
        assert harness.settle() == written(1)

    def test_a_device_that_never_reads_is_closed(self) -> None:
        for keep_alive_s, patience_ms in (10, 15_000), (0, 60_000):
            harness = connected(keep_alive_s=keep_alive_s)
            harness.pass_ms(1_000)
            harness.send(PINGREQ)
            harness.connection.writing_blocked(True, harness.now_ms)
            harness.pass_ms(patience_ms - 1)
            assert not harness.connection.is_closed
            harness.pass_ms(1)
            assert harness.connection.is_closed


class TestDelivery:
    def test_messages_are_metered_and_acknowledgements_told(self) -> None:
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

    def test_a_withdrawn_message_makes_room(self) -> None:
        harness = connected(accept={"send_quota": 1})
        send_publish(harness, 1)
        send_publish(harness, 2)
        send_publish(harness, 3)
        assert harness.command(WithdrawPublish, packet_ids=(1, 2)) == written(3)

    def test_a_message_that_mqtt_cannot_carry_takes_no_slot(self) -> None:
        harness = connected(accept={"send_quota": 1})
        harness.command(SendPublish, packet_id=1, topic="x" * 70_000, payload=b"", qos=QoS(1))
        assert harness.counters.unsendable == 1
        assert send_publish(harness, 2) == written(2)

    def test_the_expiry_that_is_left_is_told_to_mqtt_5(self) -> None:
        harness = connected(5)
        data = harness.command(SendPublish, packet_id=0, topic="t", payload=b"", qos=QoS(0), expiry_interval_s=7)
        assert data == publish("t", v5=b"\x02\x00\x00\x00\x07")

    def test_the_engine_closes_and_nobody_tells_it_so(self) -> None:
        harness = connected(5)
        assert harness.command(CloseConnection, reason_code=ReasonCode.SESSION_TAKEN_OVER) == bytes.fromhex("e0018e")
        assert harness.connection.is_closed
        assert len(harness.events) == 1
        harness.connection.peer_closed(harness.now_ms)
        harness.settle()
        assert len(harness.events) == 1

    def test_the_engine_says_why_it_closes_if_there_is_room_for_the_words(self) -> None:
        """[MQTT-3.14.2-3]"""
        words = "a message was not acknowledged in time"
        spoken = packet(0xE0, b"\x83", bytes((len(words) + 3,)), b"\x1f", text(words))
        for limit, answer in ((len(spoken), spoken), (len(spoken) - 1, b"\xe0\x01\x83")):
            harness = connected(5, properties=b"\x27" + limit.to_bytes(4, "big"))
            assert harness.command(CloseConnection, reason_code=0x83, reason=words) == answer
            assert harness.connection.is_closed

    def test_the_reason_string_of_a_refusal_is_told_to_the_engine(self) -> None:
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

    def test_unsuback_tells_mqtt_5_that_there_was_no_subscription(self) -> None:
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


class TestMaximumPacketSizeOfTheClient:
    """[MQTT-3.1.2-24] for what is no PUBLISH; those are the session's business."""

    def test_a_connack_without_room_becomes_a_refusal(self) -> None:
        for limit, answer in ((10, "2003009500"), (4, "")):
            harness = Harness()
            harness.send(connect(level=5, properties=b"\x27" + limit.to_bytes(4, "big")))
            assert harness.command(AcceptConnection) == bytes.fromhex(answer)
            assert harness.connection.is_closed
            harness.last(ConnectionLost)

    def test_an_acknowledgement_without_room_ends_the_connection_before_anything_is_granted(self) -> None:
        harness = connected(5, properties=b"\x27\x00\x00\x00\x28")
        subscribe = packet(0x82, b"\x00\x09\x00", *(text(f"t/{number}") + b"\x01" for number in range(40)))
        assert harness.send(subscribe) == bytes.fromhex("e00195")
        assert not any(isinstance(event, Subscribed) for event in harness.events)
        harness.last(ConnectionLost)


class TestEnd:
    def test_disconnect_is_told_and_closes(self) -> None:
        """[MQTT-3.14.4-3]"""
        harness = connected()
        assert harness.send(b"\xe0\x00") == b""
        assert harness.connection.is_closed
        assert harness.last(ClientDisconnected).reason_code == 0
        harness.connection.peer_closed(harness.now_ms)
        harness.settle()
        harness.last(ClientDisconnected)

    def test_disconnect_with_will_keeps_its_reason(self) -> None:
        harness = connected(5)
        harness.send(b"\xe0\x01\x04")
        assert harness.last(ClientDisconnected).reason_code == 4

    def test_disconnect_may_change_the_session_expiry_but_not_from_zero(self) -> None:
        """MQTT 5, 3.14.2.2.2"""
        new_expiry = bytes.fromhex("e00700051100000005")
        harness = connected(5, properties=b"\x11\x00\x00\x00\x3c")
        harness.send(new_expiry)
        assert harness.last(ClientDisconnected).session_expiry_interval_s == 5
        harness = connected(5)
        assert harness.send(new_expiry) == bytes.fromhex("e00182")
        harness.last(ConnectionLost)

    def test_a_closed_socket_is_a_lost_connection(self) -> None:
        harness = connected()
        harness.connection.peer_closed(harness.now_ms)
        harness.settle()
        assert harness.last(ConnectionLost).connection_id == 77
        assert harness.counters.connections_open == 0

    @pytest.mark.parametrize(("level", "answer"), [(4, ""), (5, "e0018d")])
    def test_silence_for_one_and_a_half_keep_alives_ends_the_connection(self, level: int, answer: str) -> None:
        """[MQTT-3.1.2-22]"""
        harness = connected(level, keep_alive_s=10)
        harness.pass_ms(14_999)
        harness.send(PINGREQ)
        harness.pass_ms(14_999)
        assert not harness.connection.is_closed
        assert harness.connection.next_deadline_ms() == harness.now_ms + 1
        assert harness.pass_ms(1) == bytes.fromhex(answer)
        harness.last(ConnectionLost)

    def test_without_keep_alive_silence_is_allowed(self) -> None:
        harness = connected(keep_alive_s=0)
        assert harness.connection.next_deadline_ms() is None
        harness.pass_ms(10_000_000)
        assert not harness.connection.is_closed

    def test_a_gateway_that_stops_says_so(self) -> None:
        harness = connected(5)
        harness.connection.shut("stopping", ReasonCode.SERVER_SHUTTING_DOWN)
        assert harness.settle() == bytes.fromhex("e0018b")
        assert harness.last(ConnectionLost).reason == "stopping"

    def test_bytes_after_the_end_are_ignored(self) -> None:
        harness = connected()
        assert harness.send(b"\xe0\x00", PINGREQ) == b""
        assert harness.send(PINGREQ) == b""
