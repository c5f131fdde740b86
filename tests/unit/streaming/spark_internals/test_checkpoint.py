"""streaming.spark_internals.checkpoint on a local path, which needs no Spark. Elsewhere: tests/spark/test_checkpoint_files.py."""

import subprocess
import sys
from pathlib import Path

import pytest

from streaming.spark_internals.checkpoint import CheckpointFiles, PlannedBatch, hold_local_checkpoint, moved_line
from streaming.spark_internals.locations import local_path


@pytest.mark.parametrize("folder", [None, "folder"])
def test_a_file_is_whole_also_after_a_write_that_was_killed(tmp_path: Path, folder: str | None) -> None:
    location = tmp_path / "checkpoint"
    files = CheckpointFiles(None, str(location), folder)
    assert (files.names(), files.last_batch()) == ([], None)
    files.write("name", b"old")
    (location / (folder or "") / ".name.new").write_bytes(b"ne")  # killed in the middle
    assert files.read("name") == b"old"
    files.write("name", b"new\x00\xff")
    assert (files.names(), files.read("name")) == (["name"], b"new\x00\xff")
    assert files.path() in files.path("name")
    files.delete("name")
    assert (files.names(), files.read("name")) == ([], None)


def test_a_file_that_is_written_again_is_there_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = CheckpointFiles(None, f"file:{tmp_path}")
    files.write("name", b"old")

    def killed(self: Path, target: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Path, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            files.write("name", b"new")
    assert files.read("name") == b"old"
    files.write("name", b"newer")
    assert (files.read("name"), [path.name for path in tmp_path.iterdir()]) == (b"newer", ["name"])


def test_a_checksum_of_an_older_version_goes_with_its_file(tmp_path: Path) -> None:
    (tmp_path / ".name.crc").write_bytes(b"crc\0of another content")
    files = CheckpointFiles(None, str(tmp_path))
    assert files.names() == []
    files.write("name", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["name"]


def test_the_last_micro_batch_is_the_checkpoints_for_every_folder(tmp_path: Path) -> None:
    for name in ("offsets/9", "offsets/10", "commits/9"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("v1")
    for folder in (None, "folder"):
        assert CheckpointFiles(None, str(tmp_path), folder).last_batch() == PlannedBatch(10, is_committed=False)
    (tmp_path / "commits/10").write_text("v1")
    assert CheckpointFiles(None, str(tmp_path)).last_batch() == PlannedBatch(10, is_committed=True)


@pytest.mark.parametrize("name", ["plain", "with space", "100%25", "a#b?c"])
def test_a_local_location_is_the_path_that_it_names(tmp_path: Path, name: str) -> None:
    assert local_path(str(tmp_path / name)) == tmp_path / name


@pytest.mark.processes
def test_a_checkpoint_that_another_process_uses_is_not_read(tmp_path: Path) -> None:
    with hold_local_checkpoint(str(tmp_path / "none"), timeout_s=0):
        assert not (tmp_path / "none").exists()
    code = "import fcntl, sys; f = open(sys.argv[1], 'ab'); fcntl.lockf(f, fcntl.LOCK_EX); print('held', flush=True); input()"
    command = [sys.executable, "-c", code, str(tmp_path / "inflight.lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdin is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(TimeoutError, match="not free within 0 s"), hold_local_checkpoint(str(tmp_path), timeout_s=0):
            raise AssertionError("it is held")
        told: list[str] = []
        waited = hold_local_checkpoint(str(tmp_path), timeout_s=1.3, on_wait=lambda: told.append("waits"))
        with pytest.raises(TimeoutError, match="not free within 1 s"), waited:
            raise AssertionError("it is held")
        assert told == ["waits"], "once, before it is given up"
        other.stdin.close()
    with hold_local_checkpoint(str(tmp_path), timeout_s=0):
        pass


LINE = '{"in.events":{"0":5,"1":6}}'


@pytest.mark.parametrize(
    ("line", "moved"),
    [
        (LINE, '{"in.events":{"0":5,"1":9}}'),
        ('{"in.messages":{"0":5}}', '{"in.messages":{"0":5}}'),
        ('{"batchWatermarkMs":0, "conf":{"a":"b"}}', '{"batchWatermarkMs":0, "conf":{"a":"b"}}'),
        ("v1", "v1"),
        ("-", "-"),
    ],
)
def test_only_the_named_partitions_of_a_source_move(line: str, moved: str) -> None:
    assert moved_line(line, {"in.events": {1: 9}}) == moved


def test_no_partition_of_a_recreated_topic_keeps_its_offset() -> None:
    line = '{"m":{"0":5,"1":6,"2":7}}'
    assert moved_line(line, {"m": {0: 0, 1: 3}}, {"m"}) == '{"m":{"0":0,"1":3}}'
    assert moved_line(line, {"m": {0: 0}}, {"e"}) == '{"m":{"0":0,"1":6,"2":7}}'
