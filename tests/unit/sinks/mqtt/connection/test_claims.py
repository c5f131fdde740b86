"""sinks.mqtt.connection.connection: CONNACK before the session's answer, by what the tables know of sessions."""

from typing import Any

import msgspec
import pytest

from sinks.mqtt.connection.append_queue import AppendTopic
from sinks.mqtt.connection.phases import Phase
from sinks.mqtt.settings import Limit
from sinks.routing.settings import RoutingSettings
from state.commands import AcceptConnection, CloseConnection
from state.events import Claim, ClientConnected, ClientDisconnected, ConnectionLost, ExpiredSession, Subscribed
from state.model import QoS, ReasonCode, Subscription
from state.records.session_marks import encode_mark, settled_header
from state.records.subscriptions import SubscriptionList, encode_subscriptions
from state.session import Session
from state.settings import SessionSettings
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, PINGRESP, Harness, ack
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, publish, text

KEPT = 0x00
CONNACK, PRESENT = bytes.fromhex("20020000"), bytes.fromhex("20020100")
SUBSCRIBE, SUBACK = packet(0x82, b"\x00\x09", text("news") + b"\x01"), bytes.fromhex("9003000901")
ROUTED: dict[str, Any] = {"routing": RoutingSettings(enabled=True), "session": SessionSettings(routing=True)}
MARK = (b"\x00session\x00c1", encode_mark(77))
LEFT = ("left", b"1")


class Sessions:
    """KnownTables that know whether there is a session, and for how long."""

    def __init__(
        self,
        *,
        has: bool,
        knows: bool = True,
        kept_ms: int = 3_600_000,
        expired: ExpiredSession | None = None,
        settled: bool = True,
    ) -> None:
        self._has = has
        self._settled = settled
        self._expired = expired
        self._kept_ms = kept_ms
        self.knows_sessions = knows

    def has_list(self, client_id: str) -> bool:
        return self._has

    def kept_ms(self, client_id: str) -> int | None:
        return self._kept_ms if self._has else None

    def expired(self, client_id: str) -> ExpiredSession | None:
        return self._expired

    def wills_settled(self, client_id: str) -> bool:
        return self._settled

    def is_highest(self, client_id: str, list_id: tuple[int, int]) -> bool:
        return False

    def retained_limit(self, topic: str, payload_bytes: int) -> Limit | None:
        return None


def asked(*, has: bool, knows: bool = True, **others: Any) -> Harness:
    """Returns a device whose CONNECT waits for Kafka."""
    harness = Harness(tables=Sessions(has=has, knows=knows), **{"serves_at_once": True, **ROUTED, **others})
    harness.confirming = False
    assert harness.send(connect(flags=KEPT)) == b""
    return harness


def answered(*, has: bool, **others: Any) -> Harness:
    """Returns a device that has CONNACK before the session has answered."""
    harness = asked(has=has, **others)
    harness.confirming = True
    assert harness.settle() == (PRESENT if has else CONNACK)
    assert harness.connection.phase is Phase.ANSWERED
    return harness


def marks(harness: Harness) -> list[tuple[bytes | None, bytes]]:
    return [(append.key, append.value) for append in harness.others[AppendTopic.SUBSCRIPTIONS]]


def mark_headers(harness: Harness) -> list[list[tuple[str, bytes]]]:
    """Returns what the marks say of the session."""
    appends = [append for append in harness.others[AppendTopic.SUBSCRIPTIONS] if append.key is not None]
    return [[header for header in append.headers or [] if header != settled_header()] for append in appends]


def v5_device(asked_s: int, **others: Any) -> Harness:
    """Returns a device that keeps its session for some seconds. There was none before."""
    harness = Harness(tables=Sessions(has=False), **{"serves_at_once": True, **ROUTED, **others})
    harness.send(connect(level=5, flags=KEPT, properties=b"\x11" + asked_s.to_bytes(4)))
    return harness


def connected(harness: Harness) -> ClientConnected:
    event = harness.events[0]
    assert isinstance(event, ClientConnected)
    return event


def accept(harness: Harness, *, has: bool) -> bytes:
    """The session accepts the connection: the real one, with a session of an earlier connection or without."""
    session = Session(client_id="c1", settings=harness.connection.settings.session)
    if has:
        former = ClientConnected(connection_id=5, commands_partition=1, session_expiry_interval_s=600)
        session.handle(former, now_ms=1)
    answers = (AcceptConnection, CloseConnection)
    commands = session.handle(connected(harness), now_ms=2)
    [command] = [one for one in commands if isinstance(one, answers) and one.connection_id == 77]
    fields = msgspec.structs.asdict(command)
    for name in ("connection_id", "partition", "sequence"):
        del fields[name]
    return harness.command(type(command), **fields)


@pytest.mark.parametrize(("has", "claim"), [(False, Claim.NEW), (True, Claim.RESUMED)])
def test_connack_follows_the_log_and_the_claim_goes_to_the_session(has: bool, claim: Claim) -> None:
    harness = answered(has=has)
    assert connected(harness).claim == claim
    assert accept(harness, has=has) == b"", "there is one CONNACK [MQTT-3.2.0-2]"
    assert harness.connection.phase is Phase.CONNECTED
    assert harness.send(PINGREQ) == PINGRESP


@pytest.mark.parametrize("has", [True, False])
def test_connack_follows_the_mark_of_the_session(has: bool) -> None:
    """Whoever has CONNACK is in the tables, whichever gateway is asked next."""
    harness = asked(has=has)
    assert marks(harness) == [MARK]
    first, *others = harness.waiting
    harness.confirm(first)
    assert harness.output() == b""
    harness.confirm((others or harness.waiting)[0])
    assert harness.output() == (PRESENT if has else CONNACK)


def test_the_connect_of_a_session_that_goes_on_follows_its_mark() -> None:
    """The gateway of an earlier connection finds the mark if its own event is in the log behind this CONNECT."""
    harness = asked(has=True)
    [mark] = harness.waiting
    assert mark.topic is AppendTopic.SUBSCRIPTIONS
    harness.confirm(mark)
    [event] = harness.waiting
    assert event.topic is AppendTopic.EVENTS


def test_a_device_that_leaves_before_its_mark_has_made_no_connect() -> None:
    harness = asked(has=True)
    harness.feed("peer_closed")
    harness.confirming = True
    assert harness.settle() == b""
    assert harness.events == []


@pytest.mark.parametrize(
    "others",
    [{"serves_at_once": False}, {"knows_settings": False}, {"knows": False}, {"routing": RoutingSettings(early_connack=False)}],
    ids=lambda others: next(iter(others)),
)
@pytest.mark.parametrize("has", [True, False])
def test_nothing_is_claimed_where_it_is_not_known_or_not_wanted(has: bool, others: dict[str, Any]) -> None:
    harness = asked(has=has, **others)
    harness.confirming = True
    assert harness.settle() == b""
    assert connected(harness).claim == Claim.NONE
    assert marks(harness) == [MARK], "the session may be new, and others must learn of it"
    assert accept(harness, has=has) == (PRESENT if has else CONNACK)


def test_tables_that_are_behind_claim_nothing() -> None:
    harness = Harness(tables=Sessions(has=False), serves_at_once=True, **ROUTED)
    harness.is_current = False
    assert harness.send(connect(flags=KEPT)) == b""
    assert connected(harness).claim == Claim.NONE
    assert accept(harness, has=False) == CONNACK


@pytest.mark.parametrize(("kept_ms", "claim"), [(0, Claim.NONE), (749, Claim.NONE), (750, Claim.RESUMED)])
def test_a_session_that_may_be_about_to_expire_is_asked(kept_ms: int, claim: Claim) -> None:
    """The session that is there counts, whatever the CONNECT asks for."""
    harness = Harness(tables=Sessions(has=True, kept_ms=kept_ms), serves_at_once=True, **ROUTED)
    harness.send(connect(flags=KEPT))
    assert connected(harness).claim == claim


def test_a_claim_that_kafka_confirms_too_late_is_not_said() -> None:
    """The session may have ended since. Then CONNACK says that the server is busy, and nothing about a session."""
    harness = Harness(tables=Sessions(has=True, kept_ms=750), serves_at_once=True, **ROUTED)
    harness.confirming = False
    harness.send(connect(flags=KEPT))
    harness.pass_ms(251)
    harness.confirming = True
    assert harness.settle() == b""
    assert accept(harness, has=False) == bytes.fromhex("20020003")


@pytest.mark.parametrize(
    ("asked_s", "knows", "kept"), [(60, True, b"4294967295"), (59, True, b"59"), (59, False, b"0"), (600, False, b"0")]
)
def test_a_mark_says_how_long_the_session_is_surely_kept(asked_s: int, knows: bool, kept: bytes) -> None:
    harness = v5_device(asked_s, knows_settings=knows)
    assert mark_headers(harness) == [[("kept", kept)]]


def test_a_session_that_ends_with_this_connection_is_claimed_by_nobody() -> None:
    """The mark of an earlier connection says that it is kept. Once the session has accepted this one, the mark ends."""
    harness = Harness(tables=Sessions(has=True, kept_ms=0), serves_at_once=True, **ROUTED)
    harness.send(connect(level=5, flags=KEPT))
    assert (connected(harness).claim, mark_headers(harness)) == (Claim.NONE, [[("kept", b"0")]])
    assert accept(harness, has=True)[0] == 0x20
    assert (marks(harness)[1], mark_headers(harness)[1]) == ((MARK[0], b""), [("ended", b"77")])


@pytest.mark.parametrize(
    ("asked_s", "changed_s", "last"),
    [(600, None, ("kept", b"600")), (600, 5, ("kept", b"5")), (600, 0, ("ended", b"77")), (2**32 - 1, 7, ("kept", b"7"))],
)
def test_disconnect_says_how_long_the_session_is_kept(asked_s: int, changed_s: int | None, last: tuple[str, bytes]) -> None:
    harness = v5_device(asked_s)
    accept(harness, has=False)
    harness.send(b"\xe0\x00" if changed_s is None else b"\xe0\x07\x00\x05\x11" + changed_s.to_bytes(4))
    assert mark_headers(harness)[1:] == [[last] if last[0] == "ended" else [last, LEFT]]


def test_the_end_of_a_lost_connection_says_how_long_it_is_kept() -> None:
    harness = v5_device(600)
    accept(harness, has=False)
    harness.feed("peer_closed")
    harness.settle()
    assert mark_headers(harness)[1:] == [[("kept", b"600"), LEFT]]


def test_what_is_kept_is_said_when_kafka_has_the_end_of_the_connection() -> None:
    """Whoever reads the mark may claim that the session has expired. The session has read the end by then."""
    harness = v5_device(600)
    accept(harness, has=False)
    harness.confirming = False
    harness.send(b"\xe0\x00")
    (farewell,) = harness.waiting
    assert (farewell.is_farewell, farewell.delays_lookups, len(mark_headers(harness))) == (True, True, 1)
    harness.confirm(farewell)
    assert mark_headers(harness)[1:] == [[("kept", b"600"), LEFT]]
    (mark,) = harness.waiting
    assert mark.delays_lookups, "its client does not find the mark before"


def test_an_end_that_kafka_does_not_have_says_nothing_of_the_session() -> None:
    harness = v5_device(600)
    accept(harness, has=False)
    harness.confirming = False
    harness.send(b"\xe0\x00")
    harness.confirm(harness.waiting[0], RuntimeError("no broker"))
    assert len(mark_headers(harness)) == 1


def test_a_mark_says_only_what_the_engine_has_granted() -> None:
    """An engine with other settings may keep the session for longer, and its device has read so."""
    harness = Harness(tables=Sessions(has=True, kept_ms=0), serves_at_once=True, **ROUTED)
    harness.send(connect(level=5, flags=KEPT, properties=bytes.fromhex("1100000258")))
    assert harness.command(AcceptConnection, session_expiry_interval_s=3_600)[0] == 0x20
    harness.send(b"\xe0\x00")
    assert mark_headers(harness)[1:] == [[("kept", b"0")]]


def test_the_end_of_a_claim_that_may_be_refused_says_nothing() -> None:
    harness = v5_device(600)
    harness.feed("peer_closed")
    harness.last(ConnectionLost)
    assert len(marks(harness)) == 1


EXPIRED = ExpiredSession(connection_id=5, left_ms=9_000, interval_s=5)


@pytest.mark.parametrize("kept_ms", [0, 749])
def test_a_session_that_has_expired_is_claimed_to_be_gone(kept_ms: int) -> None:
    harness = Harness(tables=Sessions(has=True, kept_ms=kept_ms, expired=EXPIRED), serves_at_once=True, **ROUTED)
    assert harness.send(connect(flags=KEPT)) == CONNACK
    assert (connected(harness).claim, connected(harness).expired) == (Claim.NEW, EXPIRED)
    assert harness.event_records[0].startswith(b"\x03"), "an older engine must not refuse it"
    assert accept(harness, has=False) == b""
    assert harness.connection.phase is Phase.CONNECTED


def test_a_session_that_lives_is_not_claimed_to_be_gone() -> None:
    harness = Harness(tables=Sessions(has=True, kept_ms=750, expired=EXPIRED), serves_at_once=True, **ROUTED)
    harness.send(connect(flags=KEPT))
    assert (connected(harness).claim, connected(harness).expired) == (Claim.RESUMED, None)


def test_the_list_of_an_expired_session_is_gone_before_connack() -> None:
    """Matchers must not hand out what the expired session has subscribed to."""
    harness = Harness(tables=Sessions(has=True, kept_ms=0, expired=EXPIRED), serves_at_once=True, **ROUTED)
    harness.confirming = False
    harness.send(connect(flags=KEPT))
    event, mark = harness.waiting
    harness.confirm(mark)
    harness.confirm(event)
    assert harness.output() == b""
    (empty,) = harness.waiting
    assert (empty.key, empty.value) == (None, encode_subscriptions(SubscriptionList(connection_id=77, version=0)))
    harness.confirm(empty)
    assert harness.output() == CONNACK


@pytest.mark.parametrize("flags", [KEPT, 0x02], ids=["resumes", "begins anew"])
def test_a_connection_without_an_interval_leaves_no_session(flags: int) -> None:
    """The client may be back before the session has accepted the connection, and ended the mark."""
    harness = Harness(tables=Sessions(has=True), serves_at_once=True, **ROUTED)
    assert harness.send(connect(level=5, flags=flags), b"\xe0\x00")[0] == 0x20
    assert mark_headers(harness)[1:] == [[("kept", b"0"), LEFT]]


@pytest.mark.parametrize("is_early", [True, False], ids=["behind CONNECT", "behind CONNACK"])
def test_a_disconnect_does_not_wait_for_a_resumed_session(is_early: bool) -> None:
    """The client may connect again at once. Its CONNECT must not be before its DISCONNECT in the log."""
    harness = Harness(tables=Sessions(has=True), serves_at_once=True, **ROUTED)
    disconnect = bytes.fromhex("e00700051100000000")
    answer = harness.send(connect(level=5, flags=KEPT, properties=bytes.fromhex("1100000258")), disconnect if is_early else b"")
    assert (answer[0], answer[2]) == (0x20, 1)
    assert is_early or harness.send(disconnect) == b""
    assert (harness.last(ClientDisconnected).session_expiry_interval_s, harness.connection.is_closed) == (0, True)
    assert mark_headers(harness)[1:] == [[("ended", b"77")]]


def test_a_disconnect_with_an_error_ends_a_resumed_connection() -> None:
    harness = answered(has=True)
    harness.send(b"\xe0\x01\x00")
    assert harness.connection.is_closed
    harness.last(ConnectionLost)
    assert harness.counters.protocol_errors


@pytest.mark.parametrize("asked_s", [0, 2**32 - 1])
def test_the_end_of_a_connection_may_change_nothing_for_its_session(asked_s: int) -> None:
    harness = v5_device(asked_s, session=SessionSettings(routing=True, max_session_expiry_interval_s=2**32 - 1))
    accept(harness, has=False)
    before = marks(harness)
    harness.send(b"\xe0\x00")
    assert marks(harness) == before


def test_a_gateway_that_closes_says_nothing_of_the_session() -> None:
    """Its lease may have passed, and the session may have ended since."""
    harness = v5_device(600)
    accept(harness, has=False)
    harness.close("the lease of the gateway has passed", ReasonCode.SERVER_BUSY)
    harness.last(ConnectionLost)
    assert len(marks(harness)) == 1


def test_a_connection_that_is_taken_over_says_nothing_of_the_session() -> None:
    harness = v5_device(600)
    accept(harness, has=False)
    harness.command(CloseConnection, reason_code=ReasonCode.SESSION_TAKEN_OVER, reason="")
    assert len(marks(harness)) == 1


def test_a_session_that_ends_with_its_connection_needs_no_mark() -> None:
    harness = Harness(tables=Sessions(has=False), serves_at_once=True, **ROUTED)
    assert harness.send(connect(level=5, flags=KEPT))[0] == 0x20
    assert (connected(harness).claim, marks(harness)) == (Claim.NEW, [])


def test_a_kept_clean_start_marks_its_session() -> None:
    harness = Harness(tables=Sessions(has=False), serves_at_once=True, **ROUTED)  # and it has no list
    assert harness.send(connect(level=5, flags=0x02, properties=bytes.fromhex("1100000258")))[0] == 0x20
    assert (connected(harness).claim, marks(harness)) == (Claim.NONE, [MARK])


def test_a_new_session_subscribes_at_once_and_suback_waits() -> None:
    """If the claim is wrong, nothing was acknowledged that the session must keep."""
    harness = answered(has=False)
    later = publish("t", first_byte=0x32, packet_id=6)
    assert harness.send(publish("t", first_byte=0x32, packet_id=5), SUBSCRIBE, later, PINGREQ) == ack(0x40, 5) + PINGRESP
    assert [append.key for append in harness.others[AppendTopic.SUBSCRIPTIONS]] == [MARK[0], None], "matchers know the list"
    harness.last(Subscribed)
    assert accept(harness, has=False) == SUBACK + ack(0x40, 6)
    assert harness.send(packet(0xA2, b"\x00\x0a", text("news"))) == ack(0xB0, 10)


def test_a_device_that_leaves_without_suback_has_subscribed() -> None:
    harness = answered(has=False)
    assert harness.send(SUBSCRIBE, b"\xe0\x00") == b""
    assert [type(event) for event in harness.events] == [ClientConnected, Subscribed, ClientDisconnected]


def test_suback_of_a_wrong_claim_is_never_sent() -> None:
    harness = answered(has=False)
    assert harness.send(SUBSCRIBE) == b""
    assert accept(harness, has=True) == b"", "MQTT 3.1.1 has no DISCONNECT of a server"
    assert harness.connection.is_closed


def test_publications_of_a_device_do_not_wait_for_its_resumed_session() -> None:
    harness = answered(has=True)
    assert harness.send(publish("t", first_byte=0x32, packet_id=5), PINGREQ) == PINGRESP + ack(0x40, 5)
    assert accept(harness, has=True) == b""


@pytest.mark.parametrize(
    "waits", [SUBSCRIBE, packet(0xA2, b"\x00\x09", text("news")), publish("t", first_byte=0x34, packet_id=8), ack(0x62, 9)]
)
def test_what_concerns_a_resumed_session_waits_with_all_behind_it(waits: bytes) -> None:
    harness = answered(has=True)
    assert harness.send(waits, publish("t", first_byte=0x32, packet_id=5), PINGREQ) == b""
    assert len(harness.events) == 1
    answer = accept(harness, has=True)
    assert PINGRESP in answer
    assert answer.endswith(ack(0x40, 5))


def test_a_device_that_has_published_gets_what_its_session_holds() -> None:
    harness = answered(has=True)
    harness.send(publish("t", first_byte=0x30))
    given = {"awaiting_rel": (9,), "topic_filters": ("t",), "subscriptions": (Subscription(topic_filter="t", qos=QoS(1)),)}
    expected = harness.connection._handshake.expected
    assert expected is not None
    fields = msgspec.structs.asdict(expected) | given | {"list_connection_id": 5}
    for name in ("connection_id", "partition", "sequence"):
        del fields[name]
    assert harness.command(AcceptConnection, **fields) == b""
    assert harness.send(ack(0x62, 9)) == ack(0x70, 9)
    assert harness.connection._device is not None
    assert harness.connection._device.list_id == (5, 0)
    assert harness.send(SUBSCRIBE)[:1] == b"\x90"
    assert harness.connection._device.list_id == (77, 1)


def test_an_engine_with_other_settings_ends_a_connection_that_has_published() -> None:
    harness = answered(has=True)
    harness.send(publish("t", first_byte=0x30))
    expected = harness.connection._handshake.expected
    assert expected is not None
    fields = msgspec.structs.asdict(expected) | {"send_quota": 2}
    for name in ("connection_id", "partition", "sequence"):
        del fields[name]
    harness.command(AcceptConnection, **fields)
    assert harness.connection.is_closed


@pytest.mark.parametrize("has", [True, False])
def test_a_wrong_claim_ends_the_connection(has: bool) -> None:
    harness = Harness(tables=Sessions(has=has), serves_at_once=True, **ROUTED)
    expiry = bytes.fromhex("1100000258")
    answer = harness.send(connect(level=5, flags=KEPT, properties=expiry))
    assert answer[2] == has
    assert accept(harness, has=not has)[:1] == b"\xe0"
    assert harness.connection.is_closed
    harness.last(ConnectionLost)


def test_a_connect_that_waits_for_the_tables_has_a_deadline() -> None:
    harness = Harness(tables=Sessions(has=False), serves_at_once=True, accept_timeout_ms=30_000, **ROUTED)
    harness.is_current = None
    assert harness.send(connect(flags=KEPT)) == b""
    assert harness.connection.phase is Phase.LOOKING_UP
    assert harness.pass_ms(30_000) == bytes.fromhex("20020003")
    harness.feed("looked_up", True)
    assert harness.events == []
