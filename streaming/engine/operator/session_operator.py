"""The state operator: what Spark calls once for every client that has something to do. It only adapts; every rule is in `state/`.

Steps of an activation, in this order:
1. read the records of the group, all of them, sorted by (source, partition, offset);
2. make events of them; what cannot be read is refused (state/dead_letters/refused_record.py);
3. decode the session, or begin one;
4. let it handle the events in one activation; a time-out without records is `DeadlineReached`;
5. store the session and arm its next deadline, or forget it when it is empty;
6. answer with one row (several when the answer is very long), and with no frame at all when there is nothing to say.

The clock is `GroupState.getCurrentProcessingTimeMs()`, which Spark keeps when it executes a micro-batch again.
"""

import gc
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, TypeAlias

from pyspark.sql.streaming.state import GroupState

from state.commands import Command
from state.dead_letters.refused_record import fault_of_key, refuse_event, refuse_message
from state.errors import UnreadableRecord
from state.events import DeadlineReached, Event
from state.model import Message
from state.records.dead_letters import source_headers
from state.records.record import SinkRecord
from state.session import Session
from state.session_codec import decode_session, encode_session
from streaming.engine.operator.cells import (
    EVENTS,
    OUTPUT_COLUMN,
    RECORD_COLUMN,
    SourceRecord,
    encode_answer,
    sorted_records,
)
from streaming.engine.operator.frames import Frames, cells_of, frames_of
from streaming.engine.operator.lean_worker import use_lean_worker
from streaming.engine.operator.settings import PipelineSettings, SettingsOfClients
from streaming.engine.operator.to_events import message_event, source_topic, to_event, unread_message
from streaming.engine.operator.to_records import to_records

STATE_ROW_VERSION: Final = 1
STATE_SCHEMA: Final = (
    "version int, connected boolean, inflight int, queued int, queued_bytes long, oldest_unacked_ms long, "
    "next_deadline_ms long, blob binary"
)
"""One row per client in the checkpoint: columns that people query, and the session itself. Fixed for the life of a checkpoint."""
OUTPUT_SCHEMA: Final = f"{OUTPUT_COLUMN} binary"
UNADDRESSED: Final = ""
"""The group of records whose key is no client id. It has no session."""

_YOUNG_OBJECTS: Final = 200_000
_LONGEST_TIMER_MS: Final = 365 * 86_400_000

Function: TypeAlias = Callable[[tuple[str], Frames, GroupState], Frames]


class SessionOperator:
    """The function for `applyInPandasWithState`. Pickled as its settings; one worker process makes it once (see `__reduce__`)."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self._settings_of = SettingsOfClients(settings).of

    def __reduce__(self) -> tuple[Callable[[PipelineSettings], "SessionOperator"], tuple[PipelineSettings]]:
        # Spark unpickles the function for every task, twice per state partition and micro-batch.
        return _operator_in_worker, (self._settings,)

    def __call__(self, key: tuple[str, ...], frames: Frames, state: GroupState) -> Frames:
        """An activation on PySpark's stock path."""
        return frames_of(self.activate(key, cells_of(frames), state))

    def activate(self, key: tuple[str, ...], cells: Iterable[bytes], state: GroupState) -> list[bytes]:
        """An activation: cells in, cells out. The function of the lean worker path (lean_worker.py)."""
        (client_id,) = key
        now_ms = state.getCurrentProcessingTimeMs()
        records = [] if state.hasTimedOut else sorted_records(cells)  # 1
        if client_id == UNADDRESSED:
            state.remove()
            return encode_answer(self._unaddressed(records, now_ms))
        events: list[tuple[SourceRecord, Event]] = []
        answer: list[SinkRecord] = []
        for record in records:  # 2
            try:
                events.append((record, to_event(record, self._settings, now_ms=now_ms)))
            except UnreadableRecord as error:
                answer += self._unreadable(record, client_id, str(error), now_ms)
        session = self._session(client_id, state)  # 3
        try:
            commands = session.handle_all([event for _, event in events] or [DeadlineReached()], now_ms=now_ms)  # 4
            blob = encode_session(session)
        except Exception:
            if not events:
                raise
            session, blob, commands, refused = self._one_by_one(events, client_id, state, now_ms)
            answer += refused
        answer += to_records(commands, client_id=client_id, now_ms=now_ms, settings=self._settings)
        _store(session, blob, state, now_ms)  # 5
        return encode_answer(answer)  # 6

    def _session(self, client_id: str, state: GroupState) -> Session:
        settings = self._settings_of(client_id)
        if not state.exists:
            return Session(client_id=client_id, settings=settings)
        version, *_, blob = state.get
        if version != STATE_ROW_VERSION:
            raise UnreadableRecord(
                f"the state row of client {client_id!r} has version {version}, this Inflight reads {STATE_ROW_VERSION}: "
                "start the version that wrote the checkpoint, or a newer one"
            )
        return decode_session(bytes(blob), client_id=client_id, settings=settings)

    def _one_by_one(
        self, events: list[tuple[SourceRecord, Event]], client_id: str, state: GroupState, now_ms: int
    ) -> tuple[Session, bytes, tuple[Command, ...], list[SinkRecord]]:
        """Finds the event on which the session failed, makes a dead letter of it and applies the others.

        Such a failure is a mistake of ours. Spark would execute the micro-batch again and again, and one record would stand
        between all clients and their messages; so the record leaves with its reason, and the query lives.
        """
        session = self._session(client_id, state)
        blob = encode_session(session)
        commands: tuple[Command, ...] = ()
        refused: list[SinkRecord] = []
        for record, event in events:
            try:
                done = session.handle(event, now_ms=now_ms)
                blob = encode_session(session)
            except Exception as error:  # noqa: BLE001 - the reason is told in the dead letter
                session = decode_session(blob, client_id=client_id, settings=self._settings_of(client_id))
                refused += self._unreadable(record, client_id, f"the session failed on it: {error!r}", now_ms)
            else:
                commands += done
        return session, blob, commands, refused

    def _unaddressed(self, records: list[SourceRecord], now_ms: int) -> list[SinkRecord]:
        """Dead letters for records whose key names no client."""
        answer: list[SinkRecord] = []
        for record in records:
            fault = fault_of_key(record.key, max_client_id_bytes=self._settings.limits.max_client_id_bytes)
            if record.source == EVENTS:
                answer += self._unreadable(record, UNADDRESSED, fault, now_ms)
            else:
                # The contract of the headers is read too: the dead letter then has all that is known of the message.
                message = message_event(record, self._settings, now_ms=now_ms).message
                answer += self._refused(record, message, UNADDRESSED, fault, now_ms)
        return answer

    def _unreadable(self, record: SourceRecord, client_id: str, detail: str, now_ms: int) -> list[SinkRecord]:
        return self._refused(record, unread_message(record, self._settings, now_ms=now_ms), client_id, detail, now_ms)

    def _refused(self, record: SourceRecord, message: Message, client_id: str, detail: str, now_ms: int) -> list[SinkRecord]:
        """What leaves when a record never reaches a session."""
        refuse = refuse_event if record.source == EVENTS else refuse_message
        return to_records(
            refuse(message, client_id=client_id, detail=detail, now_ms=now_ms),
            client_id=client_id,
            now_ms=now_ms,
            settings=self._settings,
            extra_headers=tuple(source_headers(source_topic(record, self._settings), record.key)),
        )


def _operator_in_worker(settings: PipelineSettings) -> SessionOperator:
    operator = _operator_of_process(settings)
    if settings.lean_worker:
        use_lean_worker(operator.activate, value_column=RECORD_COLUMN, output_column=OUTPUT_COLUMN)
    return operator


@lru_cache(maxsize=4)
def _operator_of_process(settings: PipelineSettings) -> SessionOperator:
    """The operator of this worker process, which also gets its garbage collector tuned: every activation makes some hundred
    objects that live for a millisecond, and with Python's defaults a tenth of the time goes into looking through the modules.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 10, 10)
    return SessionOperator(settings)


def _store(session: Session, blob: bytes, state: GroupState, now_ms: int) -> None:
    """Exactly one of: remove, update, update and arm. A call that does none of them would leave the old timer armed."""
    if session.is_empty:
        state.remove()
        return
    summary = session.summary()
    deadline_ms = session.next_deadline_ms()
    if deadline_ms is not None:
        # Longer than Spark can count is as good as never, and a call too early does nothing.
        deadline_ms = min(deadline_ms, now_ms + _LONGEST_TIMER_MS)
    state.update(
        (
            STATE_ROW_VERSION,
            summary.connected,
            summary.inflight,
            summary.queued,
            summary.queued_bytes,
            summary.oldest_unacked_ms,
            deadline_ms,
            blob,
        )
    )
    if deadline_ms is not None:
        state.setTimeoutDuration(max(1, deadline_ms - now_ms))
