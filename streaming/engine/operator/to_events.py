"""Turns a record of Kafka into events of the session. The same record and the same `now_ms` give the same events.

Any bytes give events or `UnreadableRecord`. Both lead to output of the query, never to an exception that stops it. The formats
are in state/records/messages.py and state/records/events.py.
"""

from collections.abc import Sequence
from functools import partial

from state.dead_letters.refused_record import fault_of_size, unread
from state.errors import UnreadableRecord
from state.events import CancelRequested, ClientConnected, LoggedEvent, MessageArrived, MessageEvent, MessageRefused
from state.model import Message, Position, partition_and_generation
from state.records import messages
from state.records.events import completed, decode_events
from state.records.record import accepted_at, position
from state.records.routing import RECIPIENT_PREFIX
from streaming.engine.operator.cells import EVENTS, MESSAGES, SourceRecord
from streaming.engine.operator.pipeline import PipelineSettings


def to_events(record: SourceRecord, settings: PipelineSettings, *, now_ms: int) -> Sequence[LoggedEvent | MessageEvent]:
    """Returns the events of `record` for its client, in order. Raises UnreadableRecord for bytes that no gateway wrote."""
    if record.source == MESSAGES:
        return (_read_message(record, settings, now_ms),)
    if record.bytes_left_out:
        raise UnreadableRecord(fault_of_record(record, settings))
    accepted_ms = accepted_at(record.timestamp_ms, now_ms=now_ms)
    return [_completed(event, record, settings, accepted_ms) for event in decode_events(record.value or b"")]


def message_arrived(record: SourceRecord, settings: PipelineSettings, *, now_ms: int) -> MessageArrived:
    """Stands for the event of a record of `inflight.messages` until the session wants to read it."""
    return MessageArrived(
        position=Position(record.partition, record.offset), read=partial(_read_message, record, settings, now_ms)
    )


def _read_message(record: SourceRecord, settings: PipelineSettings, now_ms: int) -> MessageEvent:
    """Reads a message. The session refuses one that is too large, because it keeps account of the positions of its messages."""
    if fault := fault_of_record(record, settings):
        message = unread_message(record, settings, now_ms=now_ms)
        return MessageRefused(message=message, detail=fault, position=Position(record.partition, record.offset))
    return message_event(record, settings, now_ms=now_ms)


def message_event(record: SourceRecord, settings: PipelineSettings, *, now_ms: int) -> MessageEvent:
    """Reads a record of `inflight.messages`. `MessageRefused` names the breach of the contract."""
    headers = record.headers
    if record.recipient is not None:  # the record may still have the headers of its recipients (streaming/engine/query.py)
        headers = tuple(header for header in headers if not header.key.startswith(RECIPIENT_PREFIX))
    return messages.message_event(
        headers,
        record.value,
        accepted_ms=accepted_at(record.timestamp_ms, now_ms=now_ms),
        default_message_id=position(settings.topics.messages, record.partition, record.offset),
        limits=settings.limits,
        position=Position(record.partition, record.offset),
        recipient=record.recipient,
    )


def fault_of_record(record: SourceRecord, settings: PipelineSettings) -> str:
    """Returns why a record is too large, for people; empty if it is not."""
    if not record.bytes_left_out:
        return ""
    limits = settings.limits
    return fault_of_size(
        source_topic(record, settings),
        partition_and_generation(record.partition)[0],
        record.offset,
        size_bytes=record.bytes_left_out,
        max_bytes=limits.max_event_record_bytes if record.source == EVENTS else limits.max_message_record_bytes,
    )


def unread_message(record: SourceRecord, settings: PipelineSettings, *, now_ms: int) -> Message:
    """Makes the message of the dead letter for a record that is no event, or on which the session failed."""
    return unread(
        record.value,
        message_id=position(source_topic(record, settings), record.partition, record.offset),
        accepted_ms=accepted_at(record.timestamp_ms, now_ms=now_ms),
    )


def message_in(record: SourceRecord, settings: PipelineSettings, *, now_ms: int) -> Message:
    """Returns the message of a record of `inflight.messages`, for a dead letter with all that is known of it."""
    event = message_event(record, settings, now_ms=now_ms)
    return unread_message(record, settings, now_ms=now_ms) if isinstance(event, CancelRequested) else event.message


def source_topic(record: SourceRecord, settings: PipelineSettings) -> str:
    """Returns the topic of the record."""
    return settings.topics.events if record.source == EVENTS else settings.topics.messages


def _completed(event: LoggedEvent, record: SourceRecord, settings: PipelineSettings, accepted_ms: int) -> LoggedEvent:
    if isinstance(event, ClientConnected) and not 0 <= event.commands_partition < settings.commands_partitions:
        raise UnreadableRecord(
            f"the gateway names partition {event.commands_partition} of {settings.topics.commands}, which had "
            f"{settings.commands_partitions} when the engine started: restart the engine if partitions were added"
        )
    return completed(
        event,
        topic=settings.topics.events,
        partition=record.partition,
        offset=record.offset,
        accepted_ms=accepted_ms,
        timestamp_ms=record.timestamp_ms,
    )
