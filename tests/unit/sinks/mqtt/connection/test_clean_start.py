"""sinks.mqtt.connection.connection: CONNACK for Clean Start, which does not wait for the engine."""

import pytest

from sinks.mqtt.access.grant import Grant
from sinks.mqtt.connection.phases import Phase
from sinks.routing.settings import FastPathSettings
from state.commands import AcceptConnection, CloseConnection
from state.events import Capability, ClientConnected, ClientDisconnected, ConnectionLost, PubRelReceived
from state.model import ReasonCode
from state.settings import SessionSettings
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, PINGRESP, Harness, ack
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish

CLEAN, KEPT = 0x02, 0x00
CONNACK_3, CONNACK_5 = bytes.fromhex("20020000"), bytes.fromhex("2014000011 210064 220010 2500 2700080000 2900 2a00")
DISCONNECT = b"\xe0\x00"


def accept(harness: Harness, **fields: object) -> bytes:
    """Accepts the connection as a session with default settings does."""
    return harness.command(AcceptConnection, **{"send_quota": 32, "max_awaiting_rel": 100, **fields})


def test_connack_is_sent_when_the_connect_is_in_the_log() -> None:
    harness = Harness()
    harness.confirming = False
    assert harness.send(connect(flags=CLEAN)) == b""
    harness.confirming = True
    assert harness.settle() == CONNACK_3
    assert harness.connection.phase is Phase.ANSWERED
    assert (harness.counters.connections_open, harness.counters.connections_accepted) == (1, 1)
    assert accept(harness) == b"", "there is one CONNACK [MQTT-3.2.0-2]"
    assert harness.connection.phase is Phase.CONNECTED
    assert (harness.counters.connections_open, harness.counters.connections_accepted) == (1, 1)


@pytest.mark.parametrize(("level", "refusal"), [(4, "20020003"), (5, "2003008900")])
def test_when_the_lease_passes_before_connack_the_answer_is_a_refusal(level: int, refusal: str) -> None:
    """A DISCONNECT never comes before CONNACK [MQTT-3.14.0-1], and a late confirmation promises nothing."""
    harness = Harness()
    harness.confirming = False
    harness.send(connect(level=level, flags=CLEAN))
    harness.close("the lease has passed", ReasonCode.SERVER_BUSY)
    assert harness.settle() == bytes.fromhex(refusal)
    assert harness.connection.is_closed
    harness.confirming = True
    assert harness.settle() == b""
    assert harness.counters.connections_open == 0
    harness.last(ConnectionLost)


def test_connack_waits_for_the_login_and_the_log() -> None:
    harness = Harness(login=None)
    assert harness.send(connect(flags=CLEAN)) == b""
    assert (harness.connection.phase, harness.events) == (Phase.AUTHENTICATING, [])
    harness.confirming = False
    assert harness.logged_in(Grant("ada")) == b""
    assert [type(event) for event in harness.events] == [ClientConnected]
    harness.confirming = True
    assert harness.settle() == CONNACK_3


def test_a_login_that_ends_early_closes_after_the_engines_answer() -> None:
    harness = Harness(login=Grant("ada", valid_ms=5_000), accept_timeout_ms=30_000)
    harness.send(connect(level=5, flags=CLEAN))
    assert harness.pass_ms(5_000) == b""
    accept(harness)
    assert harness.pass_ms(0) == bytes.fromhex("e00187")
    harness.last(ConnectionLost)


def test_there_is_one_connack_when_the_engine_precedes_the_confirmation() -> None:
    harness = Harness()
    harness.confirming = False
    harness.send(connect(flags=CLEAN))
    assert accept(harness) == CONNACK_3
    harness.confirming = True
    assert harness.settle() == b""
    assert harness.connection.phase is Phase.CONNECTED


def test_connack_has_the_values_that_the_engine_will_send() -> None:
    harness = Harness()
    assert harness.send(connect(level=5, flags=CLEAN)) == CONNACK_5
    other = SessionSettings(max_awaiting_rel=7)
    harness = Harness(profiles=(("x*", SessionSettings(max_awaiting_rel=9)), ("c?", other)))
    assert harness.send(connect(level=5, flags=CLEAN)) == CONNACK_5.replace(b"\x21\x00\x64", b"\x21\x00\x07")


@pytest.mark.parametrize(("flags", "knows_settings"), [(KEPT, True), (CLEAN, False)])
def test_a_resumable_session_or_unknown_settings_wait_for_the_engine(flags: int, knows_settings: bool) -> None:
    harness = Harness(knows_settings=knows_settings)
    assert harness.send(connect(flags=flags)) == b""
    assert accept(harness) == CONNACK_3


@pytest.mark.parametrize(("enabled", "capabilities"), [(True, Capability.FAST_PATH), (False, Capability.NONE)])
def test_the_event_states_whether_the_gateway_has_the_fast_path(enabled: bool, capabilities: Capability) -> None:
    harness = Harness(fast_path=FastPathSettings(enabled=enabled))
    harness.send(connect())
    event = harness.events[0]
    assert isinstance(event, ClientConnected)
    assert event.capabilities == capabilities


def test_what_the_device_sends_at_once_waits_for_the_engine() -> None:
    """A QoS 2 publication that the session does not know would be answered and lost."""
    harness = Harness()
    assert harness.send(connect(flags=CLEAN), PINGREQ, publish("t", first_byte=0x34, packet_id=5)) == CONNACK_3
    assert harness.send(b"\x62\x02\x00\x05") == b""
    assert [type(event) for event in harness.events] == [ClientConnected]
    assert accept(harness) == PINGRESP + ack(0x50, 5) + ack(0x70, 5)
    harness.last(PubRelReceived)


def test_a_disconnect_before_the_engines_answer_publishes_no_will() -> None:
    harness = Harness()
    harness.send(connect(flags=CLEAN), publish("t"), DISCONNECT)
    harness.feed("peer_closed")
    harness.settle()
    assert not harness.connection.is_closed
    accept(harness)
    assert len(harness.uplink) == 1
    harness.last(ClientDisconnected)
    assert harness.connection.is_closed
    assert harness.counters.connections_open == 0


def test_a_closed_socket_before_the_engines_answer_is_a_lost_connection() -> None:
    harness = Harness()
    harness.send(connect(flags=CLEAN))
    harness.feed("peer_closed")
    accept(harness)
    harness.last(ConnectionLost)


@pytest.mark.parametrize(("level", "goodbye"), [(4, b""), (5, bytes.fromhex("e00189"))])
def test_an_engine_that_does_not_answer_in_time_ends_the_connection(level: int, goodbye: bytes) -> None:
    harness = Harness(accept_timeout_ms=30_000)
    harness.send(connect(level=level, flags=CLEAN))
    assert harness.pass_ms(29_999) == b""
    assert harness.pass_ms(1) == goodbye
    harness.last(ConnectionLost)
    assert harness.counters.connections_open == 0


@pytest.mark.parametrize(
    "fields",
    [{"max_awaiting_rel": 99}, {"session_expiry_interval_s": 5}, {"session_present": True}],
    ids=lambda fields: min(fields),
)
def test_an_engine_that_promises_something_else_ends_the_connection(fields: dict[str, object]) -> None:
    harness = Harness()
    harness.send(connect(level=5, flags=CLEAN))
    assert accept(harness, **fields) == bytes.fromhex("e00189")
    harness.last(ConnectionLost)
    assert harness.counters.connections_lost["configuration"] == 1


def test_an_answered_connect_is_not_registered_again() -> None:
    harness = Harness()
    harness.send(connect(level=5, flags=CLEAN))
    assert harness.command(CloseConnection, reason_code=0x89, newest_connection_id=99) == bytes.fromhex("e00189")
    assert [type(event) for event in harness.events] == [ClientConnected]
    assert harness.connection.is_closed


def test_a_session_expiry_above_the_maximum_is_reduced_in_connack() -> None:
    harness = Harness(session=SessionSettings(max_session_expiry_interval_s=60))
    answer = harness.send(connect(level=5, flags=CLEAN, properties=b"\x11\xff\xff\xff\xff"))
    assert b"\x11\x00\x00\x00\x3c" in answer
    accept(harness, session_expiry_interval_s=60)
    assert harness.connection.phase is Phase.CONNECTED
