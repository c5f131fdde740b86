"""Our own files in a checkpoint, on a real file system."""

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from streaming.spark_internals.checkpoint import CheckpointFiles, PlannedBatch

pytestmark = [pytest.mark.spark, pytest.mark.timeout(120)]


@pytest.mark.parametrize("folder", [None, "folder"])
def test_a_file_is_whole_also_after_a_write_that_was_killed(spark: SparkSession, tmp_path: Path, folder: str | None) -> None:
    location = tmp_path / "checkpoint"
    files = CheckpointFiles(spark, str(location), folder)
    assert (files.names(), files.last_batch()) == ([], None)
    files.write("name", b"old")
    (location / (folder or "") / ".name.new").write_bytes(b"ne")  # killed in the middle
    assert files.read("name") == b"old"
    files.write("name", b"new\x00\xff")
    assert (files.names(), files.read("name")) == (["name"], b"new\x00\xff")
    assert files.path() in files.path("name")
    files.delete("name")
    assert files.names() == []


class KilledBeforeRename:
    """A file system of Hadoop."""

    def __init__(self, files: Any) -> None:
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def rename(self, old: Any, new: Any) -> bool:
        raise KeyboardInterrupt


def test_a_file_that_is_written_again_is_there_at_every_moment(spark: SparkSession, tmp_path: Path) -> None:
    CheckpointFiles(spark, str(tmp_path)).write("name", b"old")
    killed = CheckpointFiles(spark, str(tmp_path))
    killed._files = KilledBeforeRename(killed._files)
    with pytest.raises(KeyboardInterrupt):
        killed.write("name", b"new")
    files = CheckpointFiles(spark, str(tmp_path))
    assert files.read("name") == b"old"
    files.write("name", b"newer")
    assert (files.read("name"), [path.name for path in tmp_path.iterdir()]) == (b"newer", ["name"])


def test_a_file_with_a_checksum_of_an_older_version_can_be_replaced(spark: SparkSession, tmp_path: Path) -> None:
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path(str(tmp_path / "name"))
    with_checksums = path.getFileSystem(spark._jsc.hadoopConfiguration())
    stream = with_checksums.create(path, True)
    stream.write(bytearray(b"old"))
    stream.close()
    checksum = tmp_path / ".name.crc"
    data = checksum.read_bytes()
    files = CheckpointFiles(spark, str(tmp_path))
    files.write("name", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["name"]
    checksum.write_bytes(data)  # killed after the file was renamed
    assert (files.names(), files.read("name")) == (["name"], b"new")


def test_the_last_micro_batch_is_the_checkpoints_for_every_folder(spark: SparkSession, tmp_path: Path) -> None:
    for name in ("offsets/9", "offsets/10", "commits/9"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("v1")
    for folder in (None, "folder"):
        assert CheckpointFiles(spark, str(tmp_path), folder).last_batch() == PlannedBatch(10, is_committed=False)
    (tmp_path / "commits/10").write_text("v1")
    assert CheckpointFiles(spark, str(tmp_path)).last_batch() == PlannedBatch(10, is_committed=True)
