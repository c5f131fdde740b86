"""Our own files in a checkpoint that is not on a local path, by Hadoop. On one: tests/unit/streaming/spark_internals."""

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from streaming.spark_internals.checkpoint import CheckpointFiles, HadoopFileSystem


@pytest.mark.parametrize("folder", [None, "folder"])
def test_a_file_is_whole_also_after_a_write_that_was_killed(spark: SparkSession, tmp_path: Path, folder: str | None) -> None:
    location = f"file:{tmp_path}/checkpoint"
    files = CheckpointFiles(spark, location, folder)
    files._system = HadoopFileSystem(spark, location)
    assert (files.names(), files.last_batch()) == ([], None)
    files.write("name", b"old")
    (tmp_path / "checkpoint" / (folder or "") / ".name.new").write_bytes(b"ne")  # killed in the middle
    (tmp_path / "checkpoint" / (folder or "") / "..name.new.crc").unlink(missing_ok=True)
    assert files.read("name") == b"old"
    files.write("name", b"new\x00\xff")
    assert (files.names(), files.read("name"), files.read("other")) == (["name"], b"new\x00\xff", None)
    files.delete("name")
    assert files.names() == []
