"""A device answers in a replay, rule by rule (streaming/what_if/device.py)."""

import pytest

from state.events import PubAckReceived, PubCompReceived, PubRecReceived
from streaming.what_if.device import DeviceModel
from streaming.what_if.session_run import Contact, Sent

ACKNOWLEDGED = PubAckReceived(connection_id=1, packet_id=1)
REFUSED = PubAckReceived(connection_id=1, packet_id=1, reason_code=0x97)


@pytest.fixture
def device() -> DeviceModel:
    """Answers a after 10 ms on connection 1 and refuses b after 30 ms there. It gets c there and never answers."""
    made = DeviceModel()
    made.add(Contact("a", 1, 0), ACKNOWLEDGED, 10)
    made.add(Contact("b", 1, 0), REFUSED, 30)
    made.add(Contact("d", 1, 0), PubCompReceived(connection_id=1, packet_id=2), 30)
    made.complete([Contact(name, 1, 0) for name in "abcd"] + [Contact("a", 2, 0)])
    return made


def replies(device: DeviceModel, message_id: str, connection_id: int, *, refusals: int = 0, qos: int = 1) -> list[object]:
    found = device.replies(Sent(Contact(message_id, connection_id, refusals), qos))
    return [(type(timed.answer), timed.answer.reason_code, timed.after_ms) for timed in found]


def test_it_answers_as_in_the_log(device: DeviceModel) -> None:
    assert replies(device, "a", 1) == [(PubAckReceived, 0, 10)]
    assert replies(device, "b", 1) == [(PubAckReceived, 0x97, 30)]


def test_it_does_not_answer_where_it_did_not(device: DeviceModel) -> None:
    assert replies(device, "a", 2) == []


def test_on_another_connection_it_answers_as_it_did_elsewhere(device: DeviceModel) -> None:
    assert replies(device, "b", 3) == [(PubAckReceived, 0x97, 30)]


def test_it_never_answers_what_it_never_answered(device: DeviceModel) -> None:
    assert replies(device, "c", 3) == []


def test_it_answers_a_message_of_its_own_after_the_usual_time(device: DeviceModel) -> None:
    assert replies(device, "new", 3) == [(PubAckReceived, 0, 30)]
    assert replies(device, "b", 1, refusals=1) == [(PubAckReceived, 0, 30)]
    assert replies(DeviceModel(), "new", 3) == []


def test_another_packet_of_the_handshake_has_its_own_answer(device: DeviceModel) -> None:
    assert replies(device, "d", 3, qos=2) == [(PubRecReceived, 0, 30), (PubCompReceived, 0, 30)]
    assert replies(device, "d", 3, qos=0) == [(PubCompReceived, 0, 30)]
