"""A record of Kafka → an event of the session. Deterministic: the same record and the same `now_ms` give the same event.

Whatever bytes a record has, the result is an event or `UnreadableRecord`; both end as something that leaves the query, never as
an exception that stops it.
"""

import msgspec

from state.errors import UnreadableRecord
from state.events import ClientConnected, Event, LoggedEvent, MessageRefused, MessageReturned, MessageSubmitted, PublishReceived
from state.records.codec import decode_event
from streaming.engine.operator.cells import EVENTS, SourceRecord
from streaming.engine.operator.message_headers import BrokenContract, headers_bytes, parse_broken_message, parse_message
from streaming.engine.operator.settings import PipelineSettings


def position(record: SourceRecord, settings: PipelineSettings) -> str:
    """`topic-partition-offset`: unique and the same whenever the micro-batch is executed, so ids are made of it."""
    topic = settings.topics.events if record.source == EVENTS else settings.topics.messages
    return f"{topic}-{record.partition}-{record.offset}"


def to_event(record: SourceRecord, settings: PipelineSettings, *, now_ms: int) -> Event:
    """The event that `record` is for its session. Raises state.errors.UnreadableRecord for what no gateway wrote."""
    if record.source == EVENTS:
        return _logged_event(record, settings, now_ms)
    return message_event(record, settings, now_ms=now_ms)


def message_event(record: SourceRecord, settings: PipelineSettings, *, now_ms: int) -> MessageSubmitted | MessageRefused:
    """A record of `inflight.messages`; `MessageRefused` says what breaks the contract.

    A null value (a tombstone) is an empty payload, which MQTT allows: it is how a backend clears a retained value.
    """
    payload = record.value or b""
    default_message_id = position(record, settings)
    accepted_ms = accepted_at(record, now_ms=now_ms)
    try:
        _check_sizes(record, payload, settings)
        message, explicit_id = parse_message(
            record.headers, payload=payload, accepted_ms=accepted_ms, default_message_id=default_message_id
        )
        return MessageSubmitted(message=message, explicit_id=explicit_id)
    except BrokenContract as refusal:
        message = parse_broken_message(
            record.headers, payload=payload, accepted_ms=accepted_ms, default_message_id=default_message_id
        )
        return MessageRefused(message=message, detail=str(refusal))


def accepted_at(record: SourceRecord, *, now_ms: int) -> int:
    """When Kafka took the record, from which its time to live counts.

    Producers choose that time: one before 1970 or after this micro-batch began is replaced by the latter.
    """
    return record.timestamp_ms if 0 < record.timestamp_ms <= now_ms else now_ms


def _logged_event(record: SourceRecord, settings: PipelineSettings, now_ms: int) -> LoggedEvent:
    event = decode_event(record.value or b"")
    if isinstance(event, ClientConnected) and not 0 <= event.commands_partition < settings.commands_partitions:
        raise UnreadableRecord(
            f"the gateway names partition {event.commands_partition} of {settings.topics.commands}, which had "
            f"{settings.commands_partitions} when the engine started: restart the engine if partitions were added"
        )
    if isinstance(event, MessageReturned):
        message = msgspec.structs.replace(event.message, accepted_ms=accepted_at(record, now_ms=now_ms))
        return msgspec.structs.replace(event, message=message)
    if isinstance(event, PublishReceived):
        return msgspec.structs.replace(event, publication_id=position(record, settings))
    return event


def _check_sizes(record: SourceRecord, payload: bytes, settings: PipelineSettings) -> None:
    if len(payload) > settings.max_payload_bytes:
        raise BrokenContract(
            f"the payload has {len(payload)} bytes: {settings.max_payload_bytes} are allowed (engine.max_payload_bytes)"
        )
    if record.headers and (size := headers_bytes(record.headers)) > settings.max_headers_bytes:
        raise BrokenContract(f"the headers have {size} bytes: {settings.max_headers_bytes} are allowed")
