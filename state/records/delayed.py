"""Defines the records of `inflight.retained` that hold publications with RETAIN until their `deliver-at`.

Key: NUL, the topic name, NUL, the partition of `inflight.publications`, NUL and a name. No topic name has a NUL, so the key is
none of a retained message. The name is the collapse key or the message id: a publication with the same one replaces what waits.
Value: the payload, perhaps empty; null ends the wait. Headers: those of `inflight.publications`, and two more:

| header | meaning |
|---|---|
| `publication-partition` | the partition of `inflight.publications` that the publication came from, and returns to |
| `publication-key` | its key there; without it the key was null |
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from state.model import Message
from state.records.messages import RETAIN, BrokenContract, HeaderLike
from state.records.publications import message_headers, publication_in
from state.records.record import Header
from state.records.scheduling import DELIVER_AT, collapse_key, deliver_at_ms

PARTITION: Final = "publication-partition"
KEY: Final = "publication-key"
_OWN: Final = frozenset((PARTITION, KEY))
_NUL: Final = b"\0"


class DelayedPublication(msgspec.Struct, frozen=True, kw_only=True):
    """A publication with RETAIN that waits for its time.

    Attributes:
        due_ms: Its `deliver-at`.
        partition, key: Of its record in `inflight.publications`.
    """

    message: Message
    due_ms: int
    partition: int
    key: bytes | None = None


def is_delayed(key: bytes) -> bool:
    """Returns True if a key of `inflight.retained` is that of a publication that waits."""
    return key.startswith(_NUL)


def delayed_key(message: Message, partition: int) -> bytes:
    """Returns the key under which a publication waits.

    Args:
        partition: Of its record in `inflight.publications`.
    """
    by_collapse_key = collapse_key(message)
    name = b"i" + message.message_id.encode() if by_collapse_key is None else b"c" + by_collapse_key
    return _NUL.join((b"", message.topic.encode(), b"%d" % partition, name))


def delayed_headers(delayed: DelayedPublication, *, now_ms: int) -> list[Header]:
    """Returns the headers of the record that lets a publication wait."""
    own = [Header(PARTITION, b"%d" % delayed.partition)]
    if delayed.key is not None:
        own.append(Header(KEY, delayed.key))
    return [*_with_retain(delayed.message, now_ms), *own]


def due_headers(delayed: DelayedPublication, *, now_ms: int) -> list[Header]:
    """Returns the headers with which a publication goes back to `inflight.publications` at its time."""
    return [header for header in _with_retain(delayed.message, now_ms) if header.key != DELIVER_AT]


def decode_delayed(headers: Sequence[HeaderLike], value: bytes, *, accepted_ms: int) -> DelayedPublication:
    """Returns the publication in a record.

    Args:
        accepted_ms: Time of the record; the time to live that was left counts from here.

    Raises:
        BrokenContract: `delayed_headers` did not write it.
    """
    own = {header.key: header.value for header in headers if header.key in _OWN}
    others = [header for header in headers if header.key not in _OWN]
    publication = publication_in(others, value, accepted_ms=accepted_ms, default_message_id="", is_uplink=False)
    due_ms, partition = deliver_at_ms(publication.message), own.get(PARTITION) or b""
    if due_ms is None or not partition.isdigit():
        raise BrokenContract(f"a publication that waits has the headers {DELIVER_AT} and {PARTITION}: only a matcher writes it")
    return DelayedPublication(message=publication.message, due_ms=due_ms, partition=int(partition), key=own.get(KEY))


def _with_retain(message: Message, now_ms: int) -> list[Header]:
    return [*message_headers(message, now_ms=now_ms), Header(RETAIN, b"true")]
