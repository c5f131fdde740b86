"""sinks.mqtt.connection.connection, 9: which message a device may have died on is reported with the end of its connection."""

from collections.abc import Callable

import pytest

from state.commands import CloseConnection, OfferPublish, OpenFastPath
from state.events import ClientDisconnected, ConnectionLost
from state.model import MIN_FAST_PACKET_ID, Position, ReasonCode
from tests.unit.sinks.mqtt.connection.harness import Harness, ack, connected, send_publish

NORMAL, WITH_WILL, MALFORMED = b"\xe0\x00", b"\xe0\x01\x04", b"\xe0\x01\x81"


def close_the_socket(harness: Harness) -> None:
    harness.feed("peer_closed")


def fall_silent(harness: Harness) -> None:
    harness.pass_ms(15_000)


def break_the_protocol(harness: Harness) -> None:
    harness.send(b"\xf0\x00")


def is_taken_over(harness: Harness) -> None:
    harness.command(CloseConnection, reason_code=ReasonCode.SESSION_TAKEN_OVER, reason="elsewhere")


def is_stopped(harness: Harness) -> None:
    harness.close("it stops", ReasonCode.SERVER_SHUTTING_DOWN)


def is_closed_by_the_session(harness: Harness) -> None:
    harness.command(CloseConnection, reason_code=ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR, reason="stalled")


@pytest.mark.parametrize("end", [close_the_socket, fall_silent, break_the_protocol, is_taken_over])
def test_the_oldest_unanswered_message_is_reported(end: Callable[[Harness], None]) -> None:
    harness = connected()
    send_publish(harness, 6)
    send_publish(harness, 7)
    harness.send(ack(0x40, 6))
    end(harness)
    assert harness.last(ConnectionLost).unanswered == 7


@pytest.mark.parametrize("end", [is_stopped, is_closed_by_the_session])
def test_an_end_that_is_not_the_devices_reports_no_message(end: Callable[[Harness], None]) -> None:
    harness = connected()
    send_publish(harness, 6)
    end(harness)
    assert harness.last(ConnectionLost).unanswered == 0


@pytest.mark.parametrize("end", [close_the_socket, fall_silent])
def test_an_end_before_the_publish_was_written_reports_none(end: Callable[[Harness], None]) -> None:
    harness = connected(accept={"send_quota": 1})
    end(harness)
    assert harness.last(ConnectionLost).unanswered == 0


def test_a_takeover_of_a_device_that_owes_no_answer_is_not_reported() -> None:
    harness = connected()
    events = len(harness.events)
    is_taken_over(harness)
    assert len(harness.events) == events


def test_a_device_that_does_not_read_need_not_have_got_it() -> None:
    harness = connected()
    send_publish(harness, 6)
    harness.feed("writing_blocked", True)
    close_the_socket(harness)
    assert harness.last(ConnectionLost).unanswered == 0


@pytest.mark.parametrize(("packet", "unanswered"), [(NORMAL, 0), (WITH_WILL, 0), (MALFORMED, 6)])
def test_a_disconnect_reports_one_if_it_names_an_error(packet: bytes, unanswered: int) -> None:
    harness = connected(5)
    send_publish(harness, 6)
    harness.send(packet)
    assert harness.last(ClientDisconnected).unanswered == unanswered


@pytest.mark.parametrize("is_confirmed", [False, True])
def test_a_message_of_the_fast_path_is_reported_once_written(is_confirmed: bool) -> None:
    harness = connected()
    harness.command(OpenFastPath, after=Position(0, 1), is_snapshot=True, subscriptions=())
    harness.confirming = is_confirmed
    headers = (("mqtt-topic", b"t"), ("mqtt-qos", b"1"))
    given = OfferPublish(connection_id=77, position=Position(0, 2), previous=1, timestamp_ms=0, headers=headers)
    harness.feed("offer", [given], False, 0)
    harness.settle()
    close_the_socket(harness)
    assert harness.last(ConnectionLost).unanswered == (MIN_FAST_PACKET_ID if is_confirmed else 0)
