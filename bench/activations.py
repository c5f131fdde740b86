"""Measures the Python part of the engine for messages of the fast path, in this process, without Spark and Kafka.

    python -m bench.activations                        # a row for each workload: µs of processor time for a message
    python -m bench.activations --profile one          # where the time of a workload goes

A message is a record of `inflight.messages`, its FastSent and its PUBACK, in records of `inflight.events` as gateways write them.
What is counted: cells → events → session → records → Arrow columns, and the state row. A digest of all records is printed, too: a
change that should only be faster must leave it as it is.

Workloads: `one`, a client with 5,000 routed messages in each micro-batch; `named`, the same with messages that name the client;
`many`, 500 clients with 10 routed messages each.
"""

import argparse
import base64
import cProfile
import hashlib
import json
import pstats
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final, NamedTuple

from pyspark.sql.streaming.state import GroupStateTimeout
from pyspark.sql.types import StructType
from rich.console import Console
from rich.table import Table

from state.events import Capability, ClientConnected, FastSent, Subscribed
from state.model import MIN_FAST_PACKET_ID, Message, Position, QoS, Routing, Subscription
from state.records.commands import decode_command_batch
from state.records.events import MAX_EVENTS_IN_RECORD, encode_event, encode_puback, joined
from state.records.record import SinkRecord
from state.records.routing import SourceKind, encode_routing, source_number
from state.settings import SessionSettings
from streaming.engine.operator.cells import EVENTS, MESSAGES
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.session_operator import SessionOperator, operator_in_worker
from streaming.engine.operator.sink_columns import SinkRows
from streaming.spark_internals.lean_streams import LeanState

_BEGIN_MS: Final = 1_700_000_000_000
_BATCH_MS: Final = 1_000
_CONNECTION: Final = 1_839_046_313_154_080_066
_SETTINGS: Final = PipelineSettings(commands_partitions=8, routing=True, session=SessionSettings(routing=True), lean_worker=False)
_NO_SCHEMA: Final = StructType()


class Workload(NamedTuple):
    """messages: of each client in a micro-batch. group: FastSent in a record. unacknowledged: at the end of a micro-batch."""

    clients: int
    messages: int
    is_routed: bool
    group: int
    unacknowledged: int


WORKLOADS: Final = {
    "one": Workload(1, 5_000, True, 24, 64),
    "named": Workload(1, 5_000, False, 24, 64),
    "many": Workload(500, 10, True, 4, 2),
}


class Client:
    """A client that is connected all the time, its gateway, and its session."""

    def __init__(self, name: str, workload: Workload, payload_bytes: int) -> None:
        self.name, self._workload, self._payload = name, workload, bytes(payload_bytes)
        self._offset = self._event_offset = 0
        self._packet_id = MIN_FAST_PACKET_ID
        self._unacknowledged: list[bytes] = []
        self._row: tuple[Any, ...] | None = None

    def first_cells(self) -> list[bytes]:
        connected = ClientConnected(
            connection_id=_CONNECTION, commands_partition=0, clean_start=False, capabilities=sum(Capability), lease_id="lease"
        )
        subscription = Subscription(topic_filter="bench/#", qos=QoS.AT_LEAST_ONCE)
        subscribed = Subscribed(connection_id=_CONNECTION, subscriptions=(subscription,), version=1)
        return [self._event_cell([encode_event(event)], False, _BEGIN_MS) for event in (connected, subscribed)]

    def cells(self, at_ms: int) -> list[bytes]:
        """Returns the cells of one micro-batch."""
        cells: list[bytes] = []
        sent: list[bytes] = []
        for _ in range(self._workload.messages):
            cell, fast_sent = self._message(at_ms)
            cells.append(cell)
            sent.append(fast_sent)
            if len(sent) == self._workload.group:
                cells += self._event_cells(sent, at_ms)
                sent = []
        return [*cells, *self._event_cells(sent, at_ms)]

    def activate(self, operator: SessionOperator, cells: Sequence[bytes], now_ms: int) -> list[SinkRecord]:
        state = LeanState(
            optionalValue=self._row,  # type: ignore[arg-type]
            batchProcessingTimeMs=now_ms,
            eventTimeWatermarkMs=-1,
            timeoutConf=GroupStateTimeout.NoTimeout,
            hasTimedOut=False,
            watermarkPresent=False,
            defined=self._row is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=-1,
            keyAsUnsafe=b"",
            valueSchema=_NO_SCHEMA,
        )
        records = operator.activate((self.name,), cells, state)
        self._row = state.get
        return records

    def _message(self, at_ms: int) -> tuple[bytes, bytes]:
        """Returns the cell of the next message, and its FastSent."""
        offset = self._offset
        self._offset += 1
        self._packet_id = self._packet_id + 1 if self._packet_id < 0xFFFF else MIN_FAST_PACKET_ID
        headers = [("mqtt-topic", b"bench/t"), ("mqtt-qos", b"1")]
        routing, message_id = None, f"inflight.messages-0-{offset}"
        if self._workload.is_routed:
            message_id = f"publisher:{_CONNECTION}:{offset}"
            headers.append(("message-id", message_id.encode()))
            source = source_number(SourceKind.UPLINK, 0, "bench")
            routing = Routing(source=source, mark=offset, connection_id=_CONNECTION, version=1, qos=QoS.AT_LEAST_ONCE)
        recipient = {} if routing is None else {"r": _base64(encode_routing(routing))}
        pairs = [{"key": name, "value": _base64(value)} for name, value in headers]
        cell = _cell(MESSAGES, offset, at_ms, h=pairs, v=_base64(self._payload), **recipient)
        message = Message(message_id=message_id, topic="bench/t", payload=self._payload, accepted_ms=at_ms, routing=routing)
        self._unacknowledged.append(encode_puback(_CONNECTION, self._packet_id))
        fast_sent = FastSent(
            connection_id=_CONNECTION,
            position=Position(0, offset),
            previous=offset - 1,
            packet_id=self._packet_id,
            qos=QoS.AT_LEAST_ONCE,
            message=message,
            sent_ms=at_ms,
        )
        return cell, encode_event(fast_sent)

    def _event_cells(self, sent: list[bytes], at_ms: int) -> Iterator[bytes]:
        if sent:
            yield self._event_cell(sent, True, at_ms)
        count = max(0, len(self._unacknowledged) - self._workload.unacknowledged)
        acknowledged, self._unacknowledged = self._unacknowledged[:count], self._unacknowledged[count:]
        for start in range(0, count, MAX_EVENTS_IN_RECORD):
            yield self._event_cell(acknowledged[start : start + MAX_EVENTS_IN_RECORD], False, at_ms)

    def _event_cell(self, values: list[bytes], has_fast_sent: bool, at_ms: int) -> bytes:
        value = joined(values, has_fast_sent=has_fast_sent) if len(values) > 1 else values[0]
        self._event_offset += 1
        return _cell(EVENTS, self._event_offset, at_ms, v=_base64(value))


def measure(workload: Workload, batches: int, payload_bytes: int, profile: cProfile.Profile | None = None) -> tuple[float, str]:
    """Returns the µs of processor time for a message, and the digest of the records."""
    operator = operator_in_worker(_SETTINGS).operator
    clients = [Client(f"client-{number}", workload, payload_bytes) for number in range(workload.clients)]
    for client in clients:
        client.activate(operator, client.first_cells(), _BEGIN_MS)
    digest, cpu_s = hashlib.sha256(), 0.0
    for number in range(1, batches + 1):
        at_ms = _BEGIN_MS + number * _BATCH_MS
        cells = [client.cells(at_ms) for client in clients]
        began_s = time.process_time()
        if profile is not None:
            profile.enable()
        records = [
            record for client, own in zip(clients, cells, strict=True) for record in client.activate(operator, own, at_ms + 500)
        ]
        SinkRows.column(records, len(records))
        if profile is not None:
            profile.disable()
        cpu_s += time.process_time() - began_s
        for record in records:
            digest.update(repr(_without_code(record)).encode())
    return 1e6 * cpu_s / (batches * workload.clients * workload.messages), digest.hexdigest()[:12]


def _without_code(record: SinkRecord) -> object:
    """Returns what a record says, without the version of the code that a batch of commands names."""
    if record.topic != _SETTINGS.topics.commands:
        return record
    return record.partition, decode_command_batch(record.value or b"").commands


def _cell(source: int, offset: int, at_ms: int, **fields: Any) -> bytes:
    return json.dumps({"s": source, "p": 0, "o": offset, "t": at_ms, **fields}, separators=(",", ":")).encode()


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--profile", choices=WORKLOADS)
    parser.add_argument("--batches", type=int, default=6, help="micro-batches of a run")
    parser.add_argument("--runs", type=int, default=5, help="of each workload; the table has the fastest")
    parser.add_argument("--payload", type=int, default=200, metavar="BYTES")
    arguments = parser.parse_args()
    if arguments.profile:
        profile = cProfile.Profile()
        measure(WORKLOADS[arguments.profile], arguments.batches, arguments.payload, profile)
        pstats.Stats(profile).sort_stats("tottime").print_stats(40)
        return
    table = Table("workload", "µs a message", "digest of the records")
    for name, workload in WORKLOADS.items():
        runs = [measure(workload, arguments.batches, arguments.payload) for _ in range(arguments.runs)]
        table.add_row(name, f"{min(cpu_us for cpu_us, _ in runs):.1f}", runs[0][1])
    Console().print(table)


if __name__ == "__main__":
    main()
