"""sinks.mqtt.connection.left_session: what a client leaves at a gateway, and how its next connection goes on with it."""

from typing import Any

import msgspec
import pytest

from sinks.fast_path.offering import FastPathState
from sinks.mqtt.access.grant import EVERYTHING
from sinks.mqtt.connection import left_session
from sinks.mqtt.connection.left_session import LeftSession, LeftSessions
from sinks.mqtt.connection.phases import Phase
from sinks.routing.settings import RoutingSettings
from state.commands import AcceptConnection, CloseConnection, OfferPublish, OpenFastPath
from state.events import ClientConnected, Continued, FastSent, Subscribed
from state.model import Position, QoS, ReasonCode, Routing, Subscription
from state.records.routing import SourceKind, encode_routing, source_number
from state.settings import SessionSettings
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, PINGRESP, Harness, ack, connected
from tests.unit.sinks.mqtt.connection.offers import FIRST, SECOND, TOPIC, WALL_MS, granted, offer, sent
from tests.unit.sinks.mqtt.connection.test_claims import Sessions
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, text

DISCONNECT, PRESENT, CONNACK = b"\xe0\x00", bytes.fromhex("20020100"), bytes.fromhex("20020000")
SUBSCRIBE, SUBACK = packet(0x82, b"\x00\x09", text("news") + b"\x01"), bytes.fromhex("9003000901")
SUBSCRIBED = Subscription(topic_filter="t", qos=QoS.EXACTLY_ONCE)
ROUTED: dict[str, Any] = {"routing": RoutingSettings(enabled=True), "session": SessionSettings(routing=True)}
ACCEPTED = {
    "session_expiry_interval_s": 7_200,
    "max_left": 3,
    "max_left_bytes": 1_000,
    "list_connection_id": 60,
    "list_version": 4,
    "subscriptions": (SUBSCRIBED,),
}


class Marked(Sessions):
    """The session is kept, and its newest connection is known."""

    def __init__(self, newest: int = 77) -> None:
        super().__init__(has=True)
        self._newest = newest

    def marked_by(self, client_id: str) -> int:
        return self._newest


def leaving(**accept: Any) -> Harness:
    """A device that has got the message at offset 5 by the fast path, and acknowledged it."""
    harness = granted(accept=ACCEPTED | accept, **ROUTED)
    assert offer(harness, 5) == sent(FIRST)
    harness.send(ack(0x40, FIRST))
    return harness


def left(**accept: Any) -> LeftSession:
    harness = leaving(**accept)
    harness.send(DISCONNECT)
    session = harness.connection.left
    assert session is not None
    return session


def offered(offset: int, *headers: tuple[str, bytes], previous: int | None = None, partition: int = 2) -> OfferPublish:
    return OfferPublish(
        connection_id=77,
        position=Position(partition, offset),
        previous=offset - 1 if previous is None else previous,
        timestamp_ms=WALL_MS,
        headers=(TOPIC, ("mqtt-qos", b"1"), *headers),
        payload=b"p",
    )


def returning(session: LeftSession, newest: int = 77, *, read_to: int = 5, **others: Any) -> Harness:
    """The device connects again, and Kafka has its CONNECT."""
    sessions = LeftSessions(lambda client_id: Position(2, read_to))
    sessions.keep("c1", session)
    harness = Harness(tables=Marked(newest), left_sessions=sessions, serves_at_once=True, **ROUTED, **others)
    harness.send(connect(flags=0))
    return harness


def accept(harness: Harness, *, continues: bool = True, **fields: Any) -> bytes:
    expected = harness.connection._handshake.expected
    assert expected is not None
    names = set(expected.__struct_fields__) - {"connection_id", "partition", "sequence", "continues"}
    values = {name: getattr(expected, name) for name in names} | fields
    return harness.command(AcceptConnection, continues=continues, **values)


class TestLeaving:
    def test_a_session_is_left_with_what_the_next_connection_needs(self) -> None:
        session = left()
        assert session.continued == Continued(
            connection_id=77, after=Position(2, 5), is_granted=True, list_connection_id=60, list_version=4
        )
        assert (session.list_id, session.max_messages, session.max_bytes) == ((60, 4), 3, 1_000)

    def test_a_socket_that_is_closed_leaves_it_as_disconnect_does(self) -> None:
        harness = leaving()
        harness.feed("peer_closed")
        assert harness.connection.left is not None

    @pytest.mark.parametrize(
        "why",
        [
            "unacknowledged",
            "held",
            "broken",
            "refused",
            "shared",
            "ends with its connection",
            "nothing may be held",
            "taken over",
        ],
    )
    def test_a_session_that_is_unfinished_is_not_left(self, why: str) -> None:
        accepted = {"ends with its connection": {"session_expiry_interval_s": 0}, "nothing may be held": {"max_left": 0}}
        harness = leaving(**accepted.get(why, {}))
        match why:
            case "unacknowledged":
                offer(harness, 6)
            case "held":
                offer(harness, 9, previous=8)
            case "broken":
                offer(harness, 6, ("priority", b"3"))
            case "shared":
                harness.send(packet(0x82, b"\x00\x09", text("$share/g/t") + b"\x01"))
            case "refused":
                harness = granted(5, accept=ACCEPTED, **ROUTED)
                assert offer(harness, 5) == sent(FIRST, v5=b"")
                harness.send(packet(0x40, FIRST.to_bytes(2, "big"), b"\x97"))
            case "taken over":
                harness.command(CloseConnection, reason_code=ReasonCode.SESSION_TAKEN_OVER, reason="another connection")
        harness.send(DISCONNECT)
        assert harness.connection.left is None

    def test_without_a_grant_it_is_left_with_what_is_routed(self) -> None:
        harness = began()
        harness.send(DISCONNECT)
        session = harness.connection.left
        assert session is not None
        assert (session.continued.after, session.continued.is_granted) == (Position(2, 40), False)

    def test_a_message_that_was_left_to_the_session_is_unfinished(self) -> None:
        harness = began()
        offer(harness, 41)
        harness.send(DISCONNECT)
        assert harness.connection.left is None


def began() -> Harness:
    """A connection that has begun its session, with a subscription."""
    harness = connected(accept=ACCEPTED | {"list_connection_id": 77, "list_version": 0}, **ROUTED)
    assert harness.connection._device is not None
    harness.connection._device.fast_path.begin(Position(2, 40))
    return harness


def routed(offset: int, *, connection_id: int = 77, previous: int = 40) -> OfferPublish:
    source = source_number(SourceKind.UPLINK, 0, "uplink")
    routing = Routing(source=source, mark=offset, connection_id=connection_id, version=0, qos=QoS(1))
    return msgspec.structs.replace(offered(offset, previous=previous), recipient=encode_routing(routing))


class TestHolding:
    def test_what_comes_next_is_held_in_its_order(self) -> None:
        session = left()
        assert [session.offer(offered(offset)) for offset in (6, 7, 6)] == [True] * 3
        assert [held.position.offset for held in session.held.offers] == [6, 7]
        assert session.fast_path is FastPathState.HOLDING

    @pytest.mark.parametrize("name", ["expiration", "priority", "CC", "BCC", "deliver-at", "collapse-key", "cancel-message-id"])
    def test_what_the_session_may_handle_otherwise_ends_it(self, name: str) -> None:
        assert not left().offer(offered(6, (name, b"1")))

    def test_a_gap_or_another_partition_ends_it(self) -> None:
        assert not left().offer(offered(8))
        assert not left().offer(offered(6, partition=3))

    def test_more_than_the_queue_surely_holds_ends_it(self) -> None:
        session = left()
        assert [session.offer(offered(offset)) for offset in (6, 7, 8, 9)] == [True, True, True, False]
        assert not left(max_left_bytes=10).offer(offered(6))

    def test_a_gateway_forgets_the_session_that_was_left_first(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(left_session, "MAX_LEFT_SESSIONS", 2)
        sessions = LeftSessions()
        for client_id in ("a", "b", "a", "c"):
            sessions.keep(client_id, left())
        assert [sessions.get(client_id) is not None for client_id in ("a", "b", "c")] == [True, False, True]
        assert len(sessions) == 2

    def test_a_gateway_holds_no_more_than_its_limit_for_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(left_session, "MAX_LEFT_BYTES", 1_500)
        sessions = LeftSessions()
        for client_id in ("a", "b"):
            sessions.keep(client_id, left())
            sessions.offer(client_id, [offered(6), offered(7)], 0)
        assert sessions.get("a") is not None
        assert sessions.get("b") is None
        sessions.take("a")
        sessions.keep("b", left())
        sessions.offer("b", [offered(6), offered(9)], 0)
        assert sessions.get("b") is None, "a gap"
        sessions.offer("b", [offered(6)], 0)
        assert len(sessions) == 0


class TestReturning:
    def test_what_was_held_is_sent_before_the_session_has_accepted(self) -> None:
        harness = returning_with_output(session := left(), 6)
        assert harness.connection.phase is Phase.ANSWERED
        connect_event = harness.events[0]
        assert isinstance(connect_event, ClientConnected)
        assert connect_event.continued == session.continued
        assert harness.last(FastSent).previous == 5
        assert harness.counters.sessions_continued == 1

    def test_subscribe_is_answered_and_qos_2_waits(self) -> None:
        harness = returning(left())
        assert harness.send(SUBSCRIBE, PINGREQ) == PINGRESP + SUBACK
        harness.last(Subscribed)
        assert harness.send(ack(0x62, 5), PINGREQ) == b"", "PUBREL"
        assert accept(harness) == PINGRESP + bytes.fromhex("70020005")

    def test_a_message_of_qos_2_waits_until_the_session_has_accepted(self) -> None:
        harness = returning(left())
        assert offer(harness, 6, qos=2) == b""
        assert accept(harness) == sent(SECOND, qos=2)

    def test_packet_ids_go_on(self) -> None:
        harness = returning(left())
        assert offer(harness, 6) == sent(SECOND)
        harness.command(OpenFastPath, sequence=9, after=Position(2, 6), ids_in_use=(), subscriptions=())
        assert harness.connection.phase is Phase.ANSWERED

    def test_a_list_that_changes_at_once_is_of_the_same_session(self) -> None:
        harness = began()
        harness.send(DISCONNECT)
        assert harness.connection.left is not None
        again = returning(harness.connection.left, read_to=40)
        again.send(packet(0x82, b"\x00\x09", text("t") + b"\x01"))
        assert again.connection.fast_path is FastPathState.OPEN
        again.feed("offer", [routed(41)], False, WALL_MS)
        assert again.settle() == sent(FIRST)
        assert not again.last(FastSent).is_granted

    def test_offers_that_come_before_kafka_has_the_connect_are_held(self) -> None:
        sessions = LeftSessions(lambda client_id: Position(2, 6))
        sessions.keep("c1", left())
        harness = Harness(tables=Marked(), left_sessions=sessions, serves_at_once=True, **ROUTED)
        harness.confirming = False
        harness.send(connect(flags=0))
        assert harness.connection.fast_path is FastPathState.HOLDING
        harness.feed("offer", [offered(6)], False, WALL_MS)
        harness.confirming = True
        assert harness.settle() == PRESENT + sent(SECOND)

    def test_a_connection_that_ends_before_it_is_served_takes_no_offers(self) -> None:
        sessions = LeftSessions(lambda client_id: Position(2, 5))
        sessions.keep("c1", left())
        harness = Harness(tables=Marked(), left_sessions=sessions, serves_at_once=True, **ROUTED)
        harness.confirming = False
        harness.send(connect(flags=0))
        harness.feed("peer_closed")
        assert harness.connection.is_closed
        assert harness.connection.fast_path is FastPathState.CLOSED

    def test_a_gap_before_kafka_has_the_connect_leaves_all_to_the_session(self) -> None:
        sessions = LeftSessions(lambda client_id: Position(2, 6))
        sessions.keep("c1", left())
        harness = Harness(tables=Marked(), left_sessions=sessions, serves_at_once=True, **ROUTED)
        harness.confirming = False
        harness.send(connect(flags=0))
        harness.feed("offer", [offered(9)], False, WALL_MS)
        harness.confirming = True
        assert harness.settle() == PRESENT
        assert harness.send(SUBSCRIBE) == b""

    @pytest.mark.parametrize("newest", [None, Position(2, 6), Position(3, 5)])
    def test_what_was_read_and_not_offered_leaves_all_to_the_session(self, newest: Position | None) -> None:
        sessions = LeftSessions(lambda client_id: newest)
        sessions.keep("c1", left())
        harness = Harness(tables=Marked(), left_sessions=sessions, serves_at_once=True, **ROUTED)
        assert harness.send(connect(flags=0), SUBSCRIBE) == PRESENT

    def test_another_connection_meanwhile_leaves_all_to_the_session(self) -> None:
        harness = returning(left(), newest=78)
        assert harness.send(SUBSCRIBE) == b""
        connect_event = harness.events[0]
        assert isinstance(connect_event, ClientConnected)
        assert connect_event.continued is None

    def test_a_session_that_disagrees_ends_the_connection_that_was_served(self) -> None:
        harness = returning(left())
        offer(harness, 6)
        accept(harness, continues=False)
        assert harness.connection.is_closed

    def test_another_list_of_subscriptions_ends_the_connection(self) -> None:
        harness = returning(left())
        harness.send(SUBSCRIBE)
        accept(harness, list_version=5)
        assert harness.connection.is_closed

    def test_a_session_that_disagrees_goes_on_where_nothing_was_sent(self) -> None:
        harness = returning(left())
        accept(harness, continues=False)
        assert harness.connection.phase is Phase.CONNECTED
        assert offer(harness, 6) == b"", "there is no grant"

    @pytest.mark.parametrize("continues", [True, False])
    def test_a_device_that_was_not_served_goes_on_with_what_the_session_agrees_to(self, continues: bool) -> None:
        harness = returning(left(), login=None)
        harness.now_ms += 2_000  # Kafka was not prompt
        harness.confirming = False
        harness.logged_in(EVERYTHING)
        harness.now_ms += 2_000
        harness.confirming = True
        assert harness.settle() == PRESENT
        accept(harness, continues=continues)
        assert offer(harness, 6) == (sent(SECOND) if continues else b"")


def returning_with_output(session: LeftSession, offset: int) -> Harness:
    """The device connects again, and gets what was held."""
    session.offer(offered(offset))
    sessions = LeftSessions(lambda client_id: Position(2, offset))
    sessions.keep("c1", session)
    harness = Harness(tables=Marked(), left_sessions=sessions, serves_at_once=True, **ROUTED)
    assert harness.send(connect(flags=0)) == PRESENT + sent(SECOND)
    return harness
