"""trials/faults/devices/talking_session.py: what a device asks for and gets, on which the account depends."""

import pytest

from tests.unit.sinks.mqtt.mqtt_bytes import body_start, publish
from trials.faults.account.facts import DeviceFacts
from trials.faults.devices.device_session import PUBLISH, PUBREL
from trials.faults.devices.talking_session import SUBACK, UNSUBACK, TalkingSession
from trials.faults.plan.characters import Character, Keeping
from trials.faults.plan.talk import Asked

ROOM = Asked(topic_filter="talk/3/+", qos=2)
SUBSCRIBE_ROOM = b"\x82\x0e\x00%c\x00\x00\x08talk/3/+\x02"
UNSUBSCRIBE_ROOM = b"\xa2\x0d\x00%c\x00\x00\x08talk/3/+"
QOS_1, QOS_2, DUP = 2, 4, 8


@pytest.fixture
def session() -> TalkingSession:
    character = Character(client_id="d", keeping=Keeping.KEPT, level=5, expiry_s=None, will_delay_s=0, patience_s=5.0)
    return TalkingSession(facts=DeviceFacts(character=character))


def answer(session: TalkingSession, kind: int, packet_id: int, code: int = 0) -> bytes:
    return session.receive(kind, 0, b"\x00%c\x00%c" % (packet_id, code), 50.0)


def message(session: TalkingSession, payload: bytes, flags: int, packet_id: int | None = 5) -> bytes:
    packet = publish("talk/3/1", payload, first_byte=0x30 | flags, packet_id=packet_id, v5=b"")
    return session.receive(PUBLISH, flags, packet[body_start(packet) :], 51.0)


def test_a_subscription_is_asked_for_until_it_is_answered(session: TalkingSession) -> None:
    assert session.change(ROOM) == SUBSCRIBE_ROOM % 1
    assert session.ask() == b""
    assert not session.is_idle
    assert session.resume() == SUBSCRIBE_ROOM % 2
    assert answer(session, SUBACK, 2, code=2) == b""
    (period,) = session.facts.periods
    assert (period.granted_s, period.leaving_s) == (50.0, float("inf"))
    assert session.is_idle
    assert session.facts.oddities == []


def test_it_is_given_up_until_that_is_answered(session: TalkingSession) -> None:
    session.change(ROOM)
    assert session.change(ROOM) == b"", "while the answer is missing"
    answer(session, SUBACK, 1, code=2)
    assert session.change(ROOM) == UNSUBSCRIBE_ROOM % 2
    (period,) = session.facts.periods
    left_s = period.leaving_s
    assert session.resume() == UNSUBSCRIBE_ROOM % 3
    answer(session, UNSUBACK, 3)
    assert (period.leaving_s, period.ended_s) == (left_s, 50.0)
    assert session.is_idle


def test_another_session_asks_for_everything_anew(session: TalkingSession) -> None:
    session.change(ROOM)
    answer(session, SUBACK, 1, code=2)
    session.forget()
    assert session.resume() == SUBSCRIBE_ROOM % 2
    assert [period.epoch for period in session.facts.periods] == [0, 1]


def test_other_answers_are_odd(session: TalkingSession) -> None:
    session.change(ROOM)
    answer(session, SUBACK, 7, code=2)
    answer(session, SUBACK, 1, code=1)
    assert len(session.facts.oddities) == 2


def test_routed_messages_are_told_from_repetitions(session: TalkingSession) -> None:
    assert message(session, b"up/a/0/1", 0, packet_id=None) == b""
    assert message(session, b"up/a/1/2", QOS_1) == message(session, b"up/a/1/2", QOS_1 | DUP) == b"\x40\x02\x00\x05"
    assert message(session, b"up/a/2/3", QOS_2) == message(session, b"up/a/2/3", QOS_2 | DUP) == b"\x50\x02\x00\x05"
    session.receive(PUBREL, 2, b"\x00\x05", 52.0)
    message(session, b"up/a/2/3", QOS_2 | DUP)
    assert [arrival.is_new for arrival in session.facts.routed] == [True, True, False, True, False, True]
    assert (session.facts.oddities, session.facts.taken, session.facts.handed) == ([], {}, {})
