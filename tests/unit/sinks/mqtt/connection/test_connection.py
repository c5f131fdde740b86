"""sinks.mqtt.connection.connection: from CONNECT to the end."""

import pytest

from sinks.mqtt.connection.phases import Phase
from sinks.mqtt.settings import DeviceLimits
from state.commands import AcceptConnection, CloseConnection, SendPublish
from state.events import ClientConnected, ClientDisconnected, ConnectionLost
from state.model import QoS, ReasonCode
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, PINGRESP, Harness, ack, connected, send_publish, written
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text


class TestConnect:
    def test_connack_waits_for_the_engine(self) -> None:
        harness = Harness()
        assert harness.send(connect(level=4, flags=0x00)) == b""
        event = harness.last(ClientConnected)
        assert (event.connection_id, event.commands_partition, event.clean_start) == (77, 3, False)
        assert event.session_expiry_interval_s is None
        assert harness.command(AcceptConnection, session_present=True) == bytes.fromhex("20020100")
        assert harness.connection.phase is Phase.CONNECTED

    def test_a_clean_session_of_mqtt_3_1_1_ends_with_the_connection(self) -> None:
        harness = Harness()
        harness.send(connect(level=4, flags=0x02))
        event = harness.last(ClientConnected)
        assert (event.clean_start, event.session_expiry_interval_s) == (True, 0)

    def test_an_empty_client_id_gets_one(self) -> None:
        harness = Harness()
        harness.send(connect(level=5, flags=0x00, payload=text("")))
        assert harness.connection.client_id == "assigned"
        assert b"\x12" + text("assigned") in harness.command(AcceptConnection)

    def test_packets_sent_before_connack_wait_and_are_then_worked_off(self) -> None:
        """[MQTT-3.1.4-5]"""
        harness = Harness()
        assert harness.send(connect(flags=0x00), PINGREQ, publish("t", first_byte=0x32, packet_id=5)) == b""
        assert harness.uplink == []
        assert harness.command(AcceptConnection) == bytes.fromhex("20020000") + PINGRESP + ack(0x40, 5)

    @pytest.mark.parametrize(("level", "answer"), [(4, "20020003"), (5, "2003008800")])
    def test_without_a_partition_the_server_is_unavailable(self, level: int, answer: str) -> None:
        harness = Harness(partition=None)
        assert harness.send(connect(level=level, flags=0x00)) == bytes.fromhex(answer)
        assert harness.connection.is_closed
        assert harness.events == []

    @pytest.mark.parametrize(("level", "answer"), [(4, "20020003"), (5, "2003008800")])
    def test_an_engine_that_does_not_answer_in_time_is_unavailable(self, level: int, answer: str) -> None:
        harness = Harness(accept_timeout_ms=30_000)
        harness.send(connect(level=level, flags=0x00))
        assert harness.pass_ms(29_999) == b""
        assert harness.pass_ms(1) == bytes.fromhex(answer)
        assert harness.last(ConnectionLost).connection_id == 77

    def test_a_socket_without_connect_is_closed(self) -> None:
        harness = Harness(connect_timeout_ms=5_000)
        harness.send(connect()[:5])
        assert harness.pass_ms(5_000) == b""
        assert harness.connection.is_closed
        assert harness.events == []

    @pytest.mark.parametrize(
        ("data", "reason"),
        [
            (b"PROXY TCP4 192.0.2.7 10.0.0.1 40000 1883\r\n", "a PROXY protocol v1 header"),
            (bytes.fromhex("0d0a0d0a000d0a515549540a2111000c"), "a PROXY protocol v2 header"),
            (b"\x16\x03\x01\x02\x00\x01", "a TLS handshake"),
            (b"GET / HTTP/1.1\r\n\r\n", "HTTP; "),
            (PINGREQ, "the first packet is not CONNECT"),
            (b"\x11\x00", "the first packet is not CONNECT"),
        ],
    )
    def test_another_protocol_is_refused_at_once_and_named(self, data: bytes, reason: str) -> None:
        """[MQTT-3.1.0-1]"""
        harness = Harness()
        assert harness.send(data) == b""
        assert harness.connection.is_closed
        assert harness.connection.refused_because.startswith(reason)
        assert harness.counters.connections_refused == {0x82: 1}

    def test_a_client_that_leaves_before_connack_is_lost(self) -> None:
        harness = Harness()
        harness.send(connect(flags=0x00))
        harness.feed("peer_closed")
        harness.settle()
        harness.last(ConnectionLost)

    def test_a_refusal_of_the_engine_becomes_a_connack(self) -> None:
        harness = Harness()
        harness.send(connect(level=5, flags=0x00))
        assert harness.command(CloseConnection, reason_code=0x97) == bytes.fromhex("2003009700")
        assert len(harness.events) == 1

    def test_a_prompt_connect_is_registered_again_above_a_newer_id(self) -> None:
        """The id was not above the newest because a clock is behind: the device does not notice."""
        harness = Harness()
        harness.send(connect(flags=0x00))
        assert harness.command(CloseConnection, reason_code=0x89, newest_connection_id=99) == b""
        assert [type(event) for event in harness.events] == [ClientConnected] * 2
        harness.sequence = 0
        assert harness.command(AcceptConnection) == bytes.fromhex("20020000")

    def test_a_connect_that_was_appended_late_is_refused_after_a_newer_one(self) -> None:
        """[MQTT-3.1.4-3] It may have stood in a stalled gateway while the device connected elsewhere."""
        harness = Harness()
        harness.confirming = False
        harness.send(connect(flags=0x00))
        harness.now_ms += 1_001
        harness.confirming = True
        harness.settle()
        assert harness.command(CloseConnection, reason_code=0x89, newest_connection_id=99) == bytes.fromhex("20020003")
        assert [type(event) for event in harness.events] == [ClientConnected]
        assert harness.connection.is_closed

    def test_a_connect_that_was_read_late_is_refused_after_a_newer_one(self) -> None:
        """[MQTT-3.1.4-3]"""
        harness = Harness()
        harness.is_late = True
        harness.send(connect(flags=0x00))
        assert harness.command(CloseConnection, reason_code=0x89, newest_connection_id=99) == bytes.fromhex("20020003")
        assert [type(event) for event in harness.events] == [ClientConnected]

    def test_without_a_partition_a_connect_is_not_registered_again(self) -> None:
        harness = Harness()
        harness.send(connect(flags=0x00))
        harness.partition = None
        assert harness.command(CloseConnection, reason_code=0x89, newest_connection_id=99) == bytes.fromhex("20020003")

    def test_a_reason_that_connack_cannot_carry_becomes_unavailable(self) -> None:
        harness = Harness()
        harness.send(connect(level=5, flags=0x00))
        assert harness.command(CloseConnection, reason_code=0x8E) == bytes.fromhex("2003008800")

    def test_a_second_connect_is_a_protocol_error(self) -> None:
        """[MQTT-3.1.0-2]"""
        harness = connected(5)
        assert harness.send(connect(level=5, flags=0x00)) == bytes.fromhex("e00182")
        harness.last(ConnectionLost)


class TestBackPressure:
    def test_a_device_that_outruns_kafka_is_not_read_until_half_is_confirmed(self) -> None:
        harness = connected(max_unconfirmed_appends=4)
        harness.confirming = False
        harness.send(*(publish("a", b"%d" % number) for number in range(10)))
        assert [record.value for record in harness.uplink] == [b"0", b"1", b"2", b"3"]
        assert not harness.wants_data
        harness.confirm(harness.waiting[0])
        harness.settle()
        assert len(harness.uplink) == 4
        harness.confirm(harness.waiting[0])
        harness.settle()
        assert [record.value for record in harness.uplink[4:]] == [b"4", b"5"]
        harness.confirming = True
        harness.settle()
        assert len(harness.uplink) == 10
        assert harness.wants_data

    def test_what_came_before_the_end_of_the_stream_is_still_recorded(self) -> None:
        harness = connected(max_unconfirmed_appends=2)
        harness.confirming = False
        harness.send(*(publish("a", b"%d" % number) for number in range(5)), b"\xe0\x00")
        harness.feed("peer_closed")
        harness.confirming = True
        harness.settle()
        assert len(harness.uplink) == 5
        harness.last(ClientDisconnected)
        assert harness.connection.is_closed

    def test_a_device_that_is_not_read_does_not_violate_keep_alive(self) -> None:
        harness = connected(max_unconfirmed_appends=1, keep_alive_s=1)
        harness.confirming = False
        harness.send(publish("a"))
        harness.pass_ms(60_000)
        assert not harness.connection.is_closed

    def test_a_failed_append_closes_without_an_answer(self) -> None:
        harness = connected(5)
        harness.confirming = False
        harness.send(publish("a", first_byte=0x32, packet_id=1, v5=b""), publish("a", first_byte=0x34, packet_id=2, v5=b""))
        first, second = harness.waiting
        harness.confirm(first, OSError("told to fail"))
        harness.confirm(second)
        assert harness.settle() == bytes.fromhex("e00189")
        harness.last(ConnectionLost)
        assert harness.connection.is_closed

    def test_a_publication_that_is_too_large_for_kafka_is_refused_alone(self) -> None:
        harness = connected(5)
        harness.confirming = False
        harness.send(*(publish("a", first_byte=0x30 | qos << 1, packet_id=qos, v5=b"") for qos in (1, 2)))
        for append in harness.waiting[::-1]:
            harness.confirm(append, OSError("told to fail"), too_large=True)
        assert harness.settle() == bytes.fromhex("4003000197 5003000297")
        harness.confirming = True
        assert harness.send(publish("a", first_byte=0x34, packet_id=2, v5=b"")) == ack(0x50, 2)
        assert harness.send(bytes.fromhex("62020002")) == ack(0x70, 2)

    @pytest.mark.parametrize(("level", "qos", "goodbye"), [(4, 1, ""), (4, 2, ""), (5, 0, "e00195")])
    def test_what_has_no_refusal_and_is_too_large_for_kafka_closes(self, level: int, qos: int, goodbye: str) -> None:
        harness = connected(level)
        harness.confirming = False
        harness.send(publish("a", first_byte=0x30 | qos << 1, packet_id=qos or None, v5=b"" if level == 5 else None))
        harness.confirm(harness.waiting[0], OSError("told to fail"), too_large=True)
        assert harness.settle() == bytes.fromhex(goodbye)
        assert harness.connection.is_closed

    def test_nothing_but_qos_0_is_written_for_a_device_that_does_not_read(self) -> None:
        harness = connected()
        harness.feed("writing_blocked", True)
        assert send_publish(harness, 1) == b""
        assert send_publish(harness, 0, qos=0) == written(0, qos=0)
        assert len(send_publish(harness, 0, qos=0, payload=bytes(8 << 20))) == 0
        assert harness.counters.qos0_dropped == 1
        harness.feed("writing_blocked", False)
        assert harness.settle() == written(1)

    def test_a_silent_device_that_never_reads_is_closed(self) -> None:
        for keep_alive_s, patience_ms in (10, 15_000), (0, 60_000):
            harness = connected(keep_alive_s=keep_alive_s)
            harness.pass_ms(1_000)
            harness.send(PINGREQ)
            harness.feed("writing_blocked", True)
            harness.pass_ms(patience_ms - 1)
            assert not harness.connection.is_closed
            harness.pass_ms(1)
            assert harness.connection.is_closed

    @pytest.mark.parametrize(("keep_alive_s", "patience_ms"), [(0, 60_000), (5, 60_000), (100, 150_000)])
    def test_a_device_that_sends_and_never_reads_is_closed_in_the_end(self, keep_alive_s: int, patience_ms: int) -> None:
        harness = connected(keep_alive_s=keep_alive_s)
        harness.feed("writing_blocked", True)
        for _ in range(patience_ms // 1_000 - 1):
            assert harness.pass_ms(1_000) + harness.send(PINGREQ) == b""
            assert not harness.connection.is_closed
        harness.pass_ms(1_000)
        assert harness.connection.is_closed
        assert harness.counters.connections_lost == {"does not read": 1}

    def test_a_slow_device_that_sends_is_not_closed(self) -> None:
        """[MQTT-3.1.2-22] Being blocked is neither silence nor a standstill."""
        harness = connected(keep_alive_s=5)
        harness.feed("writing_blocked", True)
        for _ in range(200):
            harness.pass_ms(2_000)
            harness.feed("bytes_taken")
            assert harness.send(PINGREQ) == b""
        assert not harness.connection.is_closed
        harness.feed("writing_blocked", False)
        assert harness.settle() == PINGRESP * 200

    def test_a_slow_device_that_is_silent_is_closed(self) -> None:
        """[MQTT-3.1.2-22]"""
        harness = connected(keep_alive_s=5)
        harness.feed("writing_blocked", True)
        for _ in range(7):
            harness.pass_ms(1_000)
            harness.feed("bytes_taken")
        assert not harness.connection.is_closed
        harness.pass_ms(1_000)
        assert harness.connection.is_closed
        assert harness.counters.connections_lost == {"keep alive": 1}

    def test_a_blocked_device_is_read_up_to_a_limit_and_then_not_silent(self) -> None:
        harness = connected(keep_alive_s=5)
        harness.feed("writing_blocked", True)
        harness.send(publish("up", bytes(3_000)))
        assert harness.wants_data
        harness.send(publish("up", bytes(3_000)))
        assert not harness.wants_data
        assert harness.uplink == []
        harness.pass_ms(50_000)
        harness.feed("writing_blocked", False)
        assert harness.wants_data
        assert len(harness.uplink) == 2
        harness.pass_ms(7_400)
        assert not harness.connection.is_closed
        harness.pass_ms(100)
        assert harness.connection.is_closed

    def test_disconnect_of_a_blocked_device_counts(self) -> None:
        harness = connected()
        harness.feed("writing_blocked", True)
        harness.send(b"\xe0\x00")
        harness.feed("peer_closed")
        harness.settle()
        harness.last(ClientDisconnected)
        assert harness.connection.is_closed


class TestEnd:
    def test_disconnect_is_recorded_and_closes(self) -> None:
        """[MQTT-3.14.4-3]"""
        harness = connected()
        assert harness.send(b"\xe0\x00") == b""
        assert harness.connection.is_closed
        assert harness.last(ClientDisconnected).reason_code == 0
        harness.feed("peer_closed")
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
        harness.feed("peer_closed")
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
        assert harness.effects.deadline_ms == harness.now_ms + 1
        assert harness.pass_ms(1) == bytes.fromhex(answer)
        harness.last(ConnectionLost)

    @pytest.mark.parametrize("asked_s", [0, 101, 65_535])
    def test_without_keep_alive_silence_is_allowed_as_long_as_with_the_longest(self, asked_s: int) -> None:
        harness = connected(keep_alive_s=asked_s, device_limits=DeviceLimits(max_keep_alive_s=100))
        assert harness.effects.deadline_ms == harness.now_ms + 150_000
        harness.pass_ms(149_999)
        assert not harness.connection.is_closed
        harness.pass_ms(1)
        harness.last(ConnectionLost)

    @pytest.mark.parametrize(("asked_s", "told"), [(0, b"\x13\x00\x64"), (101, b"\x13\x00\x64"), (100, b""), (1, b"")])
    def test_connack_of_mqtt_5_has_a_changed_keep_alive(self, asked_s: int, told: bytes) -> None:
        """[MQTT-3.2.2-21]"""
        harness = Harness(device_limits=DeviceLimits(max_keep_alive_s=100))
        harness.send(connect(level=5, keep_alive_s=asked_s, flags=0x00))
        properties = harness.command(AcceptConnection)[5:]
        assert (told in properties) if told else (b"\x13" not in properties)

    def test_a_stopping_gateway_sends_its_reason(self) -> None:
        harness = connected(5)
        harness.close("stopping", ReasonCode.SERVER_SHUTTING_DOWN)
        assert harness.settle() == bytes.fromhex("e0018b")
        assert harness.last(ConnectionLost).reason == "stopping"

    def test_bytes_after_the_end_are_ignored(self) -> None:
        harness = connected()
        assert harness.send(b"\xe0\x00", PINGREQ) == b""
        assert harness.send(PINGREQ) == b""


class TestOtherCode:
    """Commands that come again from another version of the engine (sinks/host/command_order.py)."""

    @pytest.mark.parametrize(("level", "goodbye"), [(4, b""), (5, bytes.fromhex("e00189"))])
    @pytest.mark.promise("another-build")
    def test_a_repetition_by_other_code_ends_the_connection(self, level: int, goodbye: bytes) -> None:
        harness = connected(level=level)
        assert harness.command(SendPublish, code="a", packet_id=1, topic="t", payload=b"1", qos=QoS.AT_LEAST_ONCE)
        assert harness.command(SendPublish, sequence=2, code="b", packet_id=2, topic="t", payload=b"2", qos=QoS(0)) == goodbye
        assert harness.connection.is_closed
        assert harness.last(ConnectionLost).connection_id == 77
        harness.command(SendPublish, sequence=2, code="b", packet_id=2, topic="t", payload=b"2", qos=QoS(0))
        assert harness.counters.closed_for_other_code == harness.counters.connections_lost["other code"] == 1

    def test_a_build_mismatch_before_connack_is_answered_server_busy(self) -> None:
        harness = Harness()
        harness.send(connect(level=5, flags=0x00))
        harness.command(SendPublish, code="a", packet_id=1, topic="t", payload=b"1", qos=QoS(0))
        assert harness.command(AcceptConnection, sequence=1, code="b") == bytes.fromhex("2003008900")
