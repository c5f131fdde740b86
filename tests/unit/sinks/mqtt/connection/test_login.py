"""sinks.mqtt.connection.connection: a login that takes a while, and what it allows."""

import pytest

from sinks.mqtt.access.grant import Grant, LoginRefusal, LoginRefused
from sinks.mqtt.access.topic_patterns import TopicPatterns
from state.commands import AcceptConnection
from state.events import ClientConnected, PublishReceived, Subscribed
from state.model import ReasonCode
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, PINGRESP, Harness, connected
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, publish, text

WRONG = LoginRefused(LoginRefusal.PASSWORD)


def test_a_refused_login_is_answered_and_not_recorded() -> None:
    """[MQTT-3.1.4-2]"""
    for level, answer in ((4, "20020004"), (5, "2003008600")):
        harness = Harness(login=WRONG)
        assert harness.send(connect(level=level)) == bytes.fromhex(answer)
        assert harness.connection.is_closed
        assert harness.events == []
        assert harness.counters.connections_refused == {0x86: 1}


def test_packets_wait_while_a_login_is_verified() -> None:
    harness = Harness(login=None)
    assert harness.send(connect(flags=0x00), PINGREQ) == b""
    assert harness.events == []
    assert harness.logged_in(Grant("ada")) == b""
    assert harness.last(ClientConnected).connection_id == 77
    assert harness.command(AcceptConnection, send_quota=2) == bytes.fromhex("20020000") + PINGRESP


def test_a_login_that_is_refused_later_is_refused_the_same_way() -> None:
    harness = Harness(login=None)
    harness.send(connect())
    assert harness.logged_in(WRONG) == bytes.fromhex("20020004")
    assert harness.events == []


def test_verifying_a_login_is_limited_by_the_connect_timeout() -> None:
    harness = Harness(login=None, connect_timeout_ms=500)
    harness.send(connect(level=5))
    assert harness.pass_ms(499) == b""
    assert harness.pass_ms(1) == bytes.fromhex("2003008900")
    assert harness.logged_in(Grant("ada")) == b""
    assert harness.events == []


def test_a_login_verified_after_the_timeout_is_refused() -> None:
    harness = Harness(login=None, connect_timeout_ms=500)
    harness.send(connect(level=5))
    harness.now_ms += 500
    assert harness.logged_in(Grant("ada")) == bytes.fromhex("2003008900")
    assert harness.events == []


def test_a_connection_that_ends_during_its_login_is_not_recorded() -> None:
    for leave in (lambda harness: harness.feed("peer_closed"), lambda harness: harness.close("x", ReasonCode.SERVER_BUSY)):
        harness = Harness(login=None)
        harness.send(connect())
        leave(harness)
        harness.settle()
        harness.logged_in(Grant("ada"))
        assert harness.connection.is_closed
        assert harness.events == []


def test_a_connection_ends_with_its_login() -> None:
    harness = connected(5, keep_alive_s=0, login=Grant("ada", valid_ms=5_000))
    assert harness.pass_ms(4_999) == b""
    assert harness.pass_ms(1) == bytes.fromhex("e00187")
    assert harness.counters.connections_lost == {"login ended": 1}
    still = connected(5, keep_alive_s=2, login=Grant("ada", valid_ms=5_000))
    assert still.pass_ms(3_000) == bytes.fromhex("e0018d")


# --- what a login allows ------------------------------------------------------------------------------------------------------

ONLY_UP = Grant("ada", publish=(TopicPatterns(("up",), {}),), subscribe=(TopicPatterns(("down/#",), {}),))


def test_a_forbidden_publication_is_refused_in_mqtt_5() -> None:
    harness = connected(5, login=ONLY_UP)
    for qos, answer in ((1, "4003000787"), (2, "5003000787")):
        assert harness.send(publish("other", first_byte=0x30 | qos << 1, packet_id=7, v5=b"")) == bytes.fromhex(answer)
    assert harness.send(publish("other", v5=b"")) == b""
    assert (harness.uplink, len(harness.events)) == ([], 1)
    assert harness.counters.not_authorized == {"publish": 3}
    assert harness.counters.publishes_refused == 0
    assert harness.send(publish("up", first_byte=0x32, packet_id=7, v5=b"")) == bytes.fromhex("40020007")


def test_an_alias_does_not_hide_a_topic() -> None:
    harness = connected(5, login=ONLY_UP)
    alias = b"\x23\x00\x01"
    assert harness.send(publish("other", first_byte=0x32, packet_id=7, v5=alias)) == bytes.fromhex("4003000787")
    assert harness.send(publish("", first_byte=0x32, packet_id=8, v5=alias)) == bytes.fromhex("4003000887")
    for topic in ("up", ""):
        assert harness.send(publish(topic, first_byte=0x32, packet_id=9, v5=alias)) == bytes.fromhex("40020009")


def test_a_repetition_with_another_topic_is_refused_like_any_other() -> None:
    harness = connected(5, login=ONLY_UP)
    assert harness.send(publish("up", first_byte=0x34, packet_id=7, v5=b"")) == bytes.fromhex("50020007")
    assert harness.send(publish("other", first_byte=0x3C, packet_id=7, v5=b"")) == bytes.fromhex("5003000787")
    assert len(harness.events) == 2


@pytest.mark.parametrize("qos", [1, 2])
def test_a_forbidden_publication_ends_an_mqtt_3_1_1_connection(qos: int) -> None:
    """[MQTT-3.3.5-2] of MQTT 3.1.1"""
    harness = connected(4, login=ONLY_UP)
    assert harness.send(publish("other"), PINGREQ) == PINGRESP  # QoS 0 is dropped
    assert harness.send(publish("other", first_byte=0x30 | qos << 1, packet_id=7)) == b""
    assert harness.connection.is_closed
    assert harness.uplink == []
    assert harness.counters.protocol_errors == {0x87: 1}


@pytest.mark.parametrize(("level", "codes"), [(4, "018080"), (5, "018787")])
def test_forbidden_filters_are_refused_one_by_one(level: int, codes: str) -> None:
    harness = connected(level, login=ONLY_UP)
    filters = b"".join(text(topic_filter) + b"\x01" for topic_filter in ("down/x", "#", "other"))
    answer = harness.send(packet(0x82, b"\x00\x07", b"\x00" if level == 5 else b"", filters))
    assert answer.endswith(bytes.fromhex(codes))
    assert [asked.topic_filter for asked in harness.last(Subscribed).subscriptions] == ["down/x"]
    assert harness.counters.not_authorized == {"subscribe": 2}


def test_every_publication_has_the_username() -> None:
    harness = connected(4, login=ONLY_UP)
    harness.send(publish("up"), publish("up", first_byte=0x34, packet_id=7))
    [record] = harness.uplink
    assert dict(record.headers or ())["username"] == b"ada"
    assert harness.last(PublishReceived).username == "ada"
