"""What must be true of a checkpoint before a query starts on it: nobody else uses it, and its shape is the configured one."""

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Self

from pyspark.sql import SparkSession

from streaming.engine.errors import CheckpointInUse, CheckpointMismatch
from streaming.engine.spark_session import is_local_path
from streaming.spark_internals.checkpoint_files import CheckpointFiles

Offsets = Mapping[str, Mapping[int, int]]
"""By topic and partition: the offset of the first record that was not read."""

_LOCK_TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.05
_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_DIVISION: Final = "inflight.repartition"


def lock_checkpoint(spark: SparkSession, location: str, *, timeout_s: float = _LOCK_TIMEOUT_S) -> Any:
    """Takes the lock of a local checkpoint, waiting for an engine that is just dying. Keep what is returned until the end.

    The JVM takes it, because the JVM writes the checkpoint: it outlives the Python process that is killed by a moment, in which a
    second engine could write the same micro-batch. The lock ends with the JVM. Raises CheckpointInUse. Elsewhere than on a
    local path there is nothing to lock, and None is returned: there the cluster manager has to run one engine only.
    """
    if not is_local_path(location):
        return None
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(location)
    file_system = path.getFileSystem(spark._jsc.hadoopConfiguration())
    file_system.mkdirs(path)
    channel = jvm.java.io.RandomAccessFile(f"{path.toUri().getPath()}/inflight.lock", "rw").getChannel()
    deadline = time.monotonic() + timeout_s
    while (lock := channel.tryLock()) is None:
        if time.monotonic() > deadline:
            raise CheckpointInUse(
                f"another engine has used the checkpoint {location} for {timeout_s:.0f} s: stop it, or give this one another "
                "engine.checkpoint_location"
            )
        time.sleep(_POLL_S)
    return lock


def check_state_partitions(files: CheckpointFiles, configured: int) -> None:
    """Raises CheckpointMismatch when the checkpoint was made with another number of state partitions.

    Spark itself would go on with the old number and say so only in its log. Also raises it when the sessions were being divided
    anew, and that was not finished.
    """
    if (division := Division.unfinished(files)) is not None:
        number = division.state_partitions
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


@dataclass(frozen=True, slots=True)
class Division:
    """A mark in the checkpoint: its sessions are being divided into so many (streaming/engine/ownership/repartition.py)."""

    state_partitions: int

    @classmethod
    def unfinished(cls, files: CheckpointFiles) -> Self | None:
        """The mark that is there."""
        return cls(int(files.read(_DIVISION))) if _DIVISION in files.names() else None

    def begin(self, files: CheckpointFiles) -> None:
        files.write(_DIVISION, str(self.state_partitions).encode())

    def end(self, files: CheckpointFiles) -> None:
        files.delete(_DIVISION)


def recorded_state_partitions(files: CheckpointFiles) -> int | None:
    """The number in the newest entry of the offset log, None for a new checkpoint."""
    lines = newest_offsets(files)
    if lines is None:
        return None
    partitions = json.loads(lines[1]).get("conf", {}).get(_PARTITIONS)
    return None if partitions is None else int(partitions)


def newest_offsets(files: CheckpointFiles) -> list[str] | None:
    """The newest entry of the offset log, None for a new checkpoint.

    Three kinds of lines: the version, the metadata as JSON, the offsets of each source as JSON.
    """
    last = files.last_batch()
    return None if last is None else _entry(files, last.batch_id)


def next_offsets(files: CheckpointFiles) -> Offsets:
    """From where on nothing is committed. Empty for a checkpoint without a committed micro-batch."""
    last = files.last_batch()
    committed = -1 if last is None else last.batch_id - (not last.is_committed)
    return offsets_in(_entry(files, committed)) if committed >= 0 else {}


def offsets_in(entry: list[str] | None) -> dict[str, dict[int, int]]:
    """The offsets of an entry of the offset log."""
    found: dict[str, dict[int, int]] = {}
    for line in (entry or [])[2:]:
        if line.startswith("{"):
            for topic, offsets in json.loads(line).items():
                found[topic] = {int(number): offset for number, offset in offsets.items()}
    return found


def _entry(files: CheckpointFiles, batch_id: int) -> list[str]:
    return files.read(f"offsets/{batch_id}").decode().splitlines()
