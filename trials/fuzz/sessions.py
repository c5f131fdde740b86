"""A client of the state operator, without a JVM: records in, records out, and the state in between."""

from typing import Any, Final

import msgspec
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from pyspark.sql.types import StructType

from state.events import DeadlineReached
from state.records.events import encode_event
from state.records.record import Header, SinkRecord
from state.settings import SessionSettings
from streaming.engine.operator.cells import EVENTS, SourceRecord
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.session_operator import SessionOperator
from streaming.engine.operator.state_row import STATE_ROW_VERSION

SETTINGS: Final = PipelineSettings(commands_partitions=4, session=SessionSettings(routing=True), routing=True)
CLIENT_ID: Final = "c"
_BEGIN_MS: Final = 1_700_000_000_000
_STEP_MS: Final = 1_000
_STATE_BYTES: Final = 1 << 20
_SESSIONS: Final = 200
"""Activations of one; then a new one begins."""


class FuzzedSession:
    """Raises AssertionError when the client is quarantined."""

    def __init__(self) -> None:
        self.now_ms = _BEGIN_MS
        self._operator = SessionOperator(SETTINGS)
        self._state: tuple[Any, ...] | None = None
        self._offset = 0
        self._activations = 0
        self._cells: list[bytes] = []

    def tell(self, source: int, value: bytes | None, headers: tuple[Header, ...] = (), recipient: bytes | None = None) -> None:
        """A record for the next activation."""
        self._offset += 1
        record = SourceRecord(
            source=source,
            partition=0,
            offset=self._offset,
            timestamp_ms=self.now_ms,
            headers=headers,
            value=value,
            recipient=recipient,
        )
        self._cells.append(msgspec.json.encode(record))

    def activate(self, key: str = CLIENT_ID) -> list[SinkRecord]:
        """Activates the session with the records of `tell`; as the driver calls it if there are none."""
        self._activations += 1
        if self._activations % _SESSIONS == 0:
            self._state = None
        self.now_ms += _STEP_MS
        if not self._cells:
            self.tell(EVENTS, encode_event(DeadlineReached()))
        cells, self._cells = self._cells, []
        state = GroupState(
            optionalValue=self._state,  # type: ignore[arg-type]
            batchProcessingTimeMs=self.now_ms,
            eventTimeWatermarkMs=-1,
            timeoutConf=GroupStateTimeout.NoTimeout,
            hasTimedOut=False,
            watermarkPresent=False,
            defined=self._state is not None,
            updated=False,
            removed=False,
            timeoutTimestamp=-1,
            keyAsUnsafe=b"",
            valueSchema=StructType(),
        )
        answer = self._operator.activate((key,), cells, state)
        self._state = tuple(state.get) if state.exists else None
        if self._state is not None:
            version, *_, blob = self._state
            assert version == STATE_ROW_VERSION, f"quarantined: {answer}"
            assert len(blob) < _STATE_BYTES, "the session grows"
        return answer
