"""The Python workers are started before the query needs them, and it uses them."""

import os
from collections.abc import Iterator

import pandas as pd
import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.streaming.state import GroupState

from state.records.record import SinkRecord
from streaming.engine.lifecycle.early_workers import start_workers_early
from streaming.engine.operator.sink_columns import frames_of
from tests.spark.conftest import Pipeline
from tests.support.waiting import DEADLINE_S


def test_the_operator_uses_the_daemon_of_the_early_query(spark: SparkSession, pipeline: Pipeline) -> None:
    """Spark has a daemon for each kind of worker. The early query is of the operator's kind: both workers have one parent."""
    commands = pipeline.settings.topics.commands

    def say_parent(key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        return frames_of([SinkRecord(commands, b"", str(os.getppid()).encode(), partition=0)])

    def parent_of_arrow(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for _ in batches:
            yield pa.RecordBatch.from_pydict({"pid": [os.getppid()]})

    thread = start_workers_early(spark)
    assert thread is not None
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    [early] = spark.range(1, numPartitions=1).mapInArrow(parent_of_arrow, "pid long").collect()
    pipeline.start(say_parent)
    pipeline.connect("c")
    assert [record.value for record in pipeline.read(commands, 1)] == [str(early.pid).encode()]
