"""sinks.mqtt.connection.connection: what a device publishes belongs behind the wills of its earlier connections."""

from typing import Any

import pytest

from sinks.mqtt.connection.append_queue import AppendTopic
from sinks.mqtt.connection.phases import Phase
from state.commands import CloseConnection
from state.events import Claim, ClientDisconnected, ConnectionLost
from state.records.session_marks import SETTLED, mark_key
from state.records.subscriptions import ENDED
from state.settings import SessionSettings
from tests.unit.sinks.mqtt.connection.harness import Harness, ack
from tests.unit.sinks.mqtt.connection.test_claims import CONNACK, KEPT, ROUTED, Sessions, connected
from tests.unit.sinks.mqtt.connection.test_served_at_once import CLEAN, accept
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish, text

WILL = 0x04
BIRTH, PUBACK = publish("t", b"online", first_byte=0x32, packet_id=5), ack(0x40, 5)
BIRTH_V5 = publish("t", b"online", first_byte=0x32, packet_id=5, v5=b"")
DISCONNECT, WITH_WILL = b"\xe0\x00", b"\xe0\x01\x04"


def device(*, settled: bool = True, has: bool = False, flags: int = CLEAN, expiry_s: int = 0, **others: Any) -> Harness:
    """Returns a device of MQTT 5 that has sent CONNECT.

    settled: no will of an earlier connection may come. has: there is a mark. flags: of CONNECT.
    """
    tables = Sessions(has=has, settled=settled, kept_ms=0)
    harness = Harness(tables=tables, **{"serves_at_once": True, **ROUTED, **others})
    will = b"\x00" + text("t") + text("offline") if flags & WILL else b""
    properties = b"\x11" + expiry_s.to_bytes(4)
    assert harness.send(connect(level=5, flags=flags, properties=properties, payload=text("c1") + will))[:1] == b"\x20"
    return harness


def published(harness: Harness) -> list[bytes]:
    return [append.value for append in harness.uplink]


def marks(harness: Harness) -> list[str]:
    """Returns what each mark says of wills: that one may come, that none may, or that there is no mark any more."""
    appends = [append for append in harness.others[AppendTopic.SUBSCRIPTIONS] if append.key == mark_key("c1")]
    names = [[name for name, _ in append.headers or []] for append in appends]
    return ["none" if ENDED in said else "settled" if SETTLED in said else "open" for said in names]


def test_a_clean_start_publishes_behind_a_will_that_may_come() -> None:
    """[MQTT-3.1.4-3] CONNACK is early, and the session accepts the connection when the will is in the log."""
    harness = device(settled=False, has=True)
    assert harness.send(BIRTH_V5, publish("t", b"qos 0", v5=b"")) == b""
    assert (harness.connection.phase, published(harness)) == (Phase.ANSWERED, [])
    assert accept(harness) == PUBACK
    assert published(harness) == [b"online", b"qos 0"]


def test_without_such_a_will_a_clean_start_publishes_at_once() -> None:
    harness = device(has=True)
    assert harness.send(BIRTH_V5) == PUBACK
    assert (harness.connection.phase, published(harness)) == (Phase.ANSWERED, [b"online"])


def test_a_new_session_without_clean_start_publishes_behind_it_too() -> None:
    harness = Harness(tables=Sessions(has=False, settled=False), serves_at_once=True, **ROUTED)
    assert harness.send(connect(flags=KEPT), BIRTH) == CONNACK
    assert (connected(harness).claim, published(harness)) == (Claim.NEW, [])
    assert accept(harness) == PUBACK


def test_tables_that_are_behind_may_miss_a_will() -> None:
    harness = Harness(tables=Sessions(has=False), serves_at_once=True, **ROUTED)
    harness.is_current = False
    assert harness.send(connect(flags=CLEAN), BIRTH) == CONNACK
    assert published(harness) == []
    assert accept(harness) == PUBACK


def test_a_connect_that_was_refused_first_may_be_behind_another_will() -> None:
    """The session knows a later connection, whose mark the tables need not have had."""
    harness = Harness(tables=Sessions(has=True, kept_ms=0), serves_at_once=True, **ROUTED)
    harness.send(connect(flags=KEPT))
    harness.command(CloseConnection, reason_code=0x89, newest_connection_id=99)
    assert marks(harness) == ["settled", "open"]


def test_without_routing_nothing_is_looked_up() -> None:
    harness = Harness(serves_at_once=True)
    harness.is_current = None
    assert harness.send(connect(flags=CLEAN), BIRTH) == CONNACK + PUBACK


# --- marks ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("expiry_s", [0, 600])
def test_the_mark_of_a_will_is_in_the_log_before_connack(expiry_s: int) -> None:
    tables = Sessions(has=False)
    harness = Harness(tables=tables, serves_at_once=True, **ROUTED)
    harness.confirming = False
    will = b"\x00" + text("t") + text("offline")
    harness.send(connect(level=5, flags=CLEAN | WILL, properties=b"\x11" + expiry_s.to_bytes(4), payload=text("c1") + will))
    event, mark = harness.waiting
    assert (marks(harness), mark.delays_lookups) == (["open"], True)
    harness.confirm(event)
    assert harness.output() == b""
    harness.confirm(mark)
    assert harness.output()[:1] == b"\x20"


@pytest.mark.parametrize("is_accepted", [True, False], ids=["accepted", "served at once"])
@pytest.mark.parametrize(
    ("expiry_s", "end", "last"),
    [
        (0, DISCONNECT, ["none"]),
        (0, WITH_WILL, ["open"]),
        (0, b"", ["open"]),
        (600, DISCONNECT, ["settled"]),
        (600, WITH_WILL, ["open"]),
        (600, b"", ["open"]),
        (2**32 - 1, DISCONNECT, ["settled"]),
        (2**32 - 1, WITH_WILL, []),
        (600, b"\xe0\x07\x00\x05\x11" + bytes(4), ["none"]),
        (600, b"\xe0\x07\x04\x05\x11" + bytes(4), ["open"]),
    ],
)
def test_only_disconnect_0_withdraws_the_will(expiry_s: int, end: bytes, last: list[str], is_accepted: bool) -> None:
    """[MQTT-3.14.4-3] What is left of it the session says when it is in the log."""
    session = SessionSettings(routing=True, max_session_expiry_interval_s=2**32 - 1)
    harness = device(flags=CLEAN | WILL, expiry_s=expiry_s, session=session)
    if is_accepted:
        accept(harness)
    if end:
        harness.send(end)
        harness.last(ClientDisconnected)
    else:
        harness.feed("peer_closed")
        harness.settle()
        harness.last(ConnectionLost)
    assert marks(harness) == ["open", *last]


def test_a_connection_without_a_will_inherits_what_may_come() -> None:
    """It may end before the session has read it, and the will of the one before is not in the log yet."""
    harness = device(settled=False, has=True)
    assert marks(harness) == ["open"]
    harness.send(DISCONNECT)
    assert marks(harness) == ["open", "open"]
    other = device(settled=False, has=True, expiry_s=600)
    accept(other)
    other.send(DISCONNECT)
    assert marks(other) == ["open", "settled"], "the session accepts it when all wills are in the log"


def test_a_connection_that_leaves_neither_session_nor_will_has_no_mark() -> None:
    assert marks(device()) == []
    before = device(has=True)
    accept(before)
    assert marks(before) == ["settled", "none"]


def test_a_session_without_a_will_is_marked_as_settled() -> None:
    assert marks(device(expiry_s=600)) == ["settled"]
