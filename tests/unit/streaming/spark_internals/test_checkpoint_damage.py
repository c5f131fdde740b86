"""streaming.spark_internals.checkpoint_damage on files as Spark writes them. On an engine's own: tests/spark."""

import io
import json
import shutil
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming.config.errors import DamagedCheckpoint
from streaming.spark_internals.checkpoint import CheckpointFiles
from streaming.spark_internals.checkpoint_damage import DamagedFile, check_damage, damaged_files

CONF = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.stateStore.providerClass": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
NEWEST = 24
"""The last micro-batch: the state has version 25."""


def write(path: Path, data: bytes) -> None:
    """Writes a file and its checksums, as Hadoop does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    sums = b"".join(struct.pack(">I", zlib.crc32(data[start : start + 512])) for start in range(0, len(data), 512))
    (path.parent / f".{path.name}.crc").write_bytes(b"crc\0" + struct.pack(">i", 512) + sums)


def snapshot(table: str, size: int) -> bytes:
    described = {"sstFiles": [{"localFileName": "000008.sst", "dfsSstFileName": table, "sizeBytes": size}], "numKeys": -1}
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("CURRENT", "MANIFEST-000005\n")
        archive.writestr("metadata", f"v1\n{json.dumps(described)}")
    return made.getvalue()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """All micro-batches up to `NEWEST` are committed; each partition has the snapshots 10 and 20."""
    write(tmp_path / "metadata", b'{"id":"490a8a65-39d9-436f-8095-37646f4afc26"}')
    for source in (0, 1):
        write(tmp_path / "sources" / str(source) / "0", b'\0v1\n{"e":{"0":0}}')
    for number in range(NEWEST + 1):
        entry = f'v1\n{json.dumps({"batchWatermarkMs": 0, "conf": CONF})}\n{{"e":{{"0":{number}}}}}\n{{"m":{{"0":{number}}}}}'
        write(tmp_path / "offsets" / str(number), entry.encode())
        write(tmp_path / "commits" / str(number), b'v1\n{"nextBatchWatermarkMs":0}')
    for partition in (0, 1):
        folder = tmp_path / "state" / "0" / str(partition)
        for version in range(1, NEWEST + 2):
            write(folder / f"{version}.changelog", b"changes of a micro-batch" * 40)
        for version in (10, 20):
            write(folder / "SSTs" / f"000008-{version}.sst", b"table" * 200)
            write(folder / f"{version}.zip", snapshot(f"000008-{version}.sst", 1_000))
    return tmp_path


def found(checkpoint: Path, *, thorough: bool = False) -> list[DamagedFile]:
    return list(damaged_files(CheckpointFiles(None, str(checkpoint)), thorough=thorough))


def remove(*names: str) -> Callable[[Path], None]:
    """Damages a checkpoint by removing these."""

    def damage(checkpoint: Path) -> None:
        for path in (checkpoint / name for name in names):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

    return damage


def empty(name: str) -> Callable[[Path], None]:
    return lambda checkpoint: (checkpoint / name).open("wb").close()


def flip(name: str, place: int = 5) -> Callable[[Path], None]:
    """Damages one bit of a byte, so that a text is no UTF-8 any more."""

    def damage(checkpoint: Path) -> None:
        data = bytearray((checkpoint / name).read_bytes())
        data[place] ^= 0x80
        (checkpoint / name).write_bytes(data)

    return damage


def cut(name: str, bytes_left: int) -> Callable[[Path], None]:
    return lambda checkpoint: (checkpoint / name).write_bytes((checkpoint / name).read_bytes()[:bytes_left])


CHANGELOG, ZIP, TABLE = "state/0/1/25.changelog", "state/0/1/20.zip", "state/0/1/SSTs/000008-20.sst"


@pytest.mark.parametrize(
    ("damage", "name", "said"),
    [
        (remove("state"), "state", "missing"),
        (remove("state/0/1"), "state/0/1", "missing"),
        (remove(CHANGELOG), CHANGELOG, "missing"),
        (remove("state/0/1/21.changelog"), "state/0/1/21.changelog", "missing"),
        (empty(CHANGELOG), CHANGELOG, "empty"),
        (cut(CHANGELOG, 100), CHANGELOG, "cut after 100 bytes"),
        (flip(CHANGELOG, 700), CHANGELOG, "not what was written (its checksum differs)"),
        (remove("offsets/24"), "offsets/24", "missing"),
        (remove("offsets/23"), "offsets/23", "missing"),
        (remove("offsets"), "offsets/24", "missing, with the entries of micro-batches up to 24"),
        (remove("offsets", "commits"), "offsets", "missing, with all entries"),
        (empty("offsets/24"), "offsets/24", "empty"),
        (flip("offsets/24"), "offsets/24", "not what was written (its checksum differs)"),
        (empty("commits/24"), "commits/24", "empty"),
        (flip("commits/24"), "commits/24", "not what was written (its checksum differs)"),
        (empty("metadata"), "metadata", "empty"),
        (cut("sources/0/0", 3), "sources/0/0", "not what was written (its checksum differs)"),
        (lambda checkpoint: write(checkpoint / "offsets/24", b"v1\n{}"), "offsets/24", "unreadable"),
        (lambda checkpoint: write(checkpoint / "offsets/24", b"v1\n{\xff}\n{}"), "offsets/24", "unreadable"),
        (lambda checkpoint: write(checkpoint / "inflight.repartition", b"\0\0"), "inflight.repartition", "unreadable"),
    ],
)
@pytest.mark.promise("damaged-checkpoint")
def test_each_damage_names_its_file(checkpoint: Path, damage: Callable[[Path], None], name: str, said: str) -> None:
    damage(checkpoint)
    assert [(file.name, file.damage) for file in found(checkpoint)] == [(name, said)]
    assert found(checkpoint)[0].holds
    with pytest.raises(DamagedCheckpoint) as refused:
        check_damage(CheckpointFiles(None, str(checkpoint)))
    assert f"{checkpoint}/{name}: {said}. It holds " in str(refused.value)
    if not name.startswith("commits"):
        assert "put back the newest copy of the whole checkpoint (docs/operate/upgrade.md, A copy of the checkpoint)" in str(
            refused.value
        )


def test_a_whole_checkpoint_has_no_damage(checkpoint: Path) -> None:
    assert found(checkpoint, thorough=True) == []
    assert found(checkpoint / "new") == []
    remove("commits/24", "state/0/0/25.changelog")(checkpoint)  # killed before the commit
    assert found(checkpoint) == []
    remove("state/0/0/.24.changelog.crc")(checkpoint)  # killed before the checksum was there
    assert found(checkpoint) == []


def test_what_the_next_start_does_not_read_may_be_gone(checkpoint: Path) -> None:
    for version in range(1, 21):
        remove(f"state/0/0/{version}.changelog", f"state/0/1/{version}.changelog")(checkpoint)
    remove("state/0/0/10.zip", "state/0/0/SSTs/000008-10.sst", "sources", "offsets/3", "commits/3")(checkpoint)
    assert found(checkpoint) == []


def test_a_new_snapshot_makes_up_for_a_damaged_changelog(checkpoint: Path) -> None:
    empty(CHANGELOG)(checkpoint)
    write(checkpoint / "state/0/1/25.zip", snapshot("000008-20.sst", 1_000))
    assert found(checkpoint) == []


def test_an_emptied_commit_is_mended_without_a_loss(checkpoint: Path) -> None:
    empty("commits/24")(checkpoint)
    with pytest.raises(DamagedCheckpoint, match=r"(?s)To mend it:\n  remove it, and \.24\.crc beside it: .* nothing is lost$"):
        check_damage(CheckpointFiles(None, str(checkpoint)))
    remove("commits/24", "commits/.24.crc")(checkpoint)
    assert found(checkpoint) == []


@pytest.mark.parametrize("damage", [cut(ZIP, 200), remove(TABLE), cut(TABLE, 10)], ids=["cut", "without a table", "cut table"])
def test_a_damaged_snapshot_is_mended_if_an_older_one_is_whole(checkpoint: Path, damage: Callable[[Path], None]) -> None:
    damage(checkpoint)
    (file,) = found(checkpoint)
    assert file.cure is not None
    assert file.cure.startswith("remove state/0/1/20.zip: the same sessions are in an older snapshot")
    (checkpoint / ZIP).unlink()
    assert found(checkpoint) == []


def test_a_damaged_snapshot_without_an_older_one_needs_a_copy(checkpoint: Path) -> None:
    remove("state/0/1/10.zip", "state/0/1/1.changelog", TABLE)(checkpoint)
    assert [(file.name, file.cure) for file in found(checkpoint)] == [(TABLE, None)]


def test_a_flipped_bit_of_a_table_is_found_by_a_thorough_check(checkpoint: Path) -> None:
    flip(TABLE)(checkpoint)
    assert found(checkpoint) == []
    assert [file.name for file in found(checkpoint, thorough=True)] == [TABLE]


def test_a_state_of_another_layout_is_not_judged(checkpoint: Path) -> None:
    remove("state/0/0/25.changelog", "state/0/1/25.changelog")(checkpoint)
    write(checkpoint / "state/0/0/25_5ba2.changelog", b"with an id")
    assert found(checkpoint) == []
