"""The state operator, which Spark calls once for every client with work. It only adapts; every rule is in `state/`.

Steps of an activation, in this order:
1. read the records of the group, all of them, sorted by (source, partition, offset);
2. make events of them; unreadable ones are refused (state/dead_letters/refused_record.py). The content of a message is read in
   step 4, unless the session has it from a gateway;
3. decode the session, or begin one;
4. let it handle the events in one activation; a call because of its deadline alone is `DeadlineReached`;
5. store the session, or forget it when it is empty, and report its next deadline and a large queue to the driver;
6. answer with a row for each record, and with no frame at all when there is none.

A client whose session cannot be used is quarantined, and does not stop other clients (state/dead_letters/quarantine.py has the
rules). Its state row has another version, and the quarantine in its blob; `_in_quarantine` replaces steps 3 and 4.

The clock is `GroupState.getCurrentProcessingTimeMs()`, which Spark keeps when it executes a micro-batch again.
"""

import gc
import sys
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Final, TypeAlias

from pyspark.accumulators import Accumulator
from pyspark.sql.streaming.state import GroupState

from sinks.escaping import escaped
from state.commands import Command
from state.dead_letters.quarantine import (
    EventFromLog,
    Quarantine,
    begin,
    dropped,
    error_text,
    given_up,
    not_quarantined,
    not_restored,
    receive,
    restored,
    session_after,
)
from state.dead_letters.refused_record import fault_of_key, refuse_event, refuse_message
from state.errors import UnreadableRecord
from state.events import DeadlineReached, DropRequested, MessageArrived, QuarantineRequest, RestoreRequested
from state.model import Message
from state.records.dead_letters import source_headers
from state.records.record import SinkRecord
from state.records.routing import RECIPIENT_PREFIX
from state.session import Session
from state.session_codec import decode_session
from streaming.engine.operator.cells import EVENTS, MESSAGES, RECORD_COLUMN, Frames, SourceRecord, cells_of, sorted_records
from streaming.engine.operator.pipeline import PipelineSettings, SettingsOfClients
from streaming.engine.operator.reported_backlogs import BacklogsAccumulator, backlog_of
from streaming.engine.operator.reported_counts import CountsAccumulator, counts_of
from streaming.engine.operator.reported_deadlines import Reports, report_of
from streaming.engine.operator.reported_drops import Drops, DropsAccumulator, drops_of
from streaming.engine.operator.sink_columns import SinkRows, frames_of
from streaming.engine.operator.state_row import (
    StateRow,
    check_version,
    new_quarantine,
    quarantined_row,
    row_of,
    store,
    stored_quarantine,
    stored_queue_bytes,
)
from streaming.engine.operator.to_events import (
    fault_of_record,
    message_arrived,
    message_in,
    source_topic,
    to_events,
    unread_message,
)
from streaming.engine.operator.to_records import to_records
from streaming.spark_internals.lean_worker import use_lean_worker

UNADDRESSED: Final = ""
"""The key of the group of records whose key is no client id. It has no session."""

_YOUNG_OBJECTS: Final = 200_000

Function: TypeAlias = Callable[[tuple[str], Frames, GroupState], Frames]

_Cause: TypeAlias = tuple[SourceRecord, EventFromLog | QuarantineRequest | MessageArrived]
_Outcome: TypeAlias = tuple[StateRow | None, list[SinkRecord]]
"""The row to store, None to store nothing, and the output."""


class SessionOperator:
    """The function for `applyInPandasWithState`. Pickled as its settings; one worker process makes it once (see `__reduce__`)."""

    def __init__(self, settings: PipelineSettings) -> None:
        self._settings = settings
        self._settings_of = SettingsOfClients(settings).of
        self.topics = settings.topics
        self.drops: Drops | None = None
        """Messages dropped in the last activation; None = it has dropped nothing."""
        self.backlog_bytes: int | None = None
        """The queue after the last activation as `backlog_of` reports it."""
        self._keeps_up = False
        """The client keeps up after the last activation."""

    def __reduce__(self) -> tuple[Callable[[PipelineSettings], "TaskOperator"], tuple[PipelineSettings]]:
        # Spark unpickles the function for every task, twice per state partition and micro-batch.
        return operator_in_worker, (self._settings,)

    def __call__(self, key: tuple[str, ...], frames: Frames, state: GroupState) -> Frames:
        """Does an activation on PySpark's stock path."""
        return frames_of(self.activate(key, cells_of(frames), state))

    def activate(self, key: tuple[str, ...], cells: Iterable[bytes], state: GroupState) -> list[SinkRecord]:
        """Does an activation: cells in, records out. This is the function of the lean worker path (lean_worker.py)."""
        (client_id,) = key
        now_ms = state.getCurrentProcessingTimeMs()
        self.drops, self.backlog_bytes, self._keeps_up = None, None, False
        records = sorted_records(cells)  # step 1
        if client_id == UNADDRESSED:
            state.remove()
            return self._unaddressed(records, now_ms)
        events, output = self._events(records, client_id, now_ms)  # step 2
        quarantine = stored_quarantine(state)  # step 3
        if quarantine is None:
            try:
                row, emitted = self._in_session(events, client_id, state, now_ms)  # step 4
            except MemoryError:
                raise  # not this client's fault
            except Exception as error:  # noqa: BLE001 - the dead letter carries the reason
                quarantine = new_quarantine(error, state, now_ms)
                sys.stderr.write(escaped(f"inflight: client {client_id!r} is quarantined: {quarantine.error}\n", keep="\n"))
                settings = self._settings_of(client_id)
                output += self._records(begin(quarantine, client_id=client_id, settings=settings), client_id, now_ms)
        if quarantine is not None:
            row, emitted = self._in_quarantine(quarantine, events, client_id, state, now_ms)
        self.backlog_bytes = backlog_of(row, stored_bytes=stored_queue_bytes(state), keeps_up=self._keeps_up)
        store(row, state)  # step 5
        return output + emitted  # step 6

    def _events(self, records: list[SourceRecord], client_id: str, now_ms: int) -> tuple[list[_Cause], list[SinkRecord]]:
        """Returns the events with their records, and the output for undecodable records.

        `DeadlineReached` is left out: every call of a session looks at its deadlines. The content of a message is read when the
        session asks for it.
        """
        events: list[_Cause] = []
        refused: list[SinkRecord] = []
        for record in records:
            if record.source == MESSAGES:
                events.append((record, message_arrived(record, self._settings, now_ms=now_ms)))
                continue
            try:
                found = to_events(record, self._settings, now_ms=now_ms)
                events += [(record, event) for event in found if not isinstance(event, DeadlineReached)]
            except UnreadableRecord as error:
                refused += self._unreadable(record, client_id, str(error), now_ms)
        return events, refused

    def _session(self, client_id: str, state: GroupState) -> Session:
        settings = self._settings_of(client_id)
        if not state.exists:
            return Session(client_id=client_id, settings=settings)
        version, *_, blob = state.get
        check_version(version)
        return decode_session(bytes(blob), client_id=client_id, settings=settings)

    def _records(self, commands: Iterable[Command], client_id: str, now_ms: int) -> list[SinkRecord]:
        return to_records(commands, client_id=client_id, now_ms=now_ms, settings=self._settings)

    def _in_session(self, events: list[_Cause], client_id: str, state: GroupState, now_ms: int) -> _Outcome:
        """Lets the session handle the events. Raises if it is unusable: undecodable, or failing without any event, too."""
        session = self._session(client_id, state)
        handled = [event for _, event in events if not isinstance(event, QuarantineRequest)]
        requests = len(events) - len(handled)
        try:
            commands = session.handle_all(handled or [DeadlineReached()], now_ms=now_ms)
            row, emitted = row_of(session), self._records(commands, client_id, now_ms)
        except Exception:
            if not handled:
                raise
            if state.exists:  # checks whether it fails without them, too
                alone = self._session(client_id, state)
                self._records(alone.handle(DeadlineReached(), now_ms=now_ms), client_id, now_ms)
                row_of(alone)
            return self._one_by_one(self._session(client_id, state), events, client_id, now_ms)
        emitted += self._records([not_quarantined(now_ms=now_ms)] * requests, client_id, now_ms)
        self.drops, self._keeps_up = drops_of(commands, client_id, is_connected=row.connected), session.keeps_up
        return None if session.is_empty else row, emitted

    def _one_by_one(self, session: Session, events: list[_Cause], client_id: str, now_ms: int) -> _Outcome:
        """Finds the event on which the session fails, makes a dead letter of it and applies the others.

        Such a failure is a fault of ours. Spark would execute the micro-batch again and again, and one record would block the
        messages of all clients. So the record becomes a dead letter with its reason, and the query survives.
        """
        row = row_of(session)
        commands: tuple[Command, ...] = ()
        refused: list[SinkRecord] = []
        for record, event in events:
            if isinstance(event, QuarantineRequest):
                commands += (not_quarantined(now_ms=now_ms),)
                continue
            try:
                done = session.handle(event, now_ms=now_ms)
                self._records(done, client_id, now_ms)
                row = row_of(session)
            except Exception as error:  # noqa: BLE001 - the dead letter carries the reason
                session = decode_session(row.blob, client_id=client_id, settings=self._settings_of(client_id))
                refused += self._unreadable(record, client_id, error_text(error, "the session failed on it"), now_ms)
            else:
                commands += done
        self.drops, self._keeps_up = drops_of(commands, client_id, is_connected=row.connected), session.keeps_up
        return None if session.is_empty else row, refused + self._records(commands, client_id, now_ms)

    def _in_quarantine(
        self, quarantine: Quarantine, events: list[_Cause], client_id: str, state: GroupState, now_ms: int
    ) -> _Outcome:
        """Applies the events in order. Those after a restore or a drop go to the resulting session."""
        settings = self._settings_of(client_id)
        output: list[SinkRecord] = []
        for number, (record, event) in enumerate(events, start=1):
            match event:
                case RestoreRequested():
                    try:
                        check_version(quarantine.row_version)
                        session, commands = restored(quarantine, client_id=client_id, settings=settings, now_ms=now_ms)
                        emitted = self._records(commands, client_id, now_ms)
                        row, rest = self._one_by_one(session, events[number:], client_id, now_ms)
                    except Exception as error:  # noqa: BLE001 - the ledger carries the reason
                        quarantine, commands = not_restored(quarantine, error_text(error), now_ms=now_ms)
                        output += self._records(commands, client_id, now_ms)
                    else:
                        return row, output + emitted + rest
                case DropRequested():
                    try:
                        check_version(quarantine.row_version)
                        commands = dropped(quarantine, client_id=client_id, settings=settings, now_ms=now_ms)
                        emitted = self._records(commands, client_id, now_ms)
                    except Exception:  # noqa: BLE001 - the quarantine has reported the reason
                        commands = given_up(quarantine, client_id=client_id, settings=settings, now_ms=now_ms)
                        emitted = self._records(commands, client_id, now_ms)
                    session = session_after(quarantine, client_id=client_id, settings=settings)
                    row, rest = self._one_by_one(session, events[number:], client_id, now_ms)
                    return row, output + emitted + rest
                case _:
                    partitions = self._settings.commands_partitions
                    try:
                        if isinstance(event, MessageArrived):
                            event = event.read()
                        quarantine, commands = receive(
                            quarantine, event, client_id=client_id, now_ms=now_ms, commands_partitions=partitions
                        )
                        output += self._records(commands, client_id, now_ms)
                    except Exception as error:  # noqa: BLE001 - the dead letter carries the reason
                        output += self._unreadable(record, client_id, error_text(error, "the client is quarantined"), now_ms)
        return quarantined_row(quarantine, state), output

    def _unaddressed(self, records: list[SourceRecord], now_ms: int) -> list[SinkRecord]:
        """Returns dead letters for records whose key is no client id."""
        output: list[SinkRecord] = []
        for record in records:
            too_large = fault_of_record(record, self._settings)
            recipients = sum(header.key.startswith(RECIPIENT_PREFIX) for header in record.headers)
            max_client_id_bytes = self._settings.limits.max_client_id_bytes
            fault = too_large or fault_of_key(record.key, recipients=recipients, max_client_id_bytes=max_client_id_bytes)
            if record.source == EVENTS:
                output += self._unreadable(record, UNADDRESSED, fault, now_ms)
            else:
                # Reading the headers gives the dead letter all that is known of the message.
                message = message_in(record, self._settings, now_ms=now_ms)
                output += self._refused(record, message, UNADDRESSED, fault, now_ms)
        return output

    def _unreadable(self, record: SourceRecord, client_id: str, detail: str, now_ms: int) -> list[SinkRecord]:
        return self._refused(record, unread_message(record, self._settings, now_ms=now_ms), client_id, detail, now_ms)

    def _refused(self, record: SourceRecord, message: Message, client_id: str, detail: str, now_ms: int) -> list[SinkRecord]:
        """Returns the output for a record that never reaches a session."""
        refuse = refuse_event if record.source == EVENTS else refuse_message
        return to_records(
            refuse(message, client_id=client_id, detail=detail, now_ms=now_ms),
            client_id=client_id,
            now_ms=now_ms,
            settings=self._settings,
            extra_headers=tuple(source_headers(source_topic(record, self._settings), record.key)),
        )


class TaskOperator:
    """The state operator in one task.

    Args:
        deadlines: Gets those of the called sessions; None = nobody asks for them.
        drops: Gets what these sessions drop; None = nobody asks for it.
        backlogs: Gets the large queues of these sessions; None = nobody asks for them.
        counts: Gets the counts of what these sessions write; None = nobody asks for them.
    """

    def __init__(
        self,
        operator: SessionOperator,
        deadlines: Accumulator[Reports] | None = None,
        drops: DropsAccumulator | None = None,
        backlogs: BacklogsAccumulator | None = None,
        counts: CountsAccumulator | None = None,
    ) -> None:
        self.operator = operator
        self._deadlines = deadlines
        self._drops = drops
        self._backlogs = backlogs
        self._counts = counts

    def __call__(self, key: tuple[str, ...], frames: Frames, state: GroupState) -> Frames:
        return frames_of(self.activate(key, cells_of(frames), state))

    def activate(self, key: tuple[str, ...], cells: Iterable[bytes], state: GroupState) -> list[SinkRecord]:
        """Does an activation, and reports it."""
        (client_id,) = key
        output = self.operator.activate(key, cells, state)
        if self._deadlines is not None and client_id != UNADDRESSED:
            self._deadlines.add({client_id: report_of(StateRow(*state.get) if state.exists else None)})
        if self._drops is not None and self.operator.drops is not None:
            self._drops.add(self.operator.drops)
        if self._backlogs is not None and self.operator.backlog_bytes is not None:
            self._backlogs.add({client_id: self.operator.backlog_bytes})
        if self._counts is not None:
            self._counts.add(counts_of(output, self.operator.topics))
        return output


def operator_in_worker(
    settings: PipelineSettings,
    deadlines: Accumulator[Reports] | None = None,
    drops: DropsAccumulator | None = None,
    backlogs: BacklogsAccumulator | None = None,
    counts: CountsAccumulator | None = None,
) -> TaskOperator:
    """Makes the operator of one task.

    Args:
        deadlines, drops, backlogs, counts: See TaskOperator.
    """
    operator = TaskOperator(_operator_of_process(settings), deadlines, drops, backlogs, counts)
    if settings.lean_worker:
        use_lean_worker(operator.activate, value_column=RECORD_COLUMN, row_format=SinkRows())
    return operator


@lru_cache(maxsize=4)
def _operator_of_process(settings: PipelineSettings) -> SessionOperator:
    """Makes the operator of this worker process, and tunes its garbage collector.

    Every activation makes some hundred objects that live for a millisecond. With Python's defaults a tenth of the time goes into
    traversing the objects of the modules.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG_OBJECTS, 10, 10)
    return SessionOperator(settings)
