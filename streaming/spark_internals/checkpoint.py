"""Reads and writes a checkpoint of Spark: its lock, its logs of micro-batches, and our own small files beside them.

Tried with PySpark 4.2.0, which writes `offsets/N` before micro-batch N is executed and `commits/N` after it. An entry of the
offset log has three kinds of lines: the version, the metadata as JSON, and the offsets of each source as JSON. Another version
with another layout makes a start fail with KeyError or ValueError, before the query runs. Files on a local path need no JVM, so
they are checked before Spark starts. Others are accessed with Hadoop's FileSystem in the JVM, which knows every file system.
"""

import fcntl
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple, TypeVar

import structlog
from pyspark.sql import SparkSession

from streaming.spark_internals.locations import is_local_path, local_path, location_without_escapes

T = TypeVar("T")
Offsets = Mapping[str, Mapping[int, int]]
"""By topic and partition: the offset of the first record that was not read."""

_PARTITIONS: Final = "spark.sql.shuffle.partitions"
_LOCK_FILE: Final = "inflight.lock"
_LOCK_POLL_S: Final = 0.05
_EXIT_S: Final = 1.0
"""An engine that was stopped has exited by then."""
_log: Final = structlog.get_logger(__name__)


class PlannedBatch(NamedTuple):
    """The micro-batch that was planned last. A committed one is never executed again."""

    batch_id: int
    is_committed: bool


class LoggedBatch(NamedTuple):
    """An entry of the offset log: a micro-batch's time in ms since 1970, and where it ends."""

    batch_ms: int
    ends: Mapping[str, Mapping[int, int]]


class CheckpointFiles:
    """Our files in a checkpoint, on any file system that Hadoop knows. They are written whole or not at all."""

    def __init__(self, spark: SparkSession | None, location: str, folder: str | None = None) -> None:
        """Opens nothing yet.

        Args:
            spark: Needed unless the location is a local path.
            location: The checkpoint.
            folder: A directory in it that holds the files; None = the checkpoint itself.
        """
        self._spark = spark
        self._location = location
        self._folder = location if folder is None else f"{location}/{folder}"
        self._system = LocalFileSystem() if is_local_path(location) else HadoopFileSystem(spark, location)

    def within(self, folder: str) -> "CheckpointFiles":
        """Returns the files of a directory in the same checkpoint."""
        return CheckpointFiles(self._spark, self._location, folder)

    def last_batch(self) -> PlannedBatch | None:
        """Returns None for a checkpoint without micro-batches."""
        planned, committed = (self._newest(f"{self._location}/{log}") for log in ("offsets", "commits"))
        return None if planned < 0 else PlannedBatch(planned, planned <= committed)

    def names(self, folder: str = "") -> list[str]:
        """Returns the names of the files, or those in a directory beside them."""
        return self._system.names(self.path(folder))

    def read(self, name: str) -> bytes | None:
        """Returns None if there is no such file."""
        return self._system.read(self.path(name))

    def decoded(self, name: str, decode: Callable[[bytes], T], *, otherwise: str) -> T | None:
        """Returns what `decode` makes of a file; None if there is none, or `decode` raises ValueError.

        A power failure may leave half of a file. Then the log says what is done `otherwise`.
        """
        data = self.read(name)
        try:
            return None if data is None else decode(data)
        except ValueError as error:
            _log.warning("checkpoint_file_unreadable", file=self.path(name), error=str(error), action=otherwise)
            return None

    def size(self, name: str) -> int | None:
        """Returns the bytes of a file; None if there is none."""
        return self._system.size(self.path(name))

    def write(self, name: str, data: bytes) -> None:
        """Replaces a file of that name. On a local path the old or the new file exists at every moment.

        Elsewhere Hadoop's `rename` does not replace, so a kill just before it leaves no file of that name. That concerns files
        that are written more than once: the number of partitions (Spark's offset log has it too), and settings not yet in force.
        """
        self._system.replace(self._folder, name, data)

    def delete(self, name: str) -> None:
        self._system.delete(self.path(name))

    def path(self, name: str = "") -> str:
        """Returns the path for messages to people; without a name that of the directory."""
        return f"{self._folder}/{name}" if name else self._folder

    def _newest(self, folder: str) -> int:
        return max((int(name) for name in self._system.names(folder) if name.isdigit()), default=-1)


class LocalFileSystem:
    """Files of this machine. Hadoop keeps a checksum in a second file; ours have none, and those of older versions go."""

    def names(self, folder: str) -> list[str]:
        try:
            found = [path.name for path in local_path(folder).iterdir()]
        except (FileNotFoundError, NotADirectoryError):
            return []
        return [name for name in found if not name.endswith(".crc")]

    def read(self, path: str) -> bytes | None:
        try:
            return local_path(path).read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None

    def size(self, path: str) -> int | None:
        file = local_path(path)
        return file.stat().st_size if file.is_file() else None

    def replace(self, folder: str, name: str, data: bytes) -> None:
        directory = local_path(folder)
        directory.mkdir(parents=True, exist_ok=True)
        temporary = directory / f".{name}.new"
        temporary.write_bytes(data)
        temporary.replace(directory / name)
        (directory / f".{name}.crc").unlink(missing_ok=True)

    def delete(self, path: str) -> None:
        local_path(path).unlink(missing_ok=True)


class HadoopFileSystem:
    """Files anywhere else, such as HDFS and object stores."""

    def __init__(self, spark: SparkSession | None, location: str) -> None:
        assert spark is not None, f"{location} needs a JVM"
        self._jvm: Any = spark._jvm
        self._files: Any = self._path(location).getFileSystem(spark._jsc.hadoopConfiguration())

    def names(self, folder: str) -> list[str]:
        path = self._path(folder)
        return [status.getPath().getName() for status in self._files.listStatus(path)] if self._files.exists(path) else []

    def read(self, path: str) -> bytes | None:
        if not self._files.exists(self._path(path)):
            return None
        stream = self._files.open(self._path(path))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def size(self, path: str) -> int | None:
        file = self._path(path)
        return int(self._files.getFileStatus(file).getLen()) if self._files.exists(file) else None

    def replace(self, folder: str, name: str, data: bytes) -> None:
        temporary, final = self._path(f"{folder}/.{name}.new"), self._path(f"{folder}/{name}")
        stream = self._files.create(temporary, True)
        stream.write(bytearray(data))
        stream.close()
        self._files.delete(final, False)
        if not self._files.rename(temporary, final):
            raise OSError(f"{temporary} could not be renamed to {final}")

    def delete(self, path: str) -> None:
        self._files.delete(self._path(path), False)

    def _path(self, location: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(location)


class CheckpointLock:
    """The lock of a local checkpoint, taken by the JVM. The JVM holds it while this object is kept, at most until the JVM exits.

    The JVM takes the lock because the JVM writes the checkpoint. It outlives a killed Python process for a moment, in which a
    second engine could write the same micro-batch. The kernel frees the lock of a dead JVM at once. That of a frozen one stays.

    Args:
        location: A local path. Open a checkpoint once: POSIX drops a lock when any descriptor of the file is closed.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        jvm: Any = spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(location)
        path.getFileSystem(spark._jsc.hadoopConfiguration()).mkdirs(path)
        self._channel: Any = jvm.java.io.RandomAccessFile(f"{path.toUri().getPath()}/{_LOCK_FILE}", "rw").getChannel()
        self._lock: object = None

    def is_taken(self) -> bool:
        """Returns True if this JVM holds the lock now. Tries to take it."""
        if self._lock is None:
            self._lock = self._channel.tryLock()
        return self._lock is not None


def lock_checkpoint(spark: SparkSession, location: str, *, timeout_s: float) -> object:
    """Locks a local checkpoint; waits for the JVM of an engine that is about to exit. Raises TimeoutError.

    Keep the result. A checkpoint that is not on a local path has no lock (None): there the cluster manager has to run one engine
    only.
    """
    if not is_local_path(location):
        return None
    lock = CheckpointLock(spark, location)
    deadline = time.monotonic() + timeout_s
    while not lock.is_taken():
        if time.monotonic() > deadline:
            raise _held_too_long(location, timeout_s)
        time.sleep(_LOCK_POLL_S)
    return lock


@contextmanager
def hold_local_checkpoint(location: str, *, timeout_s: float, on_wait: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Holds the same lock without a JVM, for checks before Spark starts. Raises TimeoutError.

    Java's lock of a file is the same POSIX lock. A checkpoint that does not exist yet has none.

    Args:
        on_wait: Called once if the lock is not free after a second, in which an engine that was stopped exits.
    """
    directory = local_path(location)
    if not directory.is_dir():
        yield
        return
    with (directory / _LOCK_FILE).open("ab") as file:
        began = time.monotonic()
        deadline, has_told = began + timeout_s, False
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except (BlockingIOError, PermissionError) as error:
                if time.monotonic() > deadline:
                    raise _held_too_long(location, timeout_s) from error
                if not has_told and time.monotonic() - began >= _EXIT_S:
                    has_told = True
                    on_wait()
            time.sleep(_LOCK_POLL_S)
        yield


def _held_too_long(location: str, timeout_s: float) -> TimeoutError:
    return TimeoutError(f"the lock of {location} was not free within {timeout_s:.0f} s")


def recorded_state_partitions(files: CheckpointFiles) -> int | None:
    """Returns the number of state partitions of the newest planned micro-batch, None for a new checkpoint."""
    partitions = recorded_conf(files).get(_PARTITIONS)
    return None if partitions is None else int(partitions)


def recorded_conf(files: CheckpointFiles) -> Mapping[str, str]:
    """Returns the Spark settings of the newest planned micro-batch, empty for a new checkpoint."""
    found: Mapping[str, str] = _metadata(files).get("conf", {})
    return found


def newest_batch_ms(files: CheckpointFiles) -> int:
    """Returns the time of the newest planned micro-batch in ms since 1970, 0 for a new checkpoint."""
    return int(_metadata(files).get("batchTimestampMs", 0))


def _metadata(files: CheckpointFiles) -> Mapping[str, Any]:
    last = files.last_batch()
    found: Mapping[str, Any] = {} if last is None else json.loads(_entry(files, last.batch_id)[1])
    return found


def is_entry(data: bytes) -> bool:
    """Returns True if this is an entry of the offset log."""
    try:
        version, metadata, *offsets = data.decode().splitlines()
        is_dict = [isinstance(json.loads(line), dict) for line in (metadata, *offsets) if line != "-"]
    except ValueError:
        return False
    return version.startswith("v") and all(is_dict) and bool(offsets)


def planned_offsets(files: CheckpointFiles) -> dict[str, dict[int, int]]:
    """Returns where the newest planned micro-batch ends, committed or not; empty for a new checkpoint."""
    last = files.last_batch()
    return _logged_offsets(files, -1 if last is None else last.batch_id)


def committed_offsets(files: CheckpointFiles) -> dict[str, dict[int, int]]:
    """Returns where the newest committed micro-batch ends; empty if none is committed."""
    last = files.last_batch()
    return _logged_offsets(files, -1 if last is None else last.batch_id - (not last.is_committed))


def logged_batch(files: CheckpointFiles, batch_id: int) -> LoggedBatch | None:
    """Returns a planned micro-batch; None if Spark has deleted its entry, or there never was one."""
    lines = _entry(files, batch_id)
    if len(lines) < 2:
        return None
    return LoggedBatch(int(json.loads(lines[1])["batchTimestampMs"]), _logged_offsets(files, batch_id))


class LoggedOffsets:
    """The offset log of a stopped query. Raises SPARK_ERRORS, and on another Spark whatever Py4J raises.

    Args:
        location: The checkpoint.
    """

    def __init__(self, spark: SparkSession, location: str) -> None:
        self._spark: Any = spark
        self._location = location
        self._files = CheckpointFiles(spark, location)

    def is_planned(self) -> bool:
        """Returns True if a micro-batch is planned that was not committed: it is executed first when the query starts."""
        last = self._files.last_batch()
        return last is not None and not last.is_committed

    def planned(self) -> Offsets:
        return planned_offsets(self._files)

    def committed(self) -> Offsets:
        return committed_offsets(self._files)

    def move(self, ends: Offsets, recreated: Collection[str] = ()) -> None:
        """Lets the newest planned micro-batch end at these offsets; other partitions keep theirs, except those of `recreated`.

        A committed micro-batch is not executed again, so the next one begins there.
        """
        last = self._files.last_batch()
        assert last is not None
        self._move(last.batch_id, ends, recreated)

    def move_committed(self, ends: Offsets, recreated: Collection[str] = ()) -> None:
        """Does that to the newest committed micro-batch, which must exist. What is planned begins there."""
        last = self._files.last_batch()
        assert last is not None
        self._move(last.batch_id - (not last.is_committed), ends, recreated)

    def _move(self, batch_id: int, ends: Offsets, recreated: Collection[str]) -> None:
        """Spark's own manager writes the file, which replaces it in one step where the file system can, with its checksum."""
        text = "\n".join(moved_line(line, ends, recreated) for line in _entry(self._files, batch_id))
        jvm = self._spark._jvm
        path = jvm.org.apache.hadoop.fs.Path(f"{self._location}/offsets")
        companion = getattr(jvm.org.apache.spark.sql.execution.streaming.checkpointing, "CheckpointFileManager$")
        manager = getattr(companion, "MODULE$").create(path, self._spark._jsparkSession.sessionState().newHadoopConf())
        stream = manager.createAtomic(jvm.org.apache.hadoop.fs.Path(path, str(batch_id)), True)
        stream.write(bytearray(text.encode()))
        stream.close()


def moved_line(line: str, ends: Offsets, recreated: Collection[str] = ()) -> str:
    """Returns a line of an entry of the offset log, with other offsets if it has those of a source.

    Args:
        recreated: Topics whose partitions are other ones, so that none keeps its offset.
    """
    if not line.startswith("{") or not ends.keys() & (found := json.loads(line)).keys():
        return line
    for topic in ends.keys() & found.keys():
        kept = {} if topic in recreated else found[topic]
        found[topic] = kept | {str(number): offset for number, offset in ends[topic].items()}
    return json.dumps(found, separators=(",", ":"))


def parse_offsets(text: str) -> dict[str, dict[int, int]]:
    """Reads the JSON in which Spark's Kafka source writes offsets."""
    return {topic: {int(number): offset for number, offset in by_number.items()} for topic, by_number in json.loads(text).items()}


def _logged_offsets(files: CheckpointFiles, batch_id: int) -> dict[str, dict[int, int]]:
    found: dict[str, dict[int, int]] = {}
    for line in _entry(files, batch_id)[2:] if batch_id >= 0 else ():
        if line.startswith("{"):
            found |= parse_offsets(line)
    return found


def _entry(files: CheckpointFiles, batch_id: int) -> list[str]:
    return (files.read(f"offsets/{batch_id}") or b"").decode().splitlines()


def repartition_state(spark: SparkSession, location: str, state_partitions: int) -> None:
    """Rewrites the state of a stopped query for another number of state partitions. Raises SPARK_ERRORS.

    Spark adds a micro-batch to the checkpoint that reads and writes no records. The offsets and our own files stay. After a kill
    the same call completes the work. Versions before 4.2 have no `StreamingCheckpointManager` and raise AttributeError.
    """
    _ = spark.streams.active  # creates the state store coordinator, which a session without queries lacks
    spark._streamingCheckpointManager.repartition(location_without_escapes(location), state_partitions)
