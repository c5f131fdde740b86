"""Functions of tests/spark/test_lean_worker.py: Spark's workers import them by the name of this module."""

import io
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql.streaming.state import GroupState

from state.records.record import SinkRecord
from streaming.engine.operator.pipeline import PipelineSettings
from streaming.engine.operator.session_operator import SessionOperator
from streaming.engine.operator.sink_columns import SinkRows
from streaming.spark_internals import lean_worker


class LeanOnly:
    """Answers each group with a record that names its process; on the stock path it fails."""

    def __init__(self, topic: str) -> None:
        self.topic = topic

    def __reduce__(self) -> tuple[Any, ...]:
        return _lean_only, (self.topic,)

    def __call__(self, key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        raise AssertionError("the stock path")

    def leanly(self, key: tuple[str, ...], cells: Iterable[bytes], state: GroupState) -> list[SinkRecord]:
        count = sum(1 for _ in cells)
        state.update((1, None, count, None, None, None, None, b"\x00\xff"))
        return [SinkRecord(self.topic, key[0].encode(), b"%d %d" % (count, os.getpid()))]


def _lean_only(topic: str) -> LeanOnly:
    made = LeanOnly(topic)
    assert lean_worker.use_lean_worker(made.leanly, value_column=1, row_format=SinkRows())
    return made


class Failing(LeanOnly):
    def __reduce__(self) -> tuple[Any, ...]:
        return _failing, (self.topic,)

    def leanly(self, key: tuple[str, ...], cells: Iterable[bytes], state: GroupState) -> list[SinkRecord]:
        raise ValueError("the function failed on purpose")


def _failing(topic: str) -> Failing:
    made = Failing(topic)
    assert lean_worker.use_lean_worker(made.leanly, value_column=1, row_format=SinkRows())
    return made


class Captured:
    """A session operator on the stock path that keeps what the JVM sent to its worker."""

    def __init__(self, settings: PipelineSettings, directory: str) -> None:
        self.settings, self.directory = settings, directory

    def __reduce__(self) -> tuple[Any, ...]:
        return _captured, (self.settings, self.directory)

    def __call__(self, key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        raise AssertionError("the worker has another function")


class Tee:
    def __init__(self, file: Any, copy: Any) -> None:
        self.file, self.copy, self.closed = file, copy, False

    def read(self, size: int = -1) -> bytes:
        data = self.file.read(size)
        self.copy.write(data)
        return data


def _captured(settings: PipelineSettings, directory: str) -> SessionOperator:
    operator = SessionOperator(settings)
    task = lean_worker._task_being_read()
    assert task is not None
    serializer = task["ser"]
    stock_load, stock_dump, copy = serializer.load_stream, serializer.dump_stream, io.BytesIO()

    def dump_stream(results: Any, outfile: Any) -> None:
        stock_dump(results, outfile)
        folder = Path(directory)
        number = len(list(folder.glob(f"{os.getpid()}-*.arrow")))
        (folder / f"{os.getpid()}-{number}.arrow").write_bytes(copy.getvalue())
        (folder / "offsets.json").write_text(json.dumps([int(offset) for offset in task["args_offsets"]]))

    serializer.load_stream = lambda infile: stock_load(Tee(infile, copy))
    serializer.dump_stream = dump_stream
    return operator
