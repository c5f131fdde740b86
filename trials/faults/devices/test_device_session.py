"""trials/faults/devices/device_session.py: a client's half of the protocol, on which the account depends."""

import pytest

from tests.unit.sinks.mqtt.mqtt_bytes import body_start, publish
from trials.faults.account.facts import DeviceFacts, Publication
from trials.faults.devices.device import says_nothing_of_the_session
from trials.faults.devices.device_session import CONNACK, PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, DeviceSession
from trials.faults.plan.characters import Character, Keeping

QOS_1, QOS_2, DUP = 2, 4, 8
DISCONNECT = 14
ID_5 = b"\x00\x05"


@pytest.fixture(params=[4, 5], ids=["MQTT 3.1.1", "MQTT 5"])
def session(request: pytest.FixtureRequest) -> DeviceSession:
    character = Character(client_id="d", keeping=Keeping.KEPT, level=request.param, expiry_s=None, will_delay_s=0, patience_s=5.0)
    return DeviceSession(facts=DeviceFacts(character=character))


def message(session: DeviceSession, payload: bytes, *, flags: int, packet_id: int = 5) -> bytes:
    """The PUBLISH arrives; returns the answer."""
    v5 = b"" if session.facts.character.level == 5 else None
    packet = publish("cmd/t", payload, first_byte=0x30 | flags, packet_id=packet_id, v5=v5)
    return session.receive(PUBLISH, flags, packet[body_start(packet) :], 1.0)


def test_qos_2_is_taken_once_and_handed_on_once(session: DeviceSession) -> None:
    """[MQTT-4.3.3-10]"""
    for flags in (QOS_2, QOS_2 | DUP):
        assert message(session, b"m", flags=flags) == b"\x50\x02" + ID_5
    for _ in range(2):
        assert session.receive(PUBREL, 2, ID_5, 2.0) == b"\x70\x02" + ID_5
    assert (session.facts.taken[b"m"], session.facts.handed[b"m"]) == (1, 1)
    assert session.facts.oddities == []
    assert session.is_idle


def test_a_second_handshake_is_counted(session: DeviceSession) -> None:
    message(session, b"m", flags=QOS_2)
    session.receive(PUBREL, 2, ID_5, 2.0)
    message(session, b"m", flags=QOS_2 | DUP)
    assert session.facts.taken[b"m"] == 2
    assert [what for what, _ in session.facts.oddities] == ["PUBLISH after its PUBREL [MQTT-4.3.3-6]"]


@pytest.mark.parametrize(
    ("flags", "packet_id", "expected"),
    [(QOS_1, 5, "without DUP"), (QOS_1 | DUP, 6, "under id 6, first 5")],
    ids=["no DUP", "another id"],
)
def test_a_wrong_repetition_is_odd(session: DeviceSession, flags: int, packet_id: int, expected: str) -> None:
    message(session, b"m", flags=QOS_1)
    assert message(session, b"m", flags=flags, packet_id=packet_id)[:2] == b"\x40\x02"
    ((what, payload),) = session.facts.oddities
    assert expected in what
    assert payload == b"m"
    assert session.facts.order[1] == [b"m"]


def test_an_id_that_is_in_use_is_odd(session: DeviceSession) -> None:
    message(session, b"one", flags=QOS_2)
    message(session, b"other", flags=QOS_2)
    assert [payload for _, payload in session.facts.oddities] == [b"other"]


def test_own_publications_are_sent_again_in_order_until_they_are_answered(session: DeviceSession) -> None:
    """[MQTT-4.4.0-1] [MQTT-4.6.0-1]"""
    publications = [Publication(payload=b"%d" % number, qos=qos, sent_s=0.0) for number, qos in enumerate((1, 2, 2, 1))]
    packets = [session.publish(publication) for publication in publications]
    assert session.receive(PUBACK, 0, b"\x00\x01", 1.0) == b""
    assert session.receive(PUBREC, 0, b"\x00\x02", 1.0) == b"\x62\x02\x00\x02"
    again = [bytes((packet[0] | DUP,)) + packet[1:] for packet in packets]
    assert session.resume() == b"\x62\x02\x00\x02" + again[2] + again[3]
    assert session.receive(PUBCOMP, 0, b"\x00\x02", 1.0) == b""
    assert session.resume() == again[2] + again[3]
    assert [publication.answered for publication in publications] == [True, True, False, False]
    assert [publication.transmissions for publication in publications] == [1, 1, 3, 3]
    session.forget()
    assert session.is_idle
    assert [publication.given_up for publication in publications] == [False, False, True, True]


def test_an_answer_of_the_wrong_kind_and_a_foreign_packet_are_odd(session: DeviceSession) -> None:
    session.publish(Publication(payload=b"m", qos=2, sent_s=0.0))
    session.receive(PUBACK, 0, b"\x00\x01", 1.0)
    session.receive(CONNACK, 0, b"\x00\x00", 1.0)
    assert len(session.facts.oddities) == 2


@pytest.mark.parametrize(
    ("kind", "body", "says_nothing"),
    [
        (DISCONNECT, b"\x89", True),
        (DISCONNECT, b"\x89\x00", True),
        (DISCONNECT, b"\x8b", False),
        (DISCONNECT, b"", False),
        (PUBACK, b"\x89", False),
    ],
)
def test_the_goodbye_of_a_stalled_gateway_says_nothing(kind: int, body: bytes, says_nothing: bool) -> None:
    assert says_nothing_of_the_session(kind, body) == says_nothing
