"""A CONNECT that waits for its turn."""

from sinks.mqtt.connection.phases import Phase
from sinks.mqtt.limits.connect_queue import Turn
from state.commands import AcceptConnection, CloseConnection
from state.events import ClientConnected
from state.model import ReasonCode
from tests.unit.sinks.mqtt.connection.harness import Harness
from tests.unit.sinks.mqtt.mqtt_bytes import connect


def test_a_queued_connect_has_an_id_and_no_record_before_its_turn() -> None:
    harness = Harness(turn=Turn.LATER)
    assert harness.send(connect(flags=0x00)) == b""
    assert harness.connection.phase is Phase.QUEUED
    assert harness.connection.connection_id == 77
    assert harness.events == []
    assert harness.wants_data
    harness.turn_has_come()
    assert harness.last(ClientConnected).connection_id == 77
    assert harness.command(AcceptConnection) == bytes.fromhex("20020000")


def test_a_device_that_gives_up_before_its_turn_costs_the_engine_nothing() -> None:
    harness = Harness(turn=Turn.LATER)
    harness.send(connect())
    harness.feed("peer_closed")
    assert harness.turn_has_come() == b""
    assert harness.connection.is_closed
    assert harness.events == []


def test_the_turn_comes_in_time_or_never() -> None:
    harness = Harness(turn=Turn.LATER, connect_timeout_ms=10_000)
    harness.send(connect(level=5))
    assert harness.pass_ms(9_999) == b""
    answer = harness.pass_ms(1)
    assert (answer[0], answer[3]) == (0x20, 0x89)
    assert harness.counters.connections_refused == {0x89: 1}
    assert harness.turn_has_come() == b""
    assert harness.events == []


def test_a_turn_that_comes_together_with_the_end_of_the_time_is_too_late() -> None:
    harness = Harness(turn=Turn.LATER, login=None, connect_timeout_ms=10_000)
    harness.send(connect(level=5))
    harness.now_ms += 10_000
    assert harness.turn_has_come()[3] == 0x89
    assert harness.events == []


def test_when_too_many_wait_connect_is_refused() -> None:
    assert Harness(turn=Turn.NEVER).send(connect(level=5))[3] == 0x89
    old = Harness(turn=Turn.NEVER)
    assert old.send(connect()) == bytes.fromhex("20020003")
    assert old.connection.is_closed
    assert old.counters.connections_refused == {0x89: 1}


def test_a_partition_that_is_lost_meanwhile_ends_the_waiting() -> None:
    harness = Harness(turn=Turn.LATER)
    harness.send(connect())
    harness.close("the gateway lost the partition", ReasonCode.SERVER_BUSY)
    assert harness.settle() == bytes.fromhex("20020003")
    assert harness.turn_has_come() == b""
    assert harness.events == []


def test_a_connect_that_waited_for_long_is_late_for_the_engine() -> None:
    """The gateway does not register it above a newer connection: the device may have connected elsewhere since."""
    harness = Harness(turn=Turn.LATER)
    harness.send(connect(flags=0x00))
    harness.now_ms += 1_001
    harness.turn_has_come()
    assert harness.command(CloseConnection, reason_code=0x89, newest_connection_id=1 << 60) == bytes.fromhex("20020003")
