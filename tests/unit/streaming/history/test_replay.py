"""A row of `dead_letters` becomes the original message with its history; copies are recognisable."""

import base64
from typing import Any

import msgspec
import pytest

from state.dead_letters.dead_letter import with_death
from state.events import MessageReturned
from state.model import Message, Outcome, PublishProperties, QoS
from state.records.dead_letters import REPLAY_OF, REPLAYS, carried_headers, death_headers
from state.records.events import decode_events
from state.records.ledger import LedgerRow
from state.records.messages import format_message, parse_message
from state.records.record import Header
from streaming.config.settings import Settings
from streaming.history.errors import BadQuestion
from streaming.history.replay import (
    ReplayCount,
    ReplayLetter,
    ReplayOptions,
    parse_rate,
    returned_event,
    send_in_portions,
    to_letter,
)

MESSAGE = Message(
    message_id="m-1",
    topic="cmd/run",
    payload=b"\x00\xff",
    qos=QoS.EXACTLY_ONCE,
    priority=7,
    properties=PublishProperties(content_type="text/plain", user_properties=(("k", "v"),)),
    headers=(("tenant", b"a"),),
)
OPTIONS = ReplayOptions(where=None)


def dead() -> Message:
    return with_death(MESSAGE, queue="c1", reason=Outcome.EXPIRED, time_ms=5, exchange="dead-letters")


def document(*more: Header, replays: int = 0) -> dict[str, Any]:
    letter = dead()
    assert letter.history is not None
    headers = [*format_message(letter), *carried_headers(letter.headers), *death_headers(letter.history), *more]
    return {
        "dead_letter_id": "d1",
        "client_id": "c1",
        "message_id": "m-1",
        "payload": base64.b64encode(MESSAGE.payload).decode(),
        "headers": [{"key": header.key, "value": base64.b64encode(header.value or b"").decode()} for header in headers],
        "replays": replays,
    }


def sent(letter: ReplayLetter, generation: str = "") -> MessageReturned:
    (event,) = decode_events(returned_event(letter, generation))
    assert isinstance(event, MessageReturned)
    return event


def test_the_message_is_the_same_with_its_history_and_without_time_to_live() -> None:
    letter = to_letter(document(Header("x-detail", b"late")), OPTIONS)
    assert letter is not None
    message = sent(letter).message
    assert (message.message_id, message.topic, message.payload, message.qos) == ("m-1", "cmd/run", b"\x00\xff", QoS.EXACTLY_ONCE)
    assert (message.priority, message.properties, message.expires_at_ms) == (7, MESSAGE.properties, None)
    assert message.history == dead().history
    assert message.headers == (("tenant", b"a"), (REPLAY_OF, b"d1"), (REPLAYS, b"1"))


def test_a_message_that_dies_again_has_its_number_of_replays() -> None:
    before = (Header(REPLAY_OF, b"d0"), Header(REPLAYS, b"1"))
    letter = to_letter(document(*before, replays=1), OPTIONS)
    assert letter is not None
    assert dict(letter.message.headers)[REPLAYS] == b"2"
    assert dict(letter.message.headers)[REPLAY_OF] == b"d1"


def test_a_repeated_replay_is_recognised_unless_it_is_requested() -> None:
    letter = to_letter(document(), OPTIONS)
    assert letter is not None
    assert sent(letter).return_id == sent(letter).return_id
    assert sent(letter).return_id != sent(letter, "again").return_id


def test_a_replay_may_go_to_another_client() -> None:
    letter = to_letter(document(), ReplayOptions(where=None, to="c2"))
    assert letter is not None
    assert letter.client_id == "c2"


def test_a_dead_letter_that_was_no_message_is_not_replayed() -> None:
    broken = document()
    broken["headers"] = [header for header in broken["headers"] if header["key"] != "mqtt-topic"]
    assert to_letter(broken, OPTIONS) is None


class FakeProducer:
    """Confirms everything; remembers topics and values in order."""

    def __init__(self) -> None:
        self.topics: list[str] = []
        self.values: list[bytes] = []

    def send(self, topic: str, *, key: bytes, value: bytes) -> "FakeProducer":
        self.topics.append(topic)
        self.values.append(value)
        return self

    def get(self, timeout: float) -> None:
        assert timeout > 0


def test_replays_enter_the_ledger_after_the_messages_are_confirmed() -> None:
    producer, count = FakeProducer(), ReplayCount()
    message, _ = parse_message([Header("mqtt-topic", b"t")], payload=b"", accepted_ms=0, default_message_id="m")
    found = iter([ReplayLetter(dead_letter_id=f"d{n}", client_id="c", message=message) for n in range(3)])
    seen: list[int] = []
    send_in_portions(producer, Settings(), OPTIONS, found, count, lambda now: seen.append(now.sent))
    assert producer.topics == ["inflight.events"] * 3 + ["inflight.ledger"] * 3
    assert (count.sent, seen) == (3, [3])


def test_the_ledger_says_who_has_sent_a_dead_letter_again() -> None:
    producer, count = FakeProducer(), ReplayCount()
    message, _ = parse_message([Header("mqtt-topic", b"t")], payload=b"", accepted_ms=0, default_message_id="m")
    found = iter([ReplayLetter(dead_letter_id="d", client_id="c", message=message)])
    options = ReplayOptions(where=None, by="anna on machine-1")
    send_in_portions(producer, Settings(), options, found, count, lambda now: None)
    (row,) = msgspec.json.decode(producer.values[-1], type=list[LedgerRow])
    assert row.detail == "d sent again to c by anna on machine-1"


@pytest.mark.parametrize(("text", "rate"), [("200/s", 200.0), ("200", 200.0), ("30/m", 0.5), ("3600/h", 1.0)])
def test_a_rate_is_messages_a_second(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "fast", "0/s", "-1", "5/x", "nan"])
def test_what_is_no_rate_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(BadQuestion, match="200/s"):
        parse_rate(text)
