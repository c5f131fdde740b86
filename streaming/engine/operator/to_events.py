"""A record of Kafka → an event of the session. Deterministic: the same record and the same `now_ms` give the same event.

Whatever bytes a record has, the result is an event or `UnreadableRecord`; both end as something that leaves the query, never as
an exception that stops it. The formats are in state/records/messages.py and state/records/events.py.
"""

from state.dead_letters.refused_record import unread
from state.errors import UnreadableRecord
from state.events import ClientConnected, LoggedEvent, MessageRefused, MessageSubmitted
from state.model import Message, Position
from state.records import messages
from state.records.events import completed, decode_event
from state.records.record import accepted_at, position
from streaming.engine.operator.cells import EVENTS, SourceRecord
from streaming.engine.operator.settings import PipelineSettings


def to_event(record: SourceRecord, settings: PipelineSettings, *, now_ms: int) -> LoggedEvent | MessageSubmitted | MessageRefused:
    """The event that `record` is for its client. Raises state.errors.UnreadableRecord for what no gateway wrote."""
    if record.source == EVENTS:
        return _logged_event(record, settings, now_ms)
    return message_event(record, settings, now_ms=now_ms)


def message_event(record: SourceRecord, settings: PipelineSettings, *, now_ms: int) -> MessageSubmitted | MessageRefused:
    """A record of `inflight.messages`; `MessageRefused` says what breaks the contract."""
    return messages.message_event(
        record.headers,
        record.value,
        accepted_ms=accepted_at(record.timestamp_ms, now_ms=now_ms),
        default_message_id=position(settings.topics.messages, record.partition, record.offset),
        limits=settings.limits,
        position=Position(record.partition, record.offset),
    )


def unread_message(record: SourceRecord, settings: PipelineSettings, *, now_ms: int) -> Message:
    """A record that is no event, or on which the session failed, as the message of its dead letter."""
    return unread(
        record.value,
        message_id=position(source_topic(record, settings), record.partition, record.offset),
        accepted_ms=accepted_at(record.timestamp_ms, now_ms=now_ms),
    )


def source_topic(record: SourceRecord, settings: PipelineSettings) -> str:
    """The topic that the record was read from."""
    return settings.topics.events if record.source == EVENTS else settings.topics.messages


def _logged_event(record: SourceRecord, settings: PipelineSettings, now_ms: int) -> LoggedEvent:
    event = decode_event(record.value or b"")
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
        accepted_ms=accepted_at(record.timestamp_ms, now_ms=now_ms),
    )
