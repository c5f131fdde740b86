"""Measures what idle sessions cost a micro-batch with one message, with Spark's time-outs and without them.

    python -m bench.idle_sessions                                   # prints a table, writes bench/results/idle_sessions.json
    python -m bench.idle_sessions --sessions 1000,100000,1000000    # a million takes some minutes and 2 GB of disk

With `ProcessingTimeTimeout`, as the engine runs, Spark looks through all sessions in each micro-batch for timers that are due.
With `NoTimeout` it does not. The engine would then have to bring due sessions in as records: see
docs/decisions/0045-lazy-micro-batches.md.

There is no Kafka: the source are files, one for each micro-batch. The first one has all clients, each of the others one. The
operator stores a state of 200 bytes, and a timer that never fires, on the path of the lean worker. So the difference between the
numbers of sessions is Spark's alone.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.state import GroupState, GroupStateTimeout
from rich.console import Console
from rich.table import Table

from inflight.local.spark_jars import spark_jars
from state.records.record import SinkRecord
from streaming.engine.operator.sink_columns import SINK_SCHEMA, SinkRows
from streaming.engine.operator.state_row import STATE_SCHEMA
from streaming.engine.spark_options import NO_OPTIMIZING_COMPILER, SparkSettings
from streaming.engine.spark_session import spark_session
from streaming.spark_internals.lean_worker import use_lean_worker

RESULTS = Path(__file__).parent / "results" / "idle_sessions.json"
TIMEOUTS = (GroupStateTimeout.ProcessingTimeTimeout, GroupStateTimeout.NoTimeout)
_STATE_BYTES = 200
_DAY_MS = 86_400_000
_POLL_S = 0.05


class IdleSession:
    """Stores a state for each client, and says nothing."""

    def __init__(self, has_timer: bool) -> None:
        self._has_timer = has_timer

    def __reduce__(self) -> tuple[Any, ...]:
        return _in_worker, (self._has_timer,)

    def __call__(self, key: tuple[str], frames: Iterator[pd.DataFrame], state: GroupState) -> Iterator[pd.DataFrame]:
        raise NotImplementedError("this PySpark has no lean worker")

    def activate(self, key: tuple[str, ...], cells: Iterable[bytes], state: GroupState) -> list[SinkRecord]:
        list(cells)
        state.update((1, False, 0, 0, 0, None, None, bytes(_STATE_BYTES)))
        if self._has_timer:
            state.setTimeoutDuration(_DAY_MS)
        return []


def _in_worker(has_timer: bool) -> IdleSession:
    made = IdleSession(has_timer)
    use_lean_worker(made.activate, value_column=1, row_format=SinkRows())
    return made


class Idle:
    """A query with so many idle sessions."""

    def __init__(self, spark: SparkSession, directory: Path, timeout: str, within_s: float) -> None:
        self._files = directory / "records"
        self._files.mkdir(parents=True)
        self._count = 0
        self._newest = -1
        """The newest micro-batch that has read a file."""
        self._deadline_s = time.monotonic() + within_s
        clients = spark.readStream.schema("client_id string, record binary").option("maxFilesPerTrigger", 1)
        rows = (
            clients.parquet(str(self._files))
            .groupBy("client_id")
            .applyInPandasWithState(
                IdleSession(timeout != GroupStateTimeout.NoTimeout),  # type: ignore[arg-type]
                outputStructType=SINK_SCHEMA,
                stateStructType=STATE_SCHEMA,
                outputMode="append",
                timeoutConf=timeout,
            )
        )
        writer = rows.writeStream.format("noop").outputMode("append").trigger(processingTime="100 milliseconds")
        self._query: StreamingQuery = writer.option("checkpointLocation", str(directory / "checkpoint")).start()

    def run(self, client_ids: Iterable[str]) -> dict[str, Any]:
        """Runs a micro-batch with a record for each client, and returns its progress. Raises TimeoutError."""
        ids = list(client_ids)
        table = pa.table({"client_id": ids, "record": pa.array([b"x"] * len(ids), pa.binary())})
        hidden = self._files / f".{self._count}.parquet"
        pq.write_table(table, hidden)
        hidden.rename(self._files / f"{self._count}.parquet")
        self._count += 1
        while True:
            for progress in self._query.recentProgress:
                if progress["batchId"] > self._newest and progress["numInputRows"]:
                    self._newest = progress["batchId"]
                    return dict(progress)
            if (error := self._query.exception()) is not None:
                raise RuntimeError(str(error))
            if time.monotonic() > self._deadline_s:
                raise TimeoutError("the micro-batch takes too long; give more time by --within")
            time.sleep(_POLL_S)

    def stop(self) -> None:
        self._query.stop()


def measure(spark: SparkSession, directory: Path, timeout: str, sessions: int, arguments: argparse.Namespace) -> dict[str, float]:
    idle = Idle(spark, directory, timeout, arguments.within)
    try:
        idle.run(f"idle-{number}" for number in range(sessions))
        batches = [idle.run(["watched"]) for _ in range(arguments.batches + 2)][2:]
    finally:
        idle.stop()
    operators = [batch["stateOperators"][0] for batch in batches]
    return {
        "batch_p50_ms": median(batch["durationMs"]["triggerExecution"] for batch in batches),
        "add_batch_p50_ms": median(batch["durationMs"]["addBatch"] for batch in batches),
        "timers_p50_ms": median(operator["allRemovalsTimeMs"] for operator in operators),
        "updates_p50_ms": median(operator["allUpdatesTimeMs"] for operator in operators),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", default="1000,100000", help="numbers of idle sessions, by commas")
    parser.add_argument("--batches", type=int, default=15, help="micro-batches with one message that count")
    parser.add_argument("--within", type=float, default=600, help="seconds for each number of sessions")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="inflight-bench-") as name:
        directory = Path(name)
        settings = SparkSettings(
            checkpoint_location=name, log_file=directory / "spark.log", state_partitions=2, java_options=NO_OPTIMIZING_COMPILER
        )
        spark = spark_session(settings, spark_jars())
        try:
            for sessions in map(int, arguments.sessions.split(",")):
                for timeout in TIMEOUTS:
                    figures = measure(spark, directory / f"{sessions}-{timeout}", timeout, sessions, arguments)
                    results.append({"sessions": sessions, "timeout": timeout} | figures)
                    print(results[-1], flush=True)
        finally:
            spark.stop()
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    table = Table("idle sessions", "timers", "micro-batch, p50, ms", "addBatch, ms", "looking for timers, all tasks, ms")
    for result in results:
        figures = (result[key] for key in ("batch_p50_ms", "add_batch_p50_ms", "timers_p50_ms"))
        table.add_row(f"{result['sessions']:,}", result["timeout"], *(f"{figure:,.0f}" for figure in figures))
    Console().print(table)


if __name__ == "__main__":
    main()
