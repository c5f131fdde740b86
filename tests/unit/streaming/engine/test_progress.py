from pathlib import Path

from streaming.engine.progress import PROGRESS_FILE, BatchProgress, ProgressFile, last_progress, recent_progress


def batches(count: int) -> list[BatchProgress]:
    return [BatchProgress(batch_id=number, started="2026-11-21T10:00:00Z", duration_ms=number) for number in range(count)]


def test_the_recent_ones_are_the_last_of_the_file_oldest_first(tmp_path: Path) -> None:
    assert recent_progress(tmp_path, limit_bytes=1_000) == []
    ProgressFile(tmp_path).append(batches(50))
    assert recent_progress(tmp_path, limit_bytes=1 << 20) == batches(50)
    some = recent_progress(tmp_path, limit_bytes=1_000)
    assert 0 < len(some) < 50
    assert some == batches(50)[-len(some) :]


def test_a_line_that_is_being_written_is_left_out(tmp_path: Path) -> None:
    ProgressFile(tmp_path).append(batches(3))
    with (tmp_path / PROGRESS_FILE).open("ab") as file:
        file.write(b'{"batch_id":3,"star')
    assert recent_progress(tmp_path, limit_bytes=1 << 20) == batches(3)
    assert last_progress(tmp_path) == batches(3)[-1]


def test_a_full_disk_stops_no_engine(tmp_path: Path) -> None:
    (tmp_path / PROGRESS_FILE).symlink_to("/dev/full")
    ProgressFile(tmp_path).append(batches(3))
    (tmp_path / PROGRESS_FILE).unlink()
    ProgressFile(tmp_path).append(batches(4))
    assert last_progress(tmp_path) == batches(4)[-1]
