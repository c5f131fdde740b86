"""sinks.mqtt.connection.connection, 8: a gateway that is drained lets its connections go."""

import pytest

from sinks.mqtt.connection.phases import CloseReason, Phase
from sinks.mqtt.limits.connect_queue import Turn
from state.commands import AcceptConnection, CloseConnection, OfferPublish
from state.events import ConnectionLost, PubAckReceived
from state.model import Position, ReasonCode
from tests.unit.sinks.mqtt.connection.harness import PINGREQ, Harness, ack, connected, send_publish, written
from tests.unit.sinks.mqtt.mqtt_bytes import connect, publish

GOODBYE = bytes.fromhex("e0018b")


def close_gracefully(harness: Harness) -> bytes:
    harness.feed("close_gracefully", CloseReason("it stops", "gateway", ReasonCode.SERVER_SHUTTING_DOWN), 30_000)
    return harness.settle()


def confirm_all(harness: Harness) -> bytes:
    for append in list(harness.waiting):
        harness.confirm(append)
    return harness.settle()


@pytest.mark.parametrize(("level", "goodbye"), [(4, b""), (5, GOODBYE)])
def test_disconnect_is_sent_when_the_end_is_in_the_log(level: int, goodbye: bytes) -> None:
    harness = connected(level)
    harness.confirming = False
    assert close_gracefully(harness) == b""
    assert not harness.connection.is_closed
    assert harness.last(ConnectionLost) == ConnectionLost(connection_id=77, reason="it stops", reconnect_grace_ms=30_000)
    assert confirm_all(harness) == goodbye
    assert harness.connection.is_closed
    assert harness.counters.connections_lost["gateway"] == 1
    assert harness.counters.connections_open == 0


def test_earlier_publications_are_answered_before_disconnect() -> None:
    harness = connected(5)
    harness.confirming = False
    harness.send(publish("up", b"1", first_byte=0x32, packet_id=9, v5=b""))
    close_gracefully(harness)
    uplink, farewell = harness.waiting
    harness.confirm(farewell)
    assert (harness.settle(), harness.connection.is_closed) == (b"", False)
    harness.confirm(uplink)
    answers = harness.settle()
    assert answers[:1] == b"\x40"
    assert answers.endswith(GOODBYE)


def test_later_packets_are_ignored_and_keep_alive_is_suspended() -> None:
    harness = connected(5, keep_alive_s=10)
    send_publish(harness, 1)
    harness.confirming = False
    close_gracefully(harness)
    assert harness.send(ack(0x40, 1), PINGREQ) == b""
    assert harness.pass_ms(60_000) == b""
    assert not any(isinstance(event, PubAckReceived) for event in harness.events)
    assert confirm_all(harness) == GOODBYE


def test_buffered_packets_are_ignored() -> None:
    harness = connected(5, max_unconfirmed_appends=1)
    harness.confirming = False
    first, second = (publish("up", payload, first_byte=0x32, packet_id=1, v5=b"") for payload in (b"1", b"2"))
    harness.send(first, second)
    close_gracefully(harness)
    assert confirm_all(harness).endswith(GOODBYE)
    assert [append.value for append in harness.uplink] == [b"1"]


def test_commands_are_still_written_and_offers_are_ignored() -> None:
    harness = connected(4)
    harness.confirming = False
    close_gracefully(harness)
    assert send_publish(harness, 1) == written(1)
    offer = OfferPublish(connection_id=77, position=Position(0, 1), previous=0, timestamp_ms=0)
    harness.feed("offer", [offer], False, 0)
    assert harness.counters.offers_ignored == 1


def test_the_end_is_recorded_once_whatever_follows() -> None:
    def shut(harness: Harness) -> None:
        harness.close("at last", ReasonCode.SERVER_SHUTTING_DOWN)

    def peer_closes(harness: Harness) -> None:
        harness.feed("peer_closed")

    def engine_closes(harness: Harness) -> None:
        harness.command(CloseConnection, reason_code=ReasonCode.SESSION_TAKEN_OVER, reason="elsewhere")

    def again(harness: Harness) -> None:
        close_gracefully(harness)

    def append_fails(harness: Harness) -> None:
        harness.confirm(harness.waiting[0], RuntimeError("no broker"))

    for what_happens in shut, peer_closes, engine_closes, again, append_fails:
        harness = connected(5)
        harness.confirming = False
        close_gracefully(harness)
        what_happens(harness)
        harness.settle()
        confirm_all(harness)
        assert harness.connection.is_closed, what_happens
        assert sum(isinstance(event, ConnectionLost) for event in harness.events) == 1, what_happens


def test_a_registered_connect_is_refused_when_its_end_is_in_the_log() -> None:
    harness = Harness()
    harness.send(connect(level=5, flags=0x00))
    harness.confirming = False
    assert close_gracefully(harness) == b""
    assert harness.last(ConnectionLost).reconnect_grace_ms == 30_000
    assert confirm_all(harness)[3] == ReasonCode.SERVER_UNAVAILABLE
    assert harness.connection.is_closed


def test_a_refusal_during_a_drain_leads_to_no_new_registration() -> None:
    harness = Harness()
    harness.send(connect(level=5, flags=0x00))  # its CONNECT was prompt
    harness.confirming = False
    close_gracefully(harness)
    events = len(harness.events)
    refused = harness.command(CloseConnection, reason_code=ReasonCode.SERVER_BUSY, reason="later", newest_connection_id=99)
    assert refused[3] == ReasonCode.SERVER_BUSY
    assert len(harness.events) == events


def test_an_acceptance_during_a_drain_is_answered() -> None:
    harness = Harness()
    harness.send(connect(level=5, flags=0x00))
    harness.confirming = False
    close_gracefully(harness)
    assert harness.command(AcceptConnection)[3] == 0
    assert confirm_all(harness) == GOODBYE


@pytest.mark.parametrize(("turn", "sent"), [(Turn.NOW, b""), (Turn.LATER, connect(level=5, flags=0x00))])
def test_an_unregistered_connection_is_closed_at_once(turn: Turn, sent: bytes) -> None:
    harness = Harness(turn=turn)
    harness.send(sent)
    harness.confirming = False
    refused = close_gracefully(harness)
    assert harness.connection.phase is Phase.CLOSED
    assert harness.events == []
    assert refused[3:4] == (bytes([ReasonCode.SERVER_UNAVAILABLE]) if sent else b"")


def test_a_closed_connection_records_no_second_end() -> None:
    harness = connected(5)
    harness.send(b"\xe0\x00")
    harness.events.clear()
    assert close_gracefully(harness) == b""
    assert harness.events == []
