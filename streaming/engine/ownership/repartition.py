"""Divides the sessions of a stopped engine into another number of state partitions, within their checkpoint.

Spark does it (`StreamingCheckpointManager.repartition`, new in 4.2): it adds a micro-batch to the checkpoint that reads and
writes no records, and has all sessions with their timers in the new number of partitions. The offsets, the id of the checkpoint
and the recorded settings stay as they are, so the engine goes on where it was, and sends nothing twice.

Steps:
1. start Spark, take the lock of the checkpoint, and see that no engine is at work elsewhere;
2. see that the last micro-batch is committed: one that has to be executed again needs the old partitions;
3. leave a mark in the checkpoint, by which an engine does not start on half of the work;
4. let Spark work; begun again after a kill, it goes on with the same number;
5. take the mark away.
"""

from collections.abc import Callable
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from streaming.config.settings import Settings
from streaming.engine.errors import CannotRepartition
from streaming.engine.lifecycle.sessions_query import sessions_checkpoint
from streaming.engine.lifecycle.spark import start_spark
from streaming.engine.ownership.checkpoint import Division, lock_checkpoint, recorded_state_partitions
from streaming.engine.ownership.engine_group import await_no_engine
from streaming.engine.spark_session import SparkJars, is_local_path
from streaming.spark_internals.checkpoint_files import CheckpointFiles, HadoopFiles

_LOCK_TIMEOUT_S: Final = 10.0


def repartition(settings: Settings, state_partitions: int, *, jars: SparkJars | None) -> None:
    """Divides them into `state_partitions`. jars: None under spark-submit, which brings them.

    Raises CannotRepartition, CheckpointInUse, EngineRuns, KafkaUnreachable (only where the checkpoint is not on a local path).
    """
    location = sessions_checkpoint(settings)
    spark = start_spark(settings, jars)  # 1
    try:
        lock = lock_checkpoint(spark, location, timeout_s=_LOCK_TIMEOUT_S)
        if not is_local_path(location):
            await_no_engine(settings)
        files = HadoopFiles(spark, location)
        divide(files, state_partitions, lambda: _let_spark_work(spark, location, state_partitions))
        del lock
    finally:
        spark.stop()


def divide(files: CheckpointFiles, state_partitions: int, work: Callable[[], None]) -> None:
    """Steps 2 to 5. files: of the checkpoint. work: Spark's part. Raises CannotRepartition."""
    last, recorded = files.last_batch(), recorded_state_partitions(files)
    if last is None or recorded is None:
        raise CannotRepartition(f"there are no sessions in {files.path()}: set engine.state_partitions, and start the engine")
    if (division := Division.unfinished(files)) is not None:
        if division.state_partitions != state_partitions:
            raise CannotRepartition(
                f"{files.path()} is being divided into {division.state_partitions} state partitions: finish that first"
            )
    elif recorded == state_partitions:
        raise CannotRepartition(f"{files.path()} has {recorded} state partitions already")
    elif not last.is_committed:  # 2
        raise CannotRepartition(
            f"micro-batch {last.batch_id} of {files.path()} has to be executed again: start the engine once more, with "
            f"engine.state_partitions = {recorded}, and stop it when it is ready"
        )
    else:
        division = Division(state_partitions)
        division.begin(files)  # 3
    if recorded != state_partitions or not last.is_committed:
        try:
            work()  # 4
        except CannotRepartition:
            if recorded_state_partitions(files) != state_partitions:  # Spark has not begun
                division.end(files)
            raise
    division.end(files)  # 5


def _let_spark_work(spark: SparkSession, location: str, state_partitions: int) -> None:
    try:
        _ = spark.streams.active  # makes Spark's coordinator of state stores, which a session without queries lacks
        spark._streamingCheckpointManager.repartition(location, state_partitions)
    except (PySparkException, Py4JError) as error:
        raise CannotRepartition(
            f"Spark could not divide the sessions in {location}: {error}\nNothing is lost: run the same command again. If it "
            "fails each time, put the copy of the checkpoint back"
        ) from error
