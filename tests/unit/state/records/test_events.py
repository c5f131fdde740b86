"""state.records.events: what only the record of an event can say. tests/properties/test_codec.py has the codec."""

import pytest

from state.errors import UnreadableRecord
from state.events import ConnectionLost, LoggedEvent, MessageReturned, PublishReceived
from state.model import Message
from state.records.events import completed, decode_event
from state.records.record import VERSION_BYTE

MESSAGE = Message(message_id="m", topic="t", payload=b"p", accepted_ms=0)
PUBLICATION = PublishReceived(connection_id=1, packet_id=7, topic="t", payload=b"p")


@pytest.mark.parametrize(
    ("event", "expected"),
    [
        (PUBLICATION, PublishReceived(connection_id=1, packet_id=7, topic="t", payload=b"p", publication_id="events-2-9")),
        (
            MessageReturned(message=MESSAGE),
            MessageReturned(message=Message(message_id="m", topic="t", payload=b"p", accepted_ms=5)),
        ),
        (ConnectionLost(connection_id=1, reason="r"), ConnectionLost(connection_id=1, reason="r")),
    ],
)
def test_an_event_is_completed_by_what_its_record_says(event: LoggedEvent, expected: LoggedEvent) -> None:
    assert completed(event, topic="events", partition=2, offset=9, accepted_ms=5) == expected


def test_bytes_that_are_no_event_are_an_unreadable_record() -> None:
    with pytest.raises(UnreadableRecord, match="not an event of a gateway"):
        decode_event(VERSION_BYTE + b"\xc1")
