"""The engine's half of one client: the fast path's, with messages that name their recipients and records for matchers."""

from collections import deque
from functools import partial

import msgspec

from state.commands import (
    AnnounceSubscriptions,
    Command,
    EndSubscriptions,
    ForwardPublication,
    RecordTransition,
    ReturnToGroup,
    Transition,
)
from state.events import Event
from state.model import Position
from state.records.events import completed, decode_events
from state.records.messages import message_event
from state.records.publications import returned_to_group_record
from state.records.record import SinkRecord, accepted_at, position
from state.records.subscriptions import subscriptions_record
from state.records.uplink import uplink_record
from state.settings import RecordLimits
from tests.properties.fast_path.engine import Engine, MicroBatch
from tests.properties.fast_path.gateways import Gateways
from tests.properties.fast_path.kafka import PARTITION
from tests.properties.fast_path.steps import Shared
from tests.properties.routing.account import Account
from tests.properties.routing.device import RoutingDevice
from tests.properties.routing.log import ClientLog, Kafka, Logged
from tests.properties.routing.scenario import ROUTING


class RoutingEngine(Engine):
    """Executes the micro-batches of one client. Clients are independent of each other, which allows more than Spark does."""

    def __init__(
        self, shared: Shared, kafka: Kafka, log: ClientLog, account: Account, gateways: Gateways, device: RoutingDevice
    ) -> None:
        super().__init__(shared, log, account, gateways, device, log.client_id)
        self._routed_log, self._subscribers, self._routed_client_log = kafka, account, log
        self._now_ms = 0

    def _commit(self, batch: MicroBatch) -> None:
        super()._commit(batch)
        self._shared.now_ms += 1  # each micro-batch has a time of its own

    def _happened(self, batch: MicroBatch) -> list[Event]:
        self._now_ms = batch.now_ms
        happened: list[Event] = []
        for offset in range(self._events_read, self._events_read + batch.events):
            logged_ms = min(self._routed_client_log.event_times[offset], batch.now_ms)
            for event in decode_events(self._kafka.events[offset]):
                topic = f"events-{self._client_id}"
                happened.append(completed(event, topic=topic, partition=0, offset=offset, accepted_ms=logged_ms))
        for record in self._routed_log.messages.records[self._messages_read : self._messages_read + batch.messages]:
            if self._client_id in record.recipients:
                happened.append(_message(record, record.recipients[self._client_id], batch.now_ms))
        return happened

    def _write(self, commands: tuple[Command, ...], *, committed: bool) -> None:
        super()._write(commands, committed=committed)
        records = [record for command in commands if (record := self._record_of(command)) is not None]
        writes = deque(partial(self._routed_log.write, record) for record in records)
        if committed or not self._shared.scenario.copies_land_late:
            for write in writes:
                write()
        else:  # by a task that is thought dead, and is not
            for _ in range(len(writes) // 2):
                writes.popleft()()
            self._routed_log.may_land_later(writes)

    def _record_of(self, command: Command) -> SinkRecord | None:
        match command:
            case ForwardPublication():
                return uplink_record(ROUTING.uplink_topic, self._client_id, command, self._now_ms)
            case ReturnToGroup():
                return returned_to_group_record(ROUTING.publications_topic, self._client_id, command)
            case AnnounceSubscriptions() | EndSubscriptions():
                return subscriptions_record(ROUTING.subscriptions_topic, self._client_id, command)
            case RecordTransition(transition=Transition.SESSION_ENDED):
                self._subscribers.session_ended(self._client_id)
            case _:
                pass
        return None


def _message(record: Logged, recipient: bytes, now_ms: int) -> Event:
    event = message_event(
        record.message_headers,
        record.value or b"",
        accepted_ms=accepted_at(record.timestamp, now_ms=now_ms),
        default_message_id=position("messages", PARTITION, record.offset),
        limits=RecordLimits(),
        recipient=recipient,
    )
    return msgspec.structs.replace(event, position=Position(PARTITION, record.offset))
