"""Defines the records of `inflight.publications`, a public contract: messages for whoever subscribes to their topic.

Key: anything; publications with the same key keep their order. Value: the payload; null is an empty one. Headers: those of
`inflight.messages` (state/records/messages.py), and `mqtt-retain: true` keeps the message for later subscribers. The engine adds
these when it gives a message of a shared subscription back to its group:

| header | meaning |
|---|---|
| `mqtt-share` | for a member of this shared subscription only: `$share/GROUP/FILTER` |
| `mqtt-share-tried` | JSON array of members for which the message was too large; none of them gets it while there are others |
| `micro-batch` | as in `inflight.uplink` |

`publication_in` reads the records of both topics from which the matcher routes: this one and `inflight.uplink`.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from state.commands import ForwardPublication, ReturnToGroup
from state.errors import UNDECODABLE
from state.model import ClientId, Message
from state.records.messages import EXPIRATION, MESSAGE_ID, BrokenContract, HeaderLike, format_message, parse_message
from state.records.record import Header, SinkRecord
from state.records.uplink import (
    CLIENT_ID,
    CONNECTION_ID,
    INFLIGHT_ID,
    MAY_BE_COPY_SINCE,
    MESSAGE_EXPIRY,
    MICRO_BATCH,
    USERNAME,
    uplink_record,
)

SHARE: Final = "mqtt-share"
TRIED: Final = "mqtt-share-tried"
_OF_UPLINK: Final = frozenset((CLIENT_ID, INFLIGHT_ID, MESSAGE_EXPIRY, USERNAME, MAY_BE_COPY_SINCE, CONNECTION_ID))
_OWN: Final = frozenset((SHARE, TRIED, MICRO_BATCH))
_encoder: Final = msgspec.json.Encoder()
_clients_decoder: Final = msgspec.json.Decoder(tuple[ClientId, ...])


class Publication(msgspec.Struct, frozen=True, kw_only=True):
    """A publication to be routed.

    Attributes:
        message: Its `message_id` is unique; `headers` are passed on.
        publisher: The device that published it; empty = a backend did.
        is_named: A backend chose the message id.
        share: The only shared subscription that it is for; empty = it is for all subscriptions.
        tried: The members of that shared subscription for which it was too large.
        batch_ms: Time of the micro-batch that wrote the record; None = the engine did not.
    """

    message: Message
    publisher: ClientId = ""
    is_named: bool = False
    share: str = ""
    tried: tuple[ClientId, ...] = ()
    batch_ms: int | None = None


def publication_in(
    headers: Sequence[HeaderLike], value: bytes | None, *, accepted_ms: int, default_message_id: str, is_uplink: bool
) -> Publication:
    """Returns the publication in a record.

    Args:
        accepted_ms: Time at which Kafka stored the record; its time to live counts from here.
        default_message_id: The record's position.
        is_uplink: The record is of `inflight.uplink`, whose headers say some things in another way.

    Raises:
        BrokenContract: A header is missing or has a value that is not allowed.
    """
    own = {header.key: header.value or b"" for header in headers if header.key in _OWN}
    passed_on = [header for header in headers if header.key not in _OWN]
    publisher = ""
    if is_uplink:
        said = {header.key: header.value or b"" for header in headers if header.key in _OF_UPLINK}
        passed_on = [header for header in passed_on if header.key not in _OF_UPLINK]
        publisher = said.get(CLIENT_ID, b"").decode(errors="replace")
        if INFLIGHT_ID in said:
            passed_on.append(Header(MESSAGE_ID, said[INFLIGHT_ID]))
        if MESSAGE_EXPIRY in said:
            passed_on.append(Header(EXPIRATION, said[MESSAGE_EXPIRY] + b"000"))
    message, is_named = parse_message(
        passed_on, payload=value or b"", accepted_ms=accepted_ms, default_message_id=default_message_id
    )
    return Publication(
        message=message,
        publisher=publisher,
        is_named=is_named and not is_uplink,
        share=own.get(SHARE, b"").decode(errors="replace"),
        tried=_tried(own.get(TRIED)),
        batch_ms=_batch_ms(own),
    )


def message_headers(message: Message, *, now_ms: int) -> list[Header]:
    """Returns the headers of a record of `inflight.messages` that passes a publication on, with the time to live that is left.

    Its Retain flag is left out: each recipient has its own (`Routing`).
    """
    headers = format_message(msgspec.structs.replace(message, retain=False) if message.retain else message)
    if message.expires_at_ms is not None:
        headers.append(Header(EXPIRATION, b"%d" % max(0, message.expires_at_ms - now_ms)))
    headers += [Header(name, value) for name, value in message.headers]
    return headers


def returned_to_group_record(topic: str, client_id: ClientId, command: ReturnToGroup) -> SinkRecord:
    """Returns the record for a command of a session."""
    message = command.message
    assert message.routing is not None, "only a routed message has a shared subscription"
    own = [Header(SHARE, message.routing.share.encode()), Header(MICRO_BATCH, b"%d" % command.time_ms)]
    if message.routing.tried:
        own.append(Header(TRIED, _encoder.encode(message.routing.tried)))
    headers = message_headers(message, now_ms=command.time_ms) + own
    return SinkRecord(topic, client_id.encode(), message.payload, headers=tuple(headers))


def retained_record(topic: str, client_id: ClientId, command: ForwardPublication, now_ms: int) -> SinkRecord:
    """Returns the record of `inflight.retained` for a will with Will Retain; an empty payload removes what is retained.

    Key: the topic name. Value and headers are those of `inflight.uplink`; without a value nothing is retained.
    """
    record = uplink_record(topic, client_id, command, now_ms)
    return msgspec.structs.replace(record, key=command.topic.encode(), value=record.value or None)


def _tried(raw: bytes | None) -> tuple[ClientId, ...]:
    if raw is None:
        return ()
    try:
        return _clients_decoder.decode(raw)
    except UNDECODABLE as error:
        raise BrokenContract(f"header {TRIED} is no JSON array of client ids: only the engine writes it") from error


def _batch_ms(own: dict[str, bytes]) -> int | None:
    raw = own.get(MICRO_BATCH)
    if raw is None:
        return None
    if not raw.isdigit() or len(raw) > 20:
        raise BrokenContract(f"header {MICRO_BATCH} is {raw[:40]!r}: only the engine writes it, as a time in milliseconds")
    return int(raw)
