"""The state operator without a JVM: GroupState can be built in Python (tests/spark checks its constructor)."""

import base64
import json
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

from state.activation import Activation
from state.events import ClientConnected, DeadlineReached, MessageArrived
from state.records.commands import decode_command_batch
from state.records.events import encode_event
from state.session import Session
from streaming.engine.operator.cells import EVENTS, MESSAGES
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.session_operator import SessionOperator
from streaming.engine.operator.state_row import StateRow

NOW = 1_700_000_000_000
SETTINGS = PipelineSettings(commands_partitions=2)
NO_SCHEMA = StructType()


def cell(source: int, offset: int, value: bytes, *, key: bytes | None = None, **headers: bytes) -> bytes:
    """A record of Kafka as Spark's `to_json` writes it: no nulls, and bytes as base64."""
    pairs = [{"key": name.replace("_", "-"), "value": base64.b64encode(v).decode()} for name, v in headers.items()]
    fields = {"s": source, "p": 0, "o": offset, "t": NOW, "h": pairs, "v": base64.b64encode(value).decode()}
    if key is not None:
        fields["k"] = base64.b64encode(key).decode()
    return json.dumps(fields).encode()


def group_state(
    value: tuple[Any, ...] | None = None,
    *,
    now_ms: int = NOW,
    kind: type[GroupState] = GroupState,
    schema: StructType = NO_SCHEMA,
    timeout: str = GroupStateTimeout.NoTimeout,
) -> GroupState:
    return kind(
        optionalValue=value,  # type: ignore[arg-type]
        batchProcessingTimeMs=now_ms,
        eventTimeWatermarkMs=-1,
        timeoutConf=timeout,
        hasTimedOut=False,
        watermarkPresent=False,
        defined=value is not None,
        updated=False,
        removed=False,
        timeoutTimestamp=-1,
        keyAsUnsafe=b"",
        valueSchema=schema,
    )


class Host:
    """Does what Spark does: keeps the state between activations, and decodes the records that come out."""

    def __init__(self, settings: PipelineSettings = SETTINGS, client_id: str = "c") -> None:
        self.operator = SessionOperator(settings)
        self.client_id = client_id
        self.value: tuple[Any, ...] | None = None
        self.offset = 0

    def cell(self, source: int, value: bytes, *, key: bytes | None = None, **headers: bytes) -> bytes:
        self.offset += 1
        return cell(source, self.offset, value, key=key, **headers)

    def message(self, payload: bytes = b"p", **headers: bytes) -> bytes:
        return self.cell(MESSAGES, payload, **{"mqtt_topic": b"t", **headers})

    def event(self, event: Any) -> bytes:
        return self.cell(EVENTS, encode_event(event))

    def due(self) -> bytes:
        """The record by which the driver calls a session whose deadline has come."""
        return self.event(DeadlineReached())

    @property
    def deadline_ms(self) -> int | None:
        return None if self.value is None else StateRow(*self.value).next_deadline_ms

    def connected(self) -> bytes:
        return self.event(ClientConnected(connection_id=1, commands_partition=1, clean_start=False))

    def run(self, *cells: bytes, now_ms: int = NOW, frames: int = 1) -> list[dict[str, Any]]:
        state = group_state(self.value, now_ms=now_ms)
        chunks = [pd.DataFrame({"client_id": "c", "record": list(cells[number::frames])}) for number in range(frames)]
        out = list(self.operator((self.client_id,), iter(chunks), state))
        self.state = state
        self.value = tuple(state.get) if state.exists else None
        records: list[dict[str, Any]] = [record for frame in out for record in frame.to_dict("records")]
        for record in records:
            record["value"] = record["value"] or b""
            record["headers"] = {header["key"]: header["value"] for header in record["headers"] or ()}
        return records


def of(records: list[dict[str, Any]], topic: str) -> list[dict[str, Any]]:
    return [record for record in records if record["topic"] == f"inflight.{topic}"]


def commands(records: list[dict[str, Any]]) -> list[Any]:
    return [command for record in of(records, "commands") for command in decode_command_batch(record["value"]).commands]


def fail_on(monkeypatch: pytest.MonkeyPatch, is_failing: Callable[[Any], bool]) -> None:
    """Puts a bug into every session that raises for these events."""
    apply = Session._apply

    def failing(self: Session, event: Any, activation: Activation) -> None:
        if is_failing(event):
            raise ZeroDivisionError("a mistake of ours")
        apply(self, event, activation)

    monkeypatch.setattr(Session, "_apply", failing)


def is_poison(event: Any) -> bool:
    read = event.read() if isinstance(event, MessageArrived) else event
    return getattr(getattr(read, "message", None), "payload", b"") == b"poison"
