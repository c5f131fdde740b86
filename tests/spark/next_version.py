"""The function of tests/spark/test_newer_events.py: Spark's workers import it by the name of this module."""

from typing import Any

import msgspec
from pyspark.sql.streaming.state import GroupState

from state.records.record import NEWER_MARK, VERSION_BYTE
from streaming.engine.operator.cells import EVENTS, Frames, cells_of, decode_source_record
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.session_operator import SessionOperator
from streaming.engine.operator.sink_columns import frames_of

NEXT_VERSION_BYTE = b"\x06"
_NEXT = NEXT_VERSION_BYTE + NEWER_MARK


class NextVersion:
    """The session operator of a version that reads events of version 6, which here are those of version 1 under another name."""

    def __init__(self, settings: PipelineSettings) -> None:
        self.settings = settings
        self.operator = SessionOperator(settings)

    def __reduce__(self) -> tuple[Any, ...]:
        return NextVersion, (self.settings,)

    def __call__(self, key: tuple[str], frames: Frames, state: GroupState) -> Frames:
        return frames_of(self.operator.activate(key, map(_read, cells_of(frames)), state))


def next_version(encoded: bytes) -> bytes:
    """Returns an event as the next version encodes it."""
    return _NEXT + encoded.removeprefix(VERSION_BYTE)


def _read(cell: bytes) -> bytes:
    record = decode_source_record(cell)
    if record.source != EVENTS or record.value is None or not record.value.startswith(_NEXT):
        return cell
    return msgspec.json.encode(msgspec.structs.replace(record, value=VERSION_BYTE + record.value.removeprefix(_NEXT)))
