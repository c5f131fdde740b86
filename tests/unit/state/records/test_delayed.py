"""state.records.delayed: how a publication with RETAIN waits for its time, and comes back."""

import pytest

from state.model import Message, QoS
from state.records.delayed import DelayedPublication, decode_delayed, delayed_headers, delayed_key, due_headers, is_delayed
from state.records.messages import BrokenContract
from state.records.publications import publication_in
from state.records.record import Header

NOW_MS = 1_700_000_000_000
DUE_MS = NOW_MS + 14_000


def a_message(**more: object) -> Message:
    message = Message(
        message_id="m",
        topic="a/b",
        payload=b"p",
        qos=QoS.EXACTLY_ONCE,
        retain=True,
        accepted_ms=NOW_MS,
        headers=(("x", b"y"), ("deliver-at", b"%d" % DUE_MS)),
    )
    return Message(**{**{name: getattr(message, name) for name in message.__struct_fields__}, **more})  # type: ignore[arg-type]


def delayed(message: Message, key: bytes | None = b"k") -> DelayedPublication:
    return DelayedPublication(message=message, due_ms=DUE_MS, partition=3, key=key)


@pytest.mark.parametrize("key", [b"k", None])
def test_a_publication_that_waits_is_read_as_it_was_written(key: bytes | None) -> None:
    waiting = delayed(a_message(expires_at_ms=NOW_MS + 20_000, expiration_ms=20_000), key)
    assert decode_delayed(delayed_headers(waiting, now_ms=NOW_MS), b"p", accepted_ms=NOW_MS) == waiting


def test_at_its_time_it_is_published_as_one_that_has_just_come() -> None:
    headers = due_headers(delayed(a_message(expires_at_ms=NOW_MS + 20_000)), now_ms=DUE_MS)
    publication = publication_in(headers, b"p", accepted_ms=DUE_MS, default_message_id="other", is_uplink=False)
    assert publication.message == a_message(
        accepted_ms=DUE_MS, expires_at_ms=DUE_MS + 6_000, expiration_ms=6_000, headers=(("x", b"y"),)
    )
    assert publication.is_named, "so that a copy is recognized"


def test_no_retained_message_has_a_key_of_one_that_waits() -> None:
    assert is_delayed(delayed_key(a_message(), 3))
    assert not is_delayed(b"a/b")


def test_a_publication_has_a_key_of_its_own_unless_it_replaces_one() -> None:
    keys = {delayed_key(a_message(), 3), delayed_key(a_message(message_id="other"), 3), delayed_key(a_message(), 2)}
    assert len(keys) == 3
    first, second = (a_message(message_id=each, headers=(("collapse-key", b"m"),)) for each in "mn")
    assert delayed_key(first, 3) == delayed_key(second, 3)
    assert delayed_key(first, 3) not in keys


@pytest.mark.parametrize("missing", ["deliver-at", "publication-partition", "mqtt-topic"])
def test_a_record_that_no_matcher_wrote_is_refused(missing: str) -> None:
    headers = [header for header in delayed_headers(delayed(a_message()), now_ms=NOW_MS) if header.key != missing]
    with pytest.raises(BrokenContract):
        decode_delayed(headers, b"p", accepted_ms=NOW_MS)


def test_a_partition_that_is_no_number_is_refused() -> None:
    headers = [*delayed_headers(delayed(a_message()), now_ms=NOW_MS), Header("publication-partition", None)]
    with pytest.raises(BrokenContract):
        decode_delayed(headers, b"p", accepted_ms=NOW_MS)
