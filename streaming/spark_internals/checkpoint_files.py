"""Our own small files in a checkpoint, and how far Spark's are, on whatever file system the checkpoint is."""

from typing import Any, NamedTuple, Protocol

from pyspark.sql import SparkSession

from streaming.engine.spark_session import is_local_path


class LastBatch(NamedTuple):
    """The micro-batch that was planned last. is_committed: it is not executed again."""

    batch_id: int
    is_committed: bool


class CheckpointFiles(Protocol):
    """A directory of files that are written whole or not at all."""

    def last_batch(self) -> LastBatch | None:
        """None for a checkpoint without micro-batches."""

    def names(self) -> list[str]: ...

    def read(self, name: str) -> bytes: ...

    def write(self, name: str, data: bytes) -> None:
        """Replaces a file of that name."""

    def delete(self, name: str) -> None: ...

    def path(self, name: str = "") -> str:
        """For people. Without a name: of the directory."""


class HadoopFiles:
    """CheckpointFiles by Hadoop's FileSystem. location: of the checkpoint; folder: in it, None = the checkpoint itself."""

    def __init__(self, spark: SparkSession, location: str, folder: str | None = None) -> None:
        self._jvm: Any = spark._jvm
        self._location = location
        self._folder = location if folder is None else f"{location}/{folder}"
        self._is_local = is_local_path(location)
        self._files = self._file_system(spark._jsc.hadoopConfiguration())

    def last_batch(self) -> LastBatch | None:
        planned, committed = (self._newest(f"{self._location}/{log}") for log in ("offsets", "commits"))
        return None if planned < 0 else LastBatch(planned, planned <= committed)

    def names(self) -> list[str]:
        return self._names(self._folder)

    def read(self, name: str) -> bytes:
        stream = self._files.open(self._path(self.path(name)))
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def write(self, name: str, data: bytes) -> None:
        """On a local path a file of that name is there at every moment, old or new. Elsewhere Hadoop's `rename` does not replace:
        a kill just before it leaves no file of that name. That can concern what is written more than once: the number of
        partitions of topics (the one in Spark's offset log counts then), and settings that are not in force yet.
        """
        temporary, final = self._path(self.path(f".{name}.new")), self._path(self.path(name))
        stream = self._files.create(temporary, True)
        stream.write(bytearray(data))
        stream.close()
        if not self._is_local:
            self._files.delete(final, False)
        if not self._files.rename(temporary, final):
            raise OSError(f"{temporary} could not be renamed to {final}")

    def delete(self, name: str) -> None:
        self._files.delete(self._path(self.path(name)), False)

    def path(self, name: str = "") -> str:
        return f"{self._folder}/{name}" if name else self._folder

    def _file_system(self, configuration: Any) -> Any:
        """On a local path one of our own, without Hadoop's checksums: these are in a second file, which is renamed after the
        first, so a kill between the two would leave a file that does not fit its checksum.
        """
        path = self._path(self._location)
        if not self._is_local:
            return path.getFileSystem(configuration)
        files = self._jvm.org.apache.hadoop.fs.FileSystem.newInstance(path.toUri(), configuration)
        files.setWriteChecksum(False)
        files.setVerifyChecksum(False)
        return files

    def _path(self, location: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(location)

    def _names(self, folder: str) -> list[str]:
        path = self._path(folder)
        if not self._files.exists(path):
            return []
        return [status.getPath().getName() for status in self._files.listStatus(path)]

    def _newest(self, folder: str) -> int:
        return max((int(name) for name in self._names(folder) if name.isdigit()), default=-1)
