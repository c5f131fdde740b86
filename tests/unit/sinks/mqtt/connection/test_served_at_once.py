"""sinks.mqtt.connection.connection: a device with Clean Start that is served before the engine has answered its CONNECT."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sinks.mqtt.connection.append_queue import AppendTopic
from sinks.mqtt.connection.effects import Registration
from sinks.mqtt.connection.handshake import V5, V311, connected_event, expected_accept
from sinks.mqtt.connection.phases import Phase
from sinks.routing.settings import RoutingSettings
from state.commands import AcceptConnection, CloseConnection, SendPublish
from state.events import (
    ClientConnected,
    ClientDisconnected,
    ConnectionLost,
    PublishAccepted,
    PublishReceived,
    PubRelReceived,
    Subscribed,
)
from state.model import QoS, Subscription
from state.records.subscriptions import decode_subscriptions
from state.session import Session
from state.settings import SessionSettings
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, PINGRESP, Harness, ack
from tests.unit.sinks.mqtt.connection.test_claims import Sessions
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, publish, text

CLEAN = 0x02
CONNACK = bytes.fromhex("20020000")
DISCONNECT = b"\xe0\x00"
SUBSCRIBE, SUBACK = packet(0x82, b"\x00\x09", text("news") + b"\x01"), bytes.fromhex("9003000901")
SERVER_BUSY = bytes.fromhex("e00189")
REGISTRATION = Registration(77, "c1", 3, "lease-1")
KEPT_10_S = b"\x11" + (10).to_bytes(4, "big")
ROUTED: dict[str, Any] = {"routing": RoutingSettings(enabled=True), "session": SessionSettings(routing=True)}


def qos2(*, dup: bool = False, v5: bytes | None = None) -> bytes:
    return publish("t", b"p", first_byte=0x34 | dup << 3, packet_id=5, v5=v5)


def answered(level: int = 4, *others: bytes, keep_alive_s: int = 10, properties: bytes = b"", **settings: Any) -> Harness:
    """Returns a device that has CONNACK, and sends other packets with CONNECT."""
    harness = Harness(serves_at_once=True, **settings)
    harness.send(connect(level=level, flags=CLEAN, keep_alive_s=keep_alive_s, properties=properties), *others)
    assert harness.connection.phase is Phase.ANSWERED
    return harness


def served(level: int = 4, **settings: Any) -> Harness:
    harness = answered(level, **settings)
    harness.output()
    return harness


def accept(harness: Harness, **changes: object) -> bytes:
    """The engine accepts the connection as a session with the configured settings does."""
    session = harness.connection.settings.session
    assert isinstance(harness.events[0], ClientConnected)
    [command] = [
        command
        for command in Session(client_id="c1", settings=session).handle(harness.events[0], now_ms=1)
        if isinstance(command, AcceptConnection)
    ]
    fields = msgspec.structs.asdict(command) | changes
    return harness.command(AcceptConnection, **{name: fields[name] for name in fields if name not in _OF_HARNESS})


_OF_HARNESS = {"connection_id", "partition", "sequence"}


def test_packets_are_answered_from_the_log() -> None:
    harness = served()
    assert harness.send(SUBSCRIBE, publish("t", first_byte=0x32, packet_id=5), PINGREQ) == PINGRESP + SUBACK + ack(0x40, 5)
    harness.last(Subscribed)
    assert len(harness.uplink) == 1
    assert accept(harness) == b"", "there is one CONNACK [MQTT-3.2.0-2]"
    assert harness.connection.phase is Phase.CONNECTED
    unsubscribe = packet(0xA2, b"\x00\x0a", text("news"))
    assert harness.send(unsubscribe) == bytes.fromhex("b002000a"), "the subscription is known"


def test_packets_that_came_with_connect_are_answered_behind_connack() -> None:
    harness = Harness(serves_at_once=True)
    assert harness.send(connect(flags=CLEAN), SUBSCRIBE, PINGREQ) == CONNACK + PINGRESP + SUBACK


@pytest.mark.parametrize("first", [qos2(v5=b""), ack(0x62, 5)], ids=["PUBLISH", "PUBREL"])
def test_qos_2_of_a_session_that_is_kept_waits_for_the_engine(first: bytes) -> None:
    """If the engine refuses the CONNECT, the device may repeat the publication to another session. All behind it waits, too."""
    harness = served(5, properties=KEPT_10_S)
    assert harness.send(first, PINGREQ) == b""
    assert [type(event) for event in harness.events] == [ClientConnected]
    assert PINGRESP in accept(harness)
    assert isinstance(harness.events[-1], PublishReceived | PubRelReceived)


@pytest.mark.parametrize("properties", [{}, {"max_session_expiry_interval_s": 0}], ids=["CONNECT", "settings"])
def test_qos_2_of_a_session_that_ends_with_its_connection_is_served(properties: dict[str, int]) -> None:
    """No later connection can resume the session, and repeat the publication to it."""
    session = SessionSettings(routing=True, **properties)
    settings = {**ROUTED, "session": session, "tables": Sessions(has=False)}
    harness = served(5, properties=KEPT_10_S if properties else b"", **settings)
    assert harness.send(qos2(v5=b""), PINGREQ) == PINGRESP + ack(0x50, 5)
    assert isinstance(harness.events[-1], PublishAccepted)
    assert [append.value for append in harness.uplink] == [b"p"]
    assert harness.send(ack(0x62, 5)) == ack(0x70, 5)
    assert accept(harness) == b""
    assert harness.send(ack(0x62, 5)) == bytes.fromhex("7003000592"), "its packet id is free"


def test_a_repetition_of_qos_2_is_recognized_before_the_engines_answer() -> None:
    harness = served(**ROUTED, tables=Sessions(has=False))
    assert harness.send(qos2(), qos2(dup=True)) == ack(0x50, 5) * 2
    assert len(harness.uplink) == 1
    assert accept(harness) == b""
    assert harness.send(qos2(dup=True)) == ack(0x50, 5)
    assert len(harness.uplink) == 1


def test_with_routing_the_first_list_is_behind_the_empty_one() -> None:
    harness = served(tables=Sessions(has=True), **ROUTED)
    harness.confirming = False
    assert harness.send(SUBSCRIBE, publish("t", b"p"), PINGREQ) == b"", "the list holds back what is behind it"
    assert harness.uplink == []
    harness.confirming = True
    assert harness.settle() == SUBACK + PINGRESP
    assert len(harness.uplink) == 1
    lists = [decode_subscriptions(append.value) for append in harness.others[AppendTopic.SUBSCRIPTIONS] if append.key is None]
    assert [(one.connection_id, one.version, len(one.subscriptions)) for one in lists] == [(77, 0, 0), (77, 1, 1)]
    accept(harness)
    harness.send(packet(0x82, b"\x00\x0a", text("more") + b"\x01"))
    newest = decode_subscriptions(harness.others[AppendTopic.SUBSCRIPTIONS][-1].value)
    assert (newest.connection_id, newest.version, len(newest.subscriptions)) == (77, 2, 2)


@pytest.mark.parametrize("others", [{"serves_at_once": False}, {"knows_settings": False}], ids=["clock", "settings"])
def test_without_the_brokers_clock_or_the_settings_all_wait(others: dict[str, bool]) -> None:
    harness = Harness(**{"serves_at_once": True, **others})
    harness.send(connect(flags=CLEAN), SUBSCRIBE)
    assert [type(event) for event in harness.events] == [ClientConnected]
    assert accept(harness).endswith(SUBACK)


@pytest.mark.parametrize("late_ms", [0, 1_001], ids=["read late", "confirmed late"])
def test_a_connect_that_may_be_late_waits_for_the_engine(late_ms: int) -> None:
    """Its device may have connected elsewhere since."""
    harness = Harness(serves_at_once=True)
    harness.is_late, harness.confirming = not late_ms, False
    harness.send(connect(flags=CLEAN), SUBSCRIBE)
    harness.now_ms += late_ms
    harness.confirming = True
    assert harness.settle() == CONNACK
    assert accept(harness) == SUBACK


@pytest.mark.parametrize(
    "changes",
    [
        {"send_quota": 3},
        {"awaiting_rel": (1,)},
        {"topic_filters": ("old",)},
        {"max_subscriptions": 7},
        {"max_subscription_bytes": 7},
        {"session_present": True},
        {"list_connection_id": 5},
    ],
    ids=lambda changes: min(changes),
)
def test_an_engine_that_says_something_else_ends_the_connection(changes: dict[str, object]) -> None:
    harness = served(5)
    assert accept(harness, **changes) == SERVER_BUSY
    harness.last(ConnectionLost)
    assert harness.counters.connections_lost["configuration"] == 1


def test_a_refusal_by_the_engine_ends_the_connection() -> None:
    harness = served(5)
    harness.send(packet(0x82, b"\x00\x09\x00", text("news") + b"\x01"))
    assert harness.command(CloseConnection, reason_code=0x89, newest_connection_id=99) == SERVER_BUSY
    harness.last(Subscribed)
    assert harness.connection.is_closed
    assert harness.counters.connections_open == 0


@pytest.mark.parametrize(("level", "goodbye"), [(4, b""), (5, SERVER_BUSY)])
def test_an_engine_that_does_not_answer_ends_a_served_connection(level: int, goodbye: bytes) -> None:
    harness = served(level, accept_timeout_ms=30_000)
    assert harness.pass_ms(29_999) == b"", "the keep alive of 10 s does not count yet"
    assert harness.send(PINGREQ) == PINGRESP
    assert harness.pass_ms(1) == goodbye
    harness.last(ConnectionLost)


def test_the_keep_alive_counts_from_the_engines_answer() -> None:
    harness = served(keep_alive_s=10)
    harness.pass_ms(20_000)
    accept(harness)
    harness.pass_ms(14_999)
    assert harness.connection.phase is Phase.CONNECTED
    harness.pass_ms(1)
    assert harness.last(ConnectionLost).reason == "keep alive"


def test_a_disconnect_is_carried_out_before_the_engines_answer() -> None:
    harness = served()
    harness.send(publish("t"), DISCONNECT)
    assert len(harness.uplink) == 1
    harness.last(ClientDisconnected)
    assert harness.connection.is_closed
    assert harness.counters.connections_open == 0


def test_a_lost_socket_ends_it_at_once_unless_something_waits() -> None:
    harness = served()
    harness.feed("peer_closed")
    harness.last(ConnectionLost)
    other = served(5, properties=KEPT_10_S)
    other.send(qos2(v5=b""))
    other.feed("peer_closed")
    assert not other.connection.is_closed
    accept(other)
    assert [type(event) for event in other.events[1:]] == [PublishReceived, ConnectionLost]


def test_what_waits_for_the_engine_is_bounded() -> None:
    harness = served(5, properties=KEPT_10_S)
    assert harness.send(publish("t", bytes(1_000), first_byte=0x34, packet_id=5, v5=b"")) == b""
    assert harness.wants_data
    too_many = 1 + harness.connection.settings.max_packet_size_bytes // 100_000
    harness.send(*(publish("t", bytes(100_000), v5=b"") for _ in range(too_many)))
    assert not harness.wants_data
    accept(harness)
    harness.pass_ms(1_000)
    assert harness.wants_data


def test_messages_of_the_session_follow_its_answer() -> None:
    harness = served()
    harness.send(SUBSCRIBE)
    accept(harness)
    sent = harness.command(SendPublish, packet_id=1, topic="t", payload=b"p", qos=QoS(1), dup=False)
    assert sent == publish("t", b"p", first_byte=0x32, packet_id=1)


@given(
    session=st.builds(
        SessionSettings,
        max_inflight=st.integers(0, 100),
        max_awaiting_rel=st.integers(0, 100),
        max_subscriptions=st.integers(0, 100),
        max_subscription_bytes=st.integers(0, 1_000),
        max_session_expiry_interval_s=st.integers(0, 1_000),
        routing=st.booleans(),
        fast_path=st.booleans(),
    ),
    is_v5=st.booleans(),
    properties=st.fixed_dictionaries({}, optional={0x11: st.integers(0, 2_000), 0x21: st.integers(1, 200)}),
    has_session=st.booleans(),
)
def test_an_empty_session_answers_as_expected(
    session: SessionSettings, is_v5: bool, properties: dict[int, int], has_session: bool
) -> None:
    encoded = b"".join(bytes((name,)) + value.to_bytes(4 if name == 0x11 else 2, "big") for name, value in properties.items())
    data = connect(level=5 if is_v5 else 4, flags=CLEAN, properties=encoded if is_v5 else b"")
    decoded = (V5 if is_v5 else V311).decode(data, 2)
    state = Session(client_id="c1", settings=session)
    if has_session:
        former = ClientConnected(connection_id=5, commands_partition=1, clean_start=True, session_expiry_interval_s=600)
        state.handle(former, now_ms=1)
        state.handle(Subscribed(connection_id=5, subscriptions=(Subscription(topic_filter="t", qos=QoS(1)),)), now_ms=1)
        state.handle(PublishReceived(connection_id=5, packet_id=9, topic="t", payload=b""), now_ms=1)
    event = connected_event(decoded, connection_id=77, partition=3, lease_id="lease-1")  # type: ignore[arg-type]
    commands = state.handle(event, now_ms=2)
    [accepted] = [command for command in commands if isinstance(command, AcceptConnection)]
    expected = expected_accept(decoded, session, REGISTRATION)  # type: ignore[arg-type]
    assert msgspec.structs.replace(accepted, sequence=0, max_left=0, max_left_bytes=0) == expected
