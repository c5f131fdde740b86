from pathlib import Path

import pytest

from state.errors import InflightError
from streaming.config.settings import Settings, load_settings
from streaming.engine.errors import DiskFull, EngineFenced, QueryFailed
from streaming.engine.watching import full_disk
from streaming.engine.watching.full_disk import free_disk_of, is_full, naming_full_disks

NO_SPACE = "java.io.IOException: No space left on device\n\tat java.base/java.io.FileOutputStream.writeBytes(Native Method)"


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load_settings(None, [f"engine.data_dir={tmp_path}"])


def test_the_disk_of_a_missing_checkpoint_is_that_of_its_parent(tmp_path: Path) -> None:
    free = free_disk_of(str(tmp_path / "not" / "yet"))()
    assert free is not None
    assert free > 0
    assert free_disk_of(f"file://{tmp_path}")() is not None
    assert free_disk_of("s3a://bucket/checkpoint")() is None


def test_a_disk_counts_as_full_before_its_last_byte_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not is_full(str(tmp_path))
    monkeypatch.setattr(full_disk, "free_disk_of", lambda location: lambda: full_disk.FULL_BYTES - 1)
    assert is_full(str(tmp_path))
    monkeypatch.setattr(full_disk, "free_disk_of", lambda location: lambda: None)
    assert not is_full("s3a://bucket/checkpoint")


@pytest.mark.parametrize("error", [QueryFailed(NO_SPACE), OSError(28, "No space left on device")])
@pytest.mark.promise("full-disk")
def test_an_error_of_a_full_disk_names_the_directory(settings: Settings, error: Exception) -> None:
    with pytest.raises(DiskFull) as raised, naming_full_disks(settings):
        raise error
    assert "\n" not in str(raised.value)
    assert f"for the checkpoint in {settings.checkpoint_location}" in str(raised.value)
    assert "Make room there: nothing is lost" in str(raised.value)
    assert raised.value.__cause__ is error


def test_a_full_disk_of_the_checkpoint_explains_any_death_of_the_query(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(full_disk, "is_full", lambda location: location == settings.checkpoint_location)
    with pytest.raises(DiskFull), naming_full_disks(settings):
        raise QueryFailed("RocksDB: IO error")
    with pytest.raises(EngineFenced), naming_full_disks(settings):
        raise EngineFenced("another one")


@pytest.mark.parametrize("error", [QueryFailed("a bug"), OSError("no such file"), InflightError("No space left on device")])
def test_other_errors_pass_unchanged(settings: Settings, error: Exception) -> None:
    with pytest.raises(type(error)) as raised, naming_full_disks(settings):
        raise error
    assert raised.value is error
