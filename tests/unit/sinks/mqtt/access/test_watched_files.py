import os
from pathlib import Path

from sinks.mqtt.access.watched_files import WatchedFiles


def test_a_change_counts_when_it_is_the_same_in_two_looks(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("a", encoding="utf-8")
    files = WatchedFiles((str(path), ""))
    assert not files.changed()
    path.write_text("ab", encoding="utf-8")
    assert not files.changed()
    path.write_text("abc", encoding="utf-8")
    assert not files.changed()
    assert files.changed()
    assert not files.changed()


def test_the_same_size_at_another_time_is_a_change(tmp_path: Path) -> None:
    path = tmp_path / "users"
    path.write_text("a", encoding="utf-8")
    files = WatchedFiles((str(path),))
    os.utime(path, ns=(1, 1))
    assert [files.changed(), files.changed()] == [False, True]


def test_created_and_deleted_files_count_as_changed(tmp_path: Path) -> None:
    path = tmp_path / "users"
    files = WatchedFiles((str(path),))
    path.write_text("a", encoding="utf-8")
    assert [files.changed(), files.changed()] == [False, True]
    path.unlink()
    assert [files.changed(), files.changed()] == [False, True]
