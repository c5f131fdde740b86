"""Decodes arbitrary bytes to a value or UnreadableRecord: a foreign record never stops the query."""

from contextlib import suppress
from typing import Any, get_args, get_type_hints

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from state import commands, events
from state.commands import CommandBatch, SendPublish
from state.errors import UnreadableRecord
from state.events import ConnectionLost, PubAckReceived, PublishReceived, PubRelReceived
from state.model import NO_PROPERTIES, Position, PublishProperties, QoS, ReasonCode, Subscription, Will
from state.records.commands import decode_command_batch, encode_command_batch
from state.records.events import decode_events, encode_event, joined
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import SessionSettings
from tests.scenarios.scenario import CLIENT, Scenario, message, will

SETTINGS = SessionSettings()

text = st.text(max_size=20)
optional_text = st.none() | text
properties = st.builds(
    PublishProperties,
    payload_format=st.none() | st.integers(0, 1),
    content_type=optional_text,
    response_topic=optional_text,
    correlation_data=st.none() | st.binary(max_size=10),
    user_properties=st.lists(st.tuples(text, text), max_size=3).map(tuple),
) | st.just(NO_PROPERTIES)
positions = st.builds(Position, st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1))
fields: dict[str, st.SearchStrategy[Any]] = {
    "position": positions,
    "after": positions,
    "properties": properties,
    "qos": st.sampled_from(QoS),
    "will": st.none()
    | st.builds(Will, topic=text, payload=st.binary(max_size=10), qos=st.sampled_from(QoS), properties=properties),
    "packet_ids": st.lists(st.integers(0, 65_535), max_size=3).map(tuple),
    "awaiting_rel": st.lists(st.integers(0, 65_535), max_size=3).map(tuple),
    "message": st.builds(message, text, qos=st.integers(0, 2), properties=properties),
    "subscriptions": st.lists(st.builds(Subscription, topic_filter=text, qos=st.sampled_from(QoS)), max_size=3).map(tuple),
}


def values(union: Any) -> st.SearchStrategy[Any]:
    """Draws any member of a union of structs. Integers are those that msgpack can carry."""

    def member(kind: Any) -> st.SearchStrategy[Any]:
        own = {name: st.integers(0, 2**63 - 1) for name, hint in get_type_hints(kind).items() if hint in (int, ReasonCode)}
        own |= {name: st.none() | st.integers(0, 2**32) for name, hint in get_type_hints(kind).items() if hint == (int | None)}
        return st.builds(kind, **own, **{name: s for name, s in fields.items() if name in kind.__struct_fields__})

    return st.one_of([member(kind) for kind in get_args(union)])


def full_session() -> bytes:
    """A blob with something in every field."""
    s = Scenario(max_inflight=2, max_awaiting_rel=0).connect(version=5, will=will(properties=PublishProperties(content_type="c")))
    s.subscribe("x/#", 2, no_local=True).publish(1, "late").after(300).publish(2, "a").submit("r", explicit_id=True)
    s.puback(1, reason_code=0x97).submit("a", qos=2, properties=PublishProperties(user_properties=(("k", "v"),)))
    s.accept(3, "handed on").submit("b", expires_at_ms=s.now_ms + 60_000, headers=(("h", b"\xff"),)).submit(
        "c", priority=3
    ).submit("z", priority=1)
    return encode_session(s.session)


def fast_session() -> bytes:
    """The same for the fast path, while it closes."""
    s = (
        Scenario(max_inflight=1)
        .connect(capabilities=events.Capability.FAST_PATH)
        .submit("a", at=Position(0, 7), explicit_id=True)
    )
    return encode_session(s.fast_sent("b", 40_000, at=Position(0, 9), previous=7).submit("c", at=Position(0, 8)).session)


def decode_with_every_reader(data: bytes) -> None:
    """Decodes with every reader. Any exception but UnreadableRecord fails the test."""
    with suppress(UnreadableRecord):
        decode_events(data)
    with suppress(UnreadableRecord):
        decode_command_batch(data)
    with suppress(UnreadableRecord):
        decode_session(data, client_id=CLIENT, settings=SETTINGS)


@given(values(events.LoggedEvent))
def test_every_event_survives_its_codec(event: Any) -> None:
    assert decode_events(encode_event(event)) == (event,)


@given(text, st.lists(values(commands.GatewayCommand), max_size=4).map(tuple))
def test_every_batch_of_commands_survives_its_codec(client_id: str, batch: Any) -> None:
    value = CommandBatch(client_id=client_id, commands=batch)
    assert decode_command_batch(encode_command_batch(value)) == value


DEEP = b"\x01" + b"\x91" * 20_000
SEVERAL = b"\x02\xc1inflight"
HUGE = b"\x01\x93\x07\xdd\xff\xff\xff\xff"


@given(st.binary(max_size=200) | st.tuples(st.sampled_from([b"\x01", SEVERAL]), st.binary(max_size=200)).map(b"".join))
@example(b"")
@example(SEVERAL + DEEP[1:])
@example(SEVERAL + b"\xdd\xff\xff\xff\xff")
@example(DEEP)
@example(HUGE)
@example(b"\x01\x92" + b"\x90" + b"\x91" * 20_000)
def test_arbitrary_bytes_are_a_value_or_an_unreadable_record(data: bytes) -> None:
    decode_with_every_reader(data)


@given(st.data())
def test_a_damaged_record_is_a_value_or_an_unreadable_record(data: st.DataObject) -> None:
    """The damaged record is a good record with some bytes changed, cut off or inserted."""
    good = data.draw(st.sampled_from(GOOD))
    damaged = bytearray(good)
    for _ in range(data.draw(st.integers(1, 3))):
        position = data.draw(st.integers(0, len(damaged) - 1))
        match data.draw(st.sampled_from(["change", "cut", "insert"])):
            case "change":
                damaged[position] = data.draw(st.integers(0, 255))
            case "cut" if position:
                del damaged[position:]
            case "insert":
                damaged[position:position] = data.draw(st.binary(min_size=1, max_size=4))
    decode_with_every_reader(bytes(damaged))


GOOD = (
    full_session(),
    fast_session(),
    encode_event(PublishReceived(connection_id=1, packet_id=2, topic="t", payload=b"p")),
    joined([encode_event(PubRelReceived(connection_id=1, packet_id=2)), encode_event(PubAckReceived(1, 3, 0x87, "not you"))]),
    encode_command_batch(
        CommandBatch(
            client_id=CLIENT,
            commands=(
                SendPublish(
                    connection_id=1, partition=0, sequence=1, packet_id=1, topic="t", payload=b"p", qos=QoS.AT_LEAST_ONCE
                ),
            ),
        )
    ),
)


def test_a_record_of_a_newer_version_says_what_to_do() -> None:
    newer = b"\x02" + encode_event(ConnectionLost(connection_id=1))[1:]
    with pytest.raises(UnreadableRecord, match="record version 2, expected 1"):
        decode_events(newer)
    blob = encode_session(Session(client_id=CLIENT, settings=SETTINGS))
    with pytest.raises(UnreadableRecord, match="start the version that wrote the checkpoint, or a newer one"):
        decode_session(b"\x02" + blob[1:], client_id=CLIENT, settings=SETTINGS)
    with pytest.raises(UnreadableRecord, match="version nothing"):
        decode_session(b"", client_id=CLIENT, settings=SETTINGS)


def test_a_writer_may_add_fields_at_the_end_and_old_readers_ignore_them() -> None:
    """The rule of state/records/record.py: no new version for a field with a default."""
    record = msgspec.msgpack.decode(encode_event(ConnectionLost(connection_id=1, reason="x"))[1:])
    longer = b"\x01" + msgspec.msgpack.encode([*record, "a field of tomorrow"])
    assert decode_events(longer) == (ConnectionLost(connection_id=1, reason="x"),)
    before_the_grace = b"\x01" + msgspec.msgpack.encode(record[:-2])
    assert decode_events(before_the_grace) == (ConnectionLost(connection_id=1, reason="x"),)
    before_the_reason = b"\x01" + msgspec.msgpack.encode(record[:-3])
    assert decode_events(before_the_reason) == (ConnectionLost(connection_id=1),)


def test_equal_sessions_give_equal_bytes_and_a_blob_is_a_fixed_point() -> None:
    blob = full_session()
    assert blob == full_session()
    session = decode_session(blob, client_id=CLIENT, settings=SETTINGS)
    assert encode_session(session) == blob
