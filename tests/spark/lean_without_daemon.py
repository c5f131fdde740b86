"""A query on the lean path in a Spark of its own: `python -m tests.spark.lean_without_daemon SPARK_OPTION DIRECTORY`.

Reads DIRECTORY/in, one line one record, counts the lines that are equal, and prints the counts as JSON.
"""

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout

from inflight.local.spark_jars import spark_jars
from state.records.record import SinkRecord
from streaming.engine.operator.sink_columns import SINK_SCHEMA, SinkRows
from streaming.engine.spark_options import SparkSettings
from streaming.engine.spark_session import spark_session
from streaming.spark_internals.lean_worker import use_lean_worker


class Counting:
    def __reduce__(self) -> tuple[Any, ...]:
        from tests.spark.lean_without_daemon import counting

        return counting, ()

    def __call__(self, key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        raise AssertionError("the stock path")


def counting() -> Counting:
    def count(key: tuple[str, ...], cells: Iterable[bytes], state: GroupState) -> list[SinkRecord]:
        state.update((sum(1 for _ in cells),))
        return [SinkRecord("counts", b"", b"%s %d" % (key[0].encode(), state.get[0]))]

    assert use_lean_worker(count, value_column=1, row_format=SinkRows())
    return Counting()


def main() -> None:
    option, directory = sys.argv[1], Path(sys.argv[2])
    name, value = option.split("=")
    spark = spark_session(
        SparkSettings(
            checkpoint_location=str(directory), log_file=directory / "spark.log", master="local[1]", extra={name: value}
        ),
        spark_jars(),
    )
    lines = spark.readStream.text(str(directory / "in"))
    counted = (
        lines.select(F.col("value"), F.col("value").cast("binary").alias("record"))
        .groupBy("value")
        .applyInPandasWithState(
            Counting(),  # type: ignore[arg-type]
            outputStructType=SINK_SCHEMA,
            stateStructType="count long",
            outputMode="append",
            timeoutConf=GroupStateTimeout.NoTimeout,
        )
    )
    query = (
        counted.select(F.col("value").cast("string"))
        .writeStream.format("memory")
        .queryName("counts")
        .outputMode("append")
        .option("checkpointLocation", str(directory / "checkpoint"))
        .start()
    )
    query.processAllAvailable()
    print(json.dumps([row[0] for row in spark.table("counts").collect()]), flush=True)
    query.stop()
    spark.stop()


if __name__ == "__main__":
    main()
