"""Repartitions the sessions of a stopped engine: another number of state partitions within the same checkpoint.

Spark does it (`repartition_state`): it adds a micro-batch to the checkpoint that reads and writes no records, and has all
sessions with their timers in the new number of partitions. The offsets, the id of the checkpoint and the recorded settings stay.
So the engine continues where it was, and sends nothing twice.

Steps:
1. Start Spark, take the lock of the checkpoint, and check that no engine runs elsewhere.
2. Check that the last micro-batch is committed: one that has to be executed again needs the old partitions.
3. Write a marker into the checkpoint. With it no engine starts on half of the work.
4. Let Spark work. Begun again after a kill, it continues with the same number.
5. Delete the marker.
"""

from collections.abc import Callable
from typing import Final

from pyspark.sql import SparkSession

from streaming.config.settings import Settings
from streaming.engine.errors import CannotRepartition, CheckpointInUse, CheckpointMismatch
from streaming.engine.ownership.engine_group import await_no_engine
from streaming.engine.spark_options import SparkJars
from streaming.engine.spark_session import start_spark
from streaming.spark_internals.checkpoint import CheckpointFiles, lock_checkpoint, recorded_state_partitions, repartition_state
from streaming.spark_internals.checkpoint_damage import check_damage
from streaming.spark_internals.jvm import SPARK_ERRORS
from streaming.spark_internals.locations import is_local_path

_LOCK_TIMEOUT_S: Final = 10.0
_FILE: Final = "inflight.repartition"
"""The marker of an unfinished repartitioning: into how many state partitions."""


def repartition(settings: Settings, state_partitions: int, *, jars: SparkJars | None) -> None:
    """Repartitions the sessions.

    Args:
        jars: None under spark-submit, which brings them.

    Raises:
        CannotRepartition: The sessions cannot be repartitioned.
        CheckpointInUse: An engine uses the checkpoint.
        DamagedCheckpoint: Files of the checkpoint are missing or damaged.
        EngineRuns, KafkaUnreachable: Only if the checkpoint is not on a local path.
    """
    location = settings.sessions_checkpoint
    spark = start_spark(settings, jars)  # step 1
    try:
        lock = own_checkpoint(spark, location, timeout_s=_LOCK_TIMEOUT_S)
        if not is_local_path(location):
            await_no_engine(settings)
        check_damage(CheckpointFiles(spark, location))
        repartition_checkpoint(
            CheckpointFiles(spark, location), state_partitions, lambda: _let_spark_work(spark, location, state_partitions)
        )
        del lock
    finally:
        spark.stop()


def repartition_checkpoint(files: CheckpointFiles, state_partitions: int, work: Callable[[], None]) -> None:
    """Does steps 2 to 5. Raises CannotRepartition.

    Args:
        work: Spark's part.
    """
    last, recorded = files.last_batch(), recorded_state_partitions(files)
    if last is None or recorded is None:
        raise CannotRepartition(f"there are no sessions in {files.path()}: set engine.state_partitions, and start the engine")
    if (marker := files.read(_FILE)) is not None:
        if int(marker) != state_partitions:
            raise CannotRepartition(f"{files.path()} is being divided into {int(marker)} state partitions: finish that first")
    elif recorded == state_partitions:
        raise CannotRepartition(f"{files.path()} has {recorded} state partitions already")
    elif not last.is_committed:  # step 2
        raise CannotRepartition(
            f"micro-batch {last.batch_id} of {files.path()} has to be executed again: start the engine once more, with "
            f"engine.state_partitions = {recorded}, and stop it when it is ready"
        )
    else:
        files.write(_FILE, str(state_partitions).encode())  # step 3
    if recorded != state_partitions or not last.is_committed:
        try:
            work()  # step 4
        except CannotRepartition:
            if recorded_state_partitions(files) != state_partitions:  # Spark has not begun to repartition
                files.delete(_FILE)
            raise
    files.delete(_FILE)  # step 5


def check_state_partitions(files: CheckpointFiles, configured: int) -> None:
    """Raises CheckpointMismatch if the checkpoint has another number of state partitions, or an unfinished repartitioning.

    Spark itself would continue with the old number and only log that.
    """
    if (marker := files.read(_FILE)) is not None:
        number = int(marker)
        raise CheckpointMismatch(
            f"the sessions in {files.path()} are being divided into {number} state partitions, and that was not finished: run "
            f"`inflight sessions repartition {number}` again"
        )
    recorded = recorded_state_partitions(files)
    if recorded is not None and recorded != configured:
        raise CheckpointMismatch(
            f"the checkpoint {files.path()} was made with engine.state_partitions = {recorded}, the configuration says "
            f"{configured}. Set it to {recorded}, or take the sessions along: `inflight sessions repartition {configured}`"
        )


def own_checkpoint(spark: SparkSession, location: str, *, timeout_s: float = 60.0) -> object:
    """Locks the checkpoint; waits for an engine that is about to exit. Keep the result until the end. Raises CheckpointInUse."""
    try:
        return lock_checkpoint(spark, location, timeout_s=timeout_s)
    except TimeoutError as error:
        raise CheckpointInUse(in_use(location, timeout_s)) from error


def in_use(location: str, waited_s: float) -> str:
    """Returns the text of CheckpointInUse."""
    return (
        f"another engine has used the checkpoint {location} for {waited_s:.0f} s: stop it, or give this one another "
        "engine.checkpoint_location"
    )


def _let_spark_work(spark: SparkSession, location: str, state_partitions: int) -> None:
    try:
        repartition_state(spark, location, state_partitions)
    except SPARK_ERRORS as error:
        raise CannotRepartition(
            f"Spark could not divide the sessions in {location}: {error}\nNothing is lost: run the same command again. If it "
            "fails each time, put the copy of the checkpoint back"
        ) from error
