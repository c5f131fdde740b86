"""Turns the commands of a session into records of Kafka, in one call for all commands of one client in one micro-batch.

| command | record, and its format |
|---|---|
| gateway commands | `commands`, for each partition of Kafka that a gateway reads, in order: state/records/commands.py |
| `ForwardPublication` | `uplink`: state/records/uplink.py; one that no record can carry is a dead letter |
| `ForwardPublication` of a retained will | `retained`, too: state/records/publications.py |
| `SendReceipt` | `receipts`; where the response topic names a client, `messages`, too: state/records/receipts.py |
| `DeadLetter` to `topic:` | that topic: state/records/dead_letters.py |
| `DeadLetter` to `client:` | `events`, under that client's id: state/records/events.py |
| `SetThrottle`, `ClearThrottle` | `throttle`: state/records/throttle.py |
| `SetRoute`, `ClearRoute` | `routes`: state/records/routes.py |
| `AnnounceSubscriptions`, `EndSubscriptions` | `subscriptions`: state/records/subscriptions.py |
| `MarkSession`, `EndSessionMark` | `subscriptions`: state/records/session_marks.py |
| `ReturnToGroup` | `publications`: state/records/publications.py |
| `SetPresence`, `ClearPresence` | `presence`: state/records/presence.py |
| `RecordTransition` | `ledger`, one record for all of them: state/records/ledger.py |

The key of every record is the client id, for another client's record that client's id. The records are a function of the
arguments, so a micro-batch that Spark executes again writes the same records.
"""

from collections.abc import Iterable
from typing import assert_never

from state.commands import (
    AcceptConnection,
    AnnounceSubscriptions,
    ClearPresence,
    ClearRoute,
    ClearThrottle,
    CloseConnection,
    CloseFastPath,
    Command,
    DeadLetter,
    DropAwaitingRel,
    EndSessionMark,
    EndSubscriptions,
    ForwardPublication,
    GatewayCommand,
    MarkSession,
    OpenFastPath,
    RecordTransition,
    ReturnToGroup,
    SendPublish,
    SendPubRel,
    SendReceipt,
    SetPresence,
    SetRoute,
    SetThrottle,
    WithdrawPublish,
)
from state.dead_letters.refused_record import refuse_event
from state.model import ClientId, Message
from state.records.commands import command_records
from state.records.dead_letters import dead_letter_record, record_bytes
from state.records.ledger import LedgerRow, ledger_records, ledger_row
from state.records.presence import presence_record
from state.records.publications import retained_record, returned_to_group_record
from state.records.receipts import receipt_records
from state.records.record import Header, SinkRecord
from state.records.routes import route_record
from state.records.session_marks import mark_record
from state.records.subscriptions import subscriptions_record
from state.records.throttle import throttle_record
from state.records.uplink import uplink_record
from state.settings import RecordLimits
from streaming.engine.operator.code import code_identity
from streaming.engine.operator.pipeline import PipelineSettings


def to_records(
    commands: Iterable[Command],
    *,
    client_id: str,
    now_ms: int,
    settings: PipelineSettings,
    extra_headers: tuple[Header, ...] = (),
) -> list[SinkRecord]:
    """Returns the records for `commands`; those of one topic are in the order of the commands.

    Args:
        extra_headers: Added to every dead letter; they name the origin of a record that belongs to no session.
    """
    topics, limits = settings.topics, settings.limits
    records: list[SinkRecord] = []
    batches: dict[int, list[GatewayCommand]] = {}
    rows: list[LedgerRow] = []
    receipts: list[SendReceipt] = []
    for command in commands:
        match command:
            case RecordTransition():
                rows.append(ledger_row(command, client_id=client_id, batch_ms=now_ms))
            case (
                SendPublish()
                | SendPubRel()
                | AcceptConnection()
                | CloseConnection()
                | DropAwaitingRel()
                | WithdrawPublish()
                | OpenFastPath()
                | CloseFastPath()
            ):
                batches.setdefault(command.partition, []).append(command)
            case SendReceipt():
                receipts.append(command)
            case ForwardPublication():
                record = uplink_record(topics.uplink, client_id, command, now_ms)
                if (size_bytes := record_bytes(record)) <= limits.max_record_bytes:
                    records.append(record)
                    if command.will and command.retain and settings.routing:
                        records.append(retained_record(topics.retained, client_id, command, now_ms))
                else:
                    refused = _refused(command, size_bytes, client_id=client_id, now_ms=now_ms, limits=limits)
                    records += to_records(refused, client_id=client_id, now_ms=now_ms, settings=settings)
            case DeadLetter():
                records.append(
                    dead_letter_record(command, client_id=client_id, topics=topics, limits=limits, extra_headers=extra_headers)
                )
            case SetThrottle() | ClearThrottle():
                records.append(throttle_record(topics.throttle, client_id, command))
            case SetRoute() | ClearRoute():
                records.append(route_record(topics.routes, client_id, command))
            case AnnounceSubscriptions() | EndSubscriptions():
                if settings.routing:
                    records.append(subscriptions_record(topics.subscriptions, client_id, command))
            case MarkSession() | EndSessionMark():
                if settings.routing:
                    records.append(mark_record(topics.subscriptions, client_id, command))
            case ReturnToGroup():
                records.append(returned_to_group_record(topics.publications, client_id, command))
            case SetPresence() | ClearPresence():
                records.append(presence_record(topics.presence, client_id, command))
            case _:
                assert_never(command)
    size, code = limits.max_record_bytes, code_identity() + settings.checkpoint_lineage
    for partition, batch in batches.items():
        if partition >= settings.commands_partitions:
            continue  # the topic was recreated with fewer partitions, so the connection is gone; its messages are sent again
        records += command_records(topics.commands, client_id, partition, batch, max_record_bytes=size, code=code)
    if settings.receipts:
        for sent in receipts:
            records += receipt_records(sent.receipt, sent.response_topic, topics, max_client_id_bytes=limits.max_client_id_bytes)
    if rows and settings.ledger:
        records += ledger_records(topics.ledger, client_id, rows, max_record_bytes=size)
    return records


def _refused(
    command: ForwardPublication, size_bytes: int, *, client_id: ClientId, now_ms: int, limits: RecordLimits
) -> tuple[Command, ...]:
    """Returns the commands for a publication that is from before the limit of records was lowered."""
    message = Message(message_id=command.publication_id, topic=command.topic, payload=command.payload, accepted_ms=now_ms)
    detail = (
        f"the publication of the device needs a record of {size_bytes} bytes, and {limits.max_record_bytes} are allowed now "
        "(engine.max_record_bytes)"
    )
    return refuse_event(message, client_id=client_id, detail=detail, now_ms=now_ms)
