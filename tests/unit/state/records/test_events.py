"""state.records.events: what a record adds to its event, and records of several. tests/properties/test_codec.py has the codec."""

import msgspec
import pytest

from state.errors import UnreadableRecord
from state.events import (
    Claim,
    ClientConnected,
    ConnectionLost,
    DeadlineReached,
    ExpiredSession,
    FastSent,
    LoggedEvent,
    MessageReturned,
    PubAckReceived,
    PubCompReceived,
    PublishAccepted,
    PublishReceived,
    PubRecReceived,
    PubRelReceived,
)
from state.model import Message, Position, QoS
from state.records.events import (
    completed,
    decode_events,
    encode_event,
    encode_puback,
    encode_pubcomp,
    encode_pubrec,
    encode_pubrel,
    happened_at,
    joined,
)
from state.records.record import VERSION_BYTE

MESSAGE = Message(message_id="m", topic="t", payload=b"p", accepted_ms=0)
PUBLICATION = PublishReceived(connection_id=1, packet_id=7, topic="t", payload=b"p")
ACCEPTED = PublishAccepted(connection_id=1, packet_id=7, content=b"8 bytes.", publication_id="c:1:1")
CONNECTED = ClientConnected(connection_id=9, commands_partition=1, claim=Claim.NEW)
SESSION = ExpiredSession(connection_id=7, left_ms=3, interval_s=5)
EXPIRED = msgspec.structs.replace(CONNECTED, expired=SESSION)


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (PUBLICATION, PublishReceived(connection_id=1, packet_id=7, topic="t", payload=b"p", publication_id="events-2-9")),
        (ACCEPTED, msgspec.structs.replace(ACCEPTED, since_ms=5)),
        (msgspec.structs.replace(ACCEPTED, since_ms=2), msgspec.structs.replace(ACCEPTED, since_ms=2)),
        (
            MessageReturned(message=MESSAGE),
            MessageReturned(message=Message(message_id="m", topic="t", payload=b"p", accepted_ms=5)),
        ),
        (ConnectionLost(connection_id=1, reason="r"), ConnectionLost(connection_id=1, reason="r")),
        (PubAckReceived(connection_id=1, packet_id=2), PubAckReceived(connection_id=1, packet_id=2, logged_ms=5)),
        (PubRecReceived(connection_id=1, packet_id=2), PubRecReceived(connection_id=1, packet_id=2, logged_ms=5)),
        (PubCompReceived(connection_id=1, packet_id=2), PubCompReceived(connection_id=1, packet_id=2, logged_ms=5)),
        (PubRelReceived(connection_id=1, packet_id=2), PubRelReceived(connection_id=1, packet_id=2, logged_ms=5)),
        (CONNECTED, msgspec.structs.replace(CONNECTED, logged_ms=5)),
        (EXPIRED, msgspec.structs.replace(CONNECTED, expired=msgspec.structs.replace(SESSION, claimed_ms=6), logged_ms=5)),
    ],
)
def test_an_event_is_completed_by_what_its_record_says(event: LoggedEvent, expected: LoggedEvent) -> None:
    assert completed(event, topic="events", partition=2, offset=9, accepted_ms=5, timestamp_ms=6) == expected


@pytest.mark.parametrize(("kafka_ms", "accepted_ms"), [(3, 3), (0, 5), (-1, 5), (9, 5)])
def test_what_a_gateway_sent_was_accepted_when_kafka_took_it(kafka_ms: int, accepted_ms: int) -> None:
    def sent(accepted_ms: int, expires_at_ms: int | None) -> FastSent:
        expiration_ms = None if expires_at_ms is None else 10
        message = msgspec.structs.replace(
            MESSAGE, accepted_ms=accepted_ms, expiration_ms=expiration_ms, expires_at_ms=expires_at_ms
        )
        return FastSent(
            connection_id=1, position=Position(0, 7), previous=6, packet_id=40_000, qos=QoS(1), message=message, sent_ms=4
        )

    for expires in (False, True):
        event = sent(kafka_ms, kafka_ms + 10 if expires else None)
        expected = msgspec.structs.replace(sent(accepted_ms, accepted_ms + 10 if expires else None), logged_ms=5)
        assert completed(event, topic="events", partition=2, offset=9, accepted_ms=5) == expected


def test_bytes_that_are_no_event_are_an_unreadable_record() -> None:
    with pytest.raises(UnreadableRecord, match="not an event of a gateway"):
        decode_events(VERSION_BYTE + b"\xc1")


ACKNOWLEDGEMENTS = (
    PubAckReceived(connection_id=1, packet_id=2, reason_code=0x97, reason="full"),
    PubRecReceived(connection_id=1, packet_id=3, pubrel_sent=True),
    PubCompReceived(connection_id=1, packet_id=3),
    PubRelReceived(connection_id=1, packet_id=1),
)


@pytest.mark.parametrize("count", [1, 2, 4, 20])
def test_acknowledgements_share_a_record_in_their_order(count: int) -> None:
    events = (ACKNOWLEDGEMENTS * 5)[:count]
    assert decode_events(joined([encode_event(event) for event in events])) == events


@pytest.mark.parametrize(
    "data",
    [
        pytest.param("95040102cc97a466756c6c 9605010300c3a0", id="as first written"),
        pytest.param("96040102cc97a466756c6c00 9705010300c3a000", id="with room for the time"),
    ],
)
def test_version_2_is_read_as_when_it_was_written(data: str) -> None:
    """Records of it stay in Kafka: by rule 4 of state/records/record.py no later version may read them in another way."""
    written = bytes.fromhex(f"02c1696e666c69676874 92 {data}")
    assert decode_events(written) == ACKNOWLEDGEMENTS[:2]


def test_version_2_is_written_with_room_for_the_time() -> None:
    written = bytes.fromhex("02c1696e666c69676874 92 96040102cc97a466756c6c00 9705010300c3a000")
    assert joined([encode_event(event) for event in ACKNOWLEDGEMENTS[:2]]) == written


def test_version_3_is_what_it_was_when_it_was_first_written() -> None:
    """An engine that does not know them waits for one that does. It would take the claim for a wrong one, and call nobody."""
    for event, data in (
        (DeadlineReached(), "9116"),
        (EXPIRED, "dc0010 01 09 01 04 c3 00 cdffff c0 c0 a0 00 a0 01 9407030500 00 c0"),
    ):
        written = bytes.fromhex(f"03c1696e666c69676874 {data}")
        assert decode_events(written) == (event,)
        assert encode_event(event) == written


FAST_SENT = FastSent(
    connection_id=1, position=Position(0, 5), previous=4, packet_id=32_768, qos=QoS.AT_LEAST_ONCE, message=MESSAGE, sent_ms=7
)


def test_messages_taken_at_once_share_a_record_with_acknowledgements() -> None:
    events = (*ACKNOWLEDGEMENTS, FAST_SENT, msgspec.structs.replace(FAST_SENT, packet_id=32_769), *ACKNOWLEDGEMENTS)
    assert decode_events(joined([encode_event(event) for event in events], has_fast_sent=True)) == events


def test_version_4_is_what_it_was_when_it_was_first_written() -> None:
    """An engine that does not know it waits for one that does."""
    sent = "9b 0c 01 920005 04 cd8000 01 9da16da174c4017001c20000c0c095c0c0c0c09090c0c0 07 c2 00 c3"
    written = bytes.fromhex(f"04c1696e666c69676874 92 {sent} 96040102 00a000")
    assert joined([encode_event(FAST_SENT), encode_puback(1, 2)], has_fast_sent=True) == written


def test_version_5_is_what_it_was_when_it_was_first_written() -> None:
    """An engine that does not know it waits for one that does."""
    written = bytes.fromhex("05c1696e666c69676874 0000018bcfe56800 01 96040102 00a000")
    assert happened_at(encode_puback(1, 2), 1_700_000_000_000) == written
    assert decode_events(written) == (PubAckReceived(connection_id=1, packet_id=2, logged_ms=1_700_000_000_000),)


def test_acknowledgements_have_the_time_at_which_they_came() -> None:
    several = joined([encode_event(event) for event in (FAST_SENT, *ACKNOWLEDGEMENTS)], has_fast_sent=True)
    sent, *answers = decode_events(happened_at(several, 4))
    assert sent == FAST_SENT
    assert answers == [msgspec.structs.replace(event, logged_ms=4) for event in ACKNOWLEDGEMENTS]


@pytest.mark.parametrize(("came_ms", "logged_ms"), [(4, 4), (5, 5), (6, 5), (0, 5)])
def test_no_acknowledgement_came_after_its_record(came_ms: int, logged_ms: int) -> None:
    for event in ACKNOWLEDGEMENTS:
        came, logged = (msgspec.structs.replace(event, logged_ms=at_ms) for at_ms in (came_ms, logged_ms))
        assert completed(came, topic="events", partition=2, offset=9, accepted_ms=5) == logged


@pytest.mark.parametrize("inner", [b"", happened_at(encode_puback(1, 2), 4)])
def test_a_time_without_events_of_another_version_is_unreadable(inner: bytes) -> None:
    with pytest.raises(UnreadableRecord):
        decode_events(happened_at(inner, 4))
    with pytest.raises(UnreadableRecord):
        decode_events(happened_at(b"", 4)[:-2])


def test_a_connect_of_an_earlier_version_names_no_expired_session() -> None:
    assert decode_events(bytes.fromhex("01 9d 01 09 01 04 c3 00 cdffff c0 c0 a0 00 a0 01")) == (CONNECTED,)
    assert encode_event(CONNECTED)[:1] == VERSION_BYTE


@pytest.mark.parametrize("other", [PUBLICATION, ConnectionLost(connection_id=1), MessageReturned(message=MESSAGE)])
@pytest.mark.parametrize("has_fast_sent", [False, True])
def test_nothing_else_shares_a_record(other: LoggedEvent, has_fast_sent: bool) -> None:
    """An id that is made of a position would be there twice."""
    with pytest.raises(UnreadableRecord, match="not an event of a gateway"):
        decode_events(joined([encode_event(ACKNOWLEDGEMENTS[0]), encode_event(other)], has_fast_sent=has_fast_sent))


def test_a_record_with_no_event_at_all_is_unreadable() -> None:
    with pytest.raises(UnreadableRecord, match="not an event of a gateway"):
        decode_events(joined([]))


@pytest.mark.parametrize("packet_id", [1, 200, 65_535])
@pytest.mark.parametrize("connection_id", [1, 1 << 60])
def test_what_is_encoded_without_its_event_is_the_same_bytes(connection_id: int, packet_id: int) -> None:
    ids = {"connection_id": connection_id, "packet_id": packet_id}
    assert encode_puback(connection_id, packet_id) == encode_event(PubAckReceived(**ids))
    assert encode_puback(connection_id, packet_id, 0x10, "nobody") == encode_event(
        PubAckReceived(**ids, reason_code=0x10, reason="nobody")
    )
    for sent in (True, False):
        assert encode_pubrec(connection_id, packet_id, pubrel_sent=sent) == encode_event(PubRecReceived(**ids, pubrel_sent=sent))
    assert encode_pubrec(connection_id, packet_id, 0x80, "no") == encode_event(
        PubRecReceived(**ids, reason_code=0x80, reason="no")
    )
    assert encode_pubcomp(connection_id, packet_id, 0x92) == encode_event(PubCompReceived(**ids, reason_code=0x92))
    assert encode_pubrel(connection_id, packet_id) == encode_event(PubRelReceived(**ids))
