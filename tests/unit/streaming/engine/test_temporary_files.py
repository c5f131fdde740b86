import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from streaming.engine.temporary_files import remove_abandoned, temporary_directory
from tests.support.waiting import wait_until

_HOLD = """
import sys
from streaming.engine.temporary_files import temporary_directory
directory = temporary_directory(sys.argv[1])
(directory / "librocksdbjni.so").write_bytes(b"x")
print(directory, flush=True)
sys.stdin.read()
"""

pytestmark = pytest.mark.processes


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


@contextmanager
def engine(checkpoint: str) -> Iterator[tuple["subprocess.Popen[str]", Path]]:
    process = subprocess.Popen(
        [sys.executable, "-c", _HOLD, checkpoint], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        yield process, Path(process.stdout.readline().strip())
    finally:
        process.kill()
        process.communicate()


def test_what_a_killed_engine_left_goes_at_the_next_start(temporary: Path) -> None:
    with engine("/a/checkpoint") as (process, directory):
        process.kill()
        process.wait()
        assert (directory / "librocksdbjni.so").exists()
        remove_abandoned("/another/checkpoint")
        assert directory.exists()
        remove_abandoned("/a/checkpoint")
    assert list(temporary.iterdir()) == []


def test_what_a_living_engine_uses_stays() -> None:
    with engine("/a/checkpoint") as (_, directory):
        remove_abandoned("/a/checkpoint")
        assert (directory / "librocksdbjni.so").exists()


def test_what_a_jvm_without_its_engine_uses_stays() -> None:
    with engine("/a/checkpoint") as (process, directory):
        process.kill()
        process.wait()
        jvm = subprocess.Popen([sys.executable, "-c", "input()", f"-Djava.io.tmpdir={directory}"], stdin=subprocess.PIPE)
        command_line = Path(f"/proc/{jvm.pid}/cmdline")
        wait_until(lambda: b"java.io.tmpdir" in command_line.read_bytes(), "the process runs")
        remove_abandoned("/a/checkpoint")
        assert directory.exists()
        jvm.communicate(b"\n")
        remove_abandoned("/a/checkpoint")
        assert not directory.exists()


def test_a_clean_exit_leaves_nothing(temporary: Path) -> None:
    with engine("/a/checkpoint") as (process, directory):
        assert directory.exists()
        process.communicate("")
    assert list(temporary.iterdir()) == []


def test_files_of_others_with_such_a_name_stay(temporary: Path) -> None:
    mine = temporary_directory("/a/checkpoint")
    link, file = mine.with_name(f"{mine.name}-link"), mine.with_name(f"{mine.name}-file")
    link.symlink_to("/")
    file.write_bytes(b"")
    remove_abandoned("/a/checkpoint")
    assert link.is_symlink()
    assert file.exists()
    assert mine.exists(), "this process runs"
    assert mine == temporary_directory("/a/checkpoint")
    assert mine.stat().st_mode & 0o777 == 0o700, "others cannot put files there"
    assert mine.parent == temporary
