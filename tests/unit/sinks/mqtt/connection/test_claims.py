"""sinks.mqtt.connection.connection: CONNACK before the session's answer, by what the tables know of sessions."""

from typing import Any

import msgspec
import pytest

from sinks.mqtt.connection.append_queue import AppendTopic
from sinks.mqtt.connection.phases import Phase
from sinks.mqtt.limits.settings import Limit
from sinks.routing.settings import RoutingSettings
from state.commands import AcceptConnection, CloseConnection
from state.events import Claim, ClientConnected, ConnectionLost, Subscribed
from state.records.session_marks import encode_mark
from state.session import Session
from state.settings import SessionSettings
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, PINGRESP, Harness, ack
from tests.unit.sinks.mqtt.mqtt_bytes import connect, packet, publish, text

KEPT = 0x00
CONNACK, PRESENT = bytes.fromhex("20020000"), bytes.fromhex("20020100")
SUBSCRIBE, SUBACK = packet(0x82, b"\x00\x09", text("news") + b"\x01"), bytes.fromhex("9003000901")
ROUTED: dict[str, Any] = {"routing": RoutingSettings(enabled=True), "session": SessionSettings(routing=True)}
MARK = (b"\x00session\x00c1", encode_mark(77))


class Sessions:
    """KnownTables that know whether there is a session."""

    def __init__(self, *, has: bool, knows: bool = True) -> None:
        self._has = has
        self.knows_sessions = knows

    def has_list(self, client_id: str) -> bool:
        return self._has

    def has_session(self, client_id: str) -> bool:
        return self._has

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
    event, mark = harness.waiting
    assert marks(harness) == [MARK]
    harness.confirm(event)
    assert harness.output() == b""
    harness.confirm(mark)
    assert harness.output() == (PRESENT if has else CONNACK)


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


def test_a_session_that_may_be_about_to_expire_is_asked() -> None:
    brief = SessionSettings(routing=True, session_expiry_interval_s=59)
    harness = asked(has=True, session=brief)
    assert connected(harness).claim == Claim.NONE
    assert connected(asked(has=True, session=SessionSettings(routing=True, session_expiry_interval_s=60))).claim == Claim.RESUMED
    assert connected(asked(has=False, session=brief)).claim == Claim.NEW


def test_a_session_that_ends_with_its_connection_needs_no_mark() -> None:
    harness = Harness(tables=Sessions(has=False), serves_at_once=True, **ROUTED)
    assert harness.send(connect(level=5, flags=KEPT))[0] == 0x20
    assert (connected(harness).claim, marks(harness)) == (Claim.NEW, [])


def test_a_kept_clean_start_marks_its_session() -> None:
    harness = Harness(tables=Sessions(has=False), serves_at_once=True, **ROUTED)  # and it has no list
    assert harness.send(connect(level=5, flags=0x02, properties=bytes.fromhex("1100000258")))[0] == 0x20
    assert (connected(harness).claim, marks(harness)) == (Claim.NONE, [MARK])


def test_a_new_session_publishes_at_once_and_subscribes_later() -> None:
    """If the claim is wrong, nothing was acknowledged that the session must keep."""
    harness = answered(has=False)
    assert harness.send(publish("t", first_byte=0x32, packet_id=5), PINGREQ, SUBSCRIBE, PINGREQ) == PINGRESP + ack(0x40, 5)
    assert accept(harness, has=False) == SUBACK + PINGRESP
    harness.last(Subscribed)


def test_a_resumed_session_waits_with_all_that_its_device_sends() -> None:
    harness = answered(has=True)
    assert harness.send(publish("t", first_byte=0x32, packet_id=5), PINGREQ) == b""
    assert accept(harness, has=True) == PINGRESP + ack(0x40, 5)


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
