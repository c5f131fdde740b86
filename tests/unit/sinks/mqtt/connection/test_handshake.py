"""sinks.mqtt.connection.handshake"""

import pytest

from sinks.mqtt.codec.packets import ConnAck, Connect, PubAck
from sinks.mqtt.connection.handshake import V5, V31, V311, ConnectionRefused, connack, connected_event, read_connect
from sinks.mqtt.limits.packet_parts import PacketParts
from sinks.mqtt.metrics import GatewayCounters
from sinks.mqtt.settings import GatewaySettings
from state.commands import AcceptConnection
from state.events import ClientConnected
from state.model import Will
from tests.unit.sinks.mqtt.mqtt_bytes import body_start, connect, packet, text

SETTINGS = GatewaySettings(max_client_id_bytes=10)
PARTS = PacketParts(SETTINGS.device_limits, GatewayCounters())


def refused(data: bytes, settings: GatewaySettings = SETTINGS) -> ConnectionRefused:
    with pytest.raises(ConnectionRefused) as caught:
        read_connect(data, body_start(data), settings, PacketParts(settings.device_limits, GatewayCounters()))
    return caught.value


@pytest.mark.parametrize(("level", "codec"), [(4, V311), (5, V5)])
def test_the_protocol_level_chooses_the_codec(level: int, codec: object) -> None:
    data = connect(level=level)
    assert read_connect(data, body_start(data), SETTINGS, PARTS)[0] is codec


@pytest.mark.parametrize(
    ("name", "level", "codec", "is_bridge"),
    [("MQTT", 0x84, V311, True), ("MQIsdp", 0x83, V31, True), ("MQTT", 4, V311, False), ("MQIsdp", 3, V31, False)],
)
def test_the_highest_bit_of_the_level_says_that_a_bridge_connects(name: str, level: int, codec: object, is_bridge: bool) -> None:
    """[MQTT-3.1.2-2] Mosquitto sets it."""
    data = connect(name=name, level=level)
    chosen, asked = read_connect(data, body_start(data), SETTINGS, PARTS)
    assert chosen is codec
    assert (asked.protocol_version, asked.is_bridge) == (level & 0x7F, is_bridge)


@pytest.mark.parametrize("level", [3, 0x83])
def test_mqtt_3_1_is_spoken_without_a_session_present_flag(level: int) -> None:
    data = connect(name="MQIsdp", level=level, flags=0)
    codec, asked = read_connect(data, body_start(data), SETTINGS, PARTS)
    assert (codec, asked.protocol_version, asked.clean_start, asked.session_expiry_interval_s) == (V31, 3, False, None)
    assert codec.encode(ConnAck(session_present=True)) == bytes.fromhex("20020000")
    assert codec.encode(PubAck(packet_id=7)) == bytes.fromhex("40020007")


@pytest.mark.parametrize(
    ("data", "answer"),
    [
        (connect(name="MQIsdp", level=3, payload=text("")), "20020002"),
        (connect(name="MQIsdp", level=2), "20020001"),
        (connect(level=3), "20020001"),
        (connect(level=0), "20020001"),
        (connect(level=6), "2003008400"),
        (connect(level=0x85), "2003008400"),
        (connect(level=0x83), "20020001"),
        (connect(name="MQIsdp", level=4), "20020001"),
        (connect(name="HTTP"), ""),
        (packet(0x10), ""),
        (b"\xc0\x00", ""),
        (b"\x30\x03\x00\x01t", ""),
    ],
)
def test_other_protocols_are_turned_away(data: bytes, answer: str) -> None:
    """[MQTT-3.1.2-1] [MQTT-3.1.2-2] [MQTT-3.1.0-1]"""
    assert refused(data).answer == bytes.fromhex(answer)


def test_a_malformed_connect_is_answered_in_mqtt_5_only() -> None:
    assert refused(connect(flags=0x03)).answer == b""
    assert refused(connect(level=5, flags=0x03)).answer == bytes.fromhex("2003008100")


@pytest.mark.parametrize("flags", [0x26, 0x2E, 0x36])
def test_a_retained_will_is_refused_in_mqtt_5_only(flags: int) -> None:
    """[MQTT-3.2.2-13] MQTT 3.1.1 has no way to say that nothing is retained."""
    will = b"\x00" + text("w") + text(b"bye")
    assert refused(connect(level=5, flags=flags, payload=text("c") + will)).answer == bytes.fromhex("2003009a00")
    data = connect(flags=flags, payload=text("c") + text("w") + text(b"bye"))
    accepted = read_connect(data, body_start(data), SETTINGS, PARTS)[1]
    assert accepted.will is not None
    assert accepted.will.retain


def test_an_authentication_method_is_refused() -> None:
    """[MQTT-4.12.0-1]"""
    assert refused(connect(level=5, properties=b"\x15" + text("x"))).answer == bytes.fromhex("2003008c00")


def test_an_empty_client_id_needs_clean_session_in_mqtt_3_1_1_only() -> None:
    """[MQTT-3.1.3-8] of MQTT 3.1.1"""
    assert refused(connect(flags=0, payload=text(""))).answer == bytes.fromhex("20020002")
    data = connect(level=5, flags=0, payload=text(""))
    assert read_connect(data, body_start(data), SETTINGS, PARTS)[1].client_id == ""


@pytest.mark.parametrize("client_id", ["x" * 11, "ü" * 6, "a\nb", "\x7f"])
def test_client_ids_too_long_or_with_control_characters_are_refused(client_id: str) -> None:
    assert refused(connect(payload=text(client_id))).answer == bytes.fromhex("20020002")
    assert refused(connect(level=5, payload=text(client_id))).answer == bytes.fromhex("2003008500")


def test_the_event_has_what_the_client_requested() -> None:
    asked = Connect(
        protocol_version=5,
        client_id="c",
        clean_start=False,
        session_expiry_interval_s=60,
        receive_maximum=5,
        maximum_packet_size_bytes=1_000,
    )
    assert connected_event(asked, connection_id=7, partition=3, lease_id="l") == ClientConnected(
        connection_id=7,
        commands_partition=3,
        protocol_version=5,
        clean_start=False,
        session_expiry_interval_s=60,
        receive_maximum=5,
        maximum_packet_size_bytes=1_000,
        lease_id="l",
    )


def test_connack_omits_values_that_are_defaults() -> None:
    asked = Connect(protocol_version=5, client_id="c", clean_start=True, session_expiry_interval_s=60)
    plain = AcceptConnection(connection_id=1, partition=0, sequence=1, session_expiry_interval_s=60)
    answer = connack(asked, plain, SETTINGS, assigned_client_id=None)
    assert (answer.session_expiry_interval_s, answer.receive_maximum, answer.assigned_client_id) == (None, None, None)
    other = AcceptConnection(connection_id=1, partition=0, sequence=1, session_expiry_interval_s=30, max_awaiting_rel=10)
    answer = connack(asked, other, SETTINGS, assigned_client_id="x")
    assert (answer.session_expiry_interval_s, answer.receive_maximum, answer.assigned_client_id) == (30, 10, "x")
    assert answer.maximum_packet_size_bytes == SETTINGS.max_packet_size_bytes


def test_the_will_has_the_username() -> None:
    asked = Connect(protocol_version=5, client_id="c", clean_start=True, will=Will(topic="gone", payload=b""))
    said = connected_event(asked, connection_id=7, partition=3, lease_id="l", username="ada")
    assert said.will == Will(topic="gone", payload=b"", username="ada")
