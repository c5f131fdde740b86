"""The engine: it reads any part of the two topics in a micro-batch, and executes a micro-batch again that was not committed."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import NamedTuple

import msgspec

from state.commands import AcceptConnection, ClearRoute, Command, SendReceipt, SetRoute
from state.errors import ProtocolViolation
from state.events import DeadlineReached, Event
from state.model import Position
from state.records.events import completed, decode_events
from state.records.messages import message_event
from state.records.record import accepted_at, position
from state.session import Session
from state.session_codec import decode_session, encode_session
from state.settings import RecordLimits, SessionSettings
from tests.properties.fast_path.account import Account
from tests.properties.fast_path.device import Device
from tests.properties.fast_path.gateways import Gateways
from tests.properties.fast_path.kafka import Kafka, Record
from tests.properties.fast_path.steps import CLIENT, Shared, Step


class MicroBatch(NamedTuple):
    """events, messages: how many it reads. Executed again, it is the same."""

    events: int
    messages: int
    now_ms: int
    settings: SessionSettings


class Engine:
    """settings: of the micro-batches that come. deadline_ms: when the session wants to be called, None = when something happens.

    Between two micro-batches there is nothing of the session but its blob.
    """

    def __init__(
        self, shared: Shared, kafka: Kafka, account: Account, gateways: Gateways, device: Device, client_id: str = CLIENT
    ) -> None:
        self._shared, self._kafka, self._account, self._gateways, self._device = shared, kafka, account, gateways, device
        self.settings = shared.scenario.session
        self._client_id = client_id
        self.deadline_ms: int | None = None
        self._blob: bytes | None = None
        self._events_read = self._messages_read = 0
        self._uncommitted: MicroBatch | None = None
        self.may_read_messages: Callable[[], bool] = lambda: True

    # --- what can happen ------------------------------------------------------------------------------------------------------

    def next_steps(self) -> Iterator[Step]:
        uncommitted = self._uncommitted
        if uncommitted is not None:
            yield Step(30, "the micro-batch is executed again", lambda: self._commit(uncommitted))
            return
        yield from self._reading_steps()
        if self.deadline_ms is not None:
            yield Step(1, "time passes until the next timer", self.timer)
        yield Step(2, "a second passes", self._second)
        if self._shared.scenario.switches:
            yield Step(1, "the fast path is switched", self._switch)
        if self._shared.scenario.recreates and self._shared.faults_left:
            yield Step(3, "the messages topic is recreated", self._recreate_messages)

    def _reading_steps(self) -> Iterator[Step]:
        unread = self._all_unread()
        events, messages = unread.events, unread.messages
        for read in {(events, messages), (min(1, events), 0), (events, 0), (0, messages), (0, min(1, messages))}:
            if read == (0, 0) or not self._keeps_up(*read):
                continue
            batch, name = unread._replace(events=read[0], messages=read[1]), f"micro-batch {read[0]} {read[1]}"
            weight = self._shared.scenario.message_reads if batch.messages else 6
            yield Step(weight, name, lambda batch=batch: self._commit(batch))
            if self._shared.faults_left:
                yield Step(1, f"{name}, not committed", lambda batch=batch: self._fail(batch))

    def _keeps_up(self, events: int, messages: int) -> bool:
        """Returns False if a micro-batch would read a message before an event that is older, or before the router, and the
        scenario rules that out."""
        if not self._shared.scenario.continues or not messages:
            return True
        newest = self._kafka.messages[self._messages_read + messages - 1]
        return self.may_read_messages() and newest.events_before <= self._events_read + events

    def repeats(self) -> bool:
        """Executes a micro-batch again, which comes before anything else. False: there is none."""
        if self._uncommitted is None:
            return False
        self._commit(self._uncommitted)
        return True

    def goes_on(self) -> bool:
        """Reads everything that there is. False: there is nothing."""
        unread = self._all_unread()
        if not (unread.events or unread.messages):
            return False
        self._commit(unread)
        return True

    def timer(self) -> None:
        """Time passes until the deadline, which must be one."""
        assert self.deadline_ms is not None
        self._shared.now_ms = max(self._shared.now_ms, self.deadline_ms)
        events = self._all_unread().events if self._shared.scenario.continues else 0
        self._commit(MicroBatch(events, 0, self._shared.now_ms, self.settings))

    def _second(self) -> None:
        self._shared.now_ms += 1_000

    def _switch(self) -> None:
        self.settings = replace(self.settings, fast_path=not self.settings.fast_path)

    def _recreate_messages(self) -> None:
        """The engine starts again with the loss accepted."""
        self._shared.faults_left -= 1
        self._kafka.recreate_messages(self._messages_read)
        self._account.lost |= {record.name for record in self._kafka.lost}
        self.settings = replace(self.settings, messages_generation=self._kafka.generation)

    # --- micro-batches --------------------------------------------------------------------------------------------------------

    def _all_unread(self) -> MicroBatch:
        events, messages = len(self._kafka.events) - self._events_read, len(self._kafka.messages) - self._messages_read
        return MicroBatch(events, messages, self._shared.now_ms, self.settings)

    def _fail(self, batch: MicroBatch) -> None:
        """Executes a micro-batch that is not committed; its records stay. A receipt that is written twice counts once."""
        self._shared.faults_left -= 1
        self._uncommitted = batch
        self._write(self._execute(batch)[0], committed=False)

    def _commit(self, batch: MicroBatch) -> None:
        commands, self._blob = self._execute(batch)
        self.deadline_ms = None if self._blob is None else self._session(batch.settings).next_deadline_ms()
        self._events_read += batch.events
        self._messages_read += batch.messages
        self._uncommitted = None
        self._write(commands, committed=True)
        self._account.check(self._session(self.settings), self._kafka.messages[: self._messages_read])

    def _session(self, settings: SessionSettings) -> Session:
        if self._blob is None:
            return Session(client_id=self._client_id, settings=settings)
        return decode_session(self._blob, client_id=self._client_id, settings=settings)

    def _execute(self, batch: MicroBatch) -> tuple[tuple[Command, ...], bytes | None]:
        """Executes the micro-batch twice, with the same result. Returns the commands and the new blob."""
        happened = self._happened(batch)
        if self._blob is None and not happened:
            return (), None
        results = []
        for _ in range(2):
            session = self._session(batch.settings)
            try:
                commands = session.handle_all(happened or [DeadlineReached()], now_ms=batch.now_ms)
            except ProtocolViolation as violation:
                raise AssertionError(f"the device keeps to the protocol: {violation.reason}") from violation
            results.append((commands, None if session.is_empty else encode_session(session)))
        assert results[0] == results[1], "executed again, the micro-batch gives something else"
        return results[0]

    def _happened(self, batch: MicroBatch) -> list[Event]:
        happened: list[Event] = []
        for offset in range(self._events_read, self._events_read + batch.events):
            for event in decode_events(self._kafka.events[offset]):
                happened.append(completed(event, topic="events", partition=0, offset=offset, accepted_ms=batch.now_ms))
        for record in self._kafka.messages[self._messages_read : self._messages_read + batch.messages]:
            if record.name:
                happened.append(_message(record, batch.now_ms))
        return happened

    # --- what they write ------------------------------------------------------------------------------------------------------

    def _write(self, commands: tuple[Command, ...], *, committed: bool) -> None:
        for command in commands:
            match command:
                case SendReceipt():
                    if committed:
                        self._account.ended(command.receipt)
                case AcceptConnection(session_present=False):
                    self._device.session_began(command.connection_id)
                case SetRoute():
                    self._kafka.routes.append(command.connection_id)
                case ClearRoute():
                    self._kafka.routes.append(None)
                case _:
                    pass
        self._gateways.command(commands)


def _message(record: Record, now_ms: int) -> Event:
    event = message_event(
        record.headers,
        record.value,
        accepted_ms=accepted_at(record.timestamp_ms, now_ms=now_ms),
        default_message_id=position("messages", record.partition, record.offset),
        limits=RecordLimits(),
    )
    return msgspec.structs.replace(event, position=Position(record.partition, record.offset))
