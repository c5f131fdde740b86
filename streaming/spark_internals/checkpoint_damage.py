"""Finds damaged files in a checkpoint. Spark starts on most of them and dies later, with words that name no file.

Tried with PySpark 4.2.0 and RocksDB. Checked are the files that the next start of the query reads, and no others:
1. the newest two entries of the offset log, the newest entry of the commit log, and the metadata of query and sources;
2. of each state partition the newest snapshot that is not too new, and the changelogs after it, up to the committed version: the
   state after micro-batch N has version N + 1.

A file is damaged if it is missing, has no content of its kind, or differs from its checksum. On a local path Hadoop writes one
beside each file (`.NAME.crc`: CRC32 of each 512 bytes); without a checksum only the rest is checked. A state of another layout
(another provider, versions with ids) is not judged.
"""

import io
import json
import re
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

from streaming.config.errors import DamagedCheckpoint
from streaming.spark_internals.checkpoint import CheckpointFiles, is_entry, recorded_conf, recorded_state_partitions

_CRC_HEADER: Final = b"crc\0"
_PROVIDER: Final = "spark.sql.streaming.stateStore.providerClass"
_ROCKSDB: Final = "RocksDBStateStoreProvider"
_STATE: Final = "state/0"
"""The query has one operator with state."""
_VERSION_FILE: Final = re.compile(r"(\d+)\.(zip|changelog)")
_OTHER_LAYOUT: Final = re.compile(r"\d+_.*\.(zip|changelog)|.*\.(delta|snapshot)")
_REPARTITION: Final = "inflight.repartition"
_SESSIONS_CURE: Final = (
    "The sessions cannot be continued without it. Check the disk. Then put back the newest copy of the whole checkpoint "
    "(docs/operate/upgrade.md, A copy of the checkpoint): the engine reads again what came after the copy. Without a copy the "
    "sessions and what waits in them are lost: move the checkpoint away, and the next start makes a new one, which begins at the "
    "old one's position"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DamagedFile:
    """A file of a checkpoint that the next start needs and cannot use.

    Attributes:
        name: Within the checkpoint.
        damage: What is wrong with it, for people.
        holds: What it holds, for people.
        cure: What mends this file alone; None = only a copy of the checkpoint does.
    """

    name: str
    damage: str
    holds: str
    cure: str | None = None


def check_damage(files: CheckpointFiles, *, cure: str = _SESSIONS_CURE, has_state: bool = True, thorough: bool = False) -> None:
    """Raises DamagedCheckpoint if the next start needs a damaged file.

    Args:
        cure: What to do unless the files can be mended.
        has_state, thorough: See `damaged_files`.
    """
    found = list(damaged_files(files, has_state=has_state, thorough=thorough))
    if not found:
        return
    lines = "\n".join(f"  {files.path(file.name)}: {file.damage}. It holds {file.holds}" for file in found)
    cures = [file.cure for file in found if file.cure is not None]
    what = "To mend it:\n" + "\n".join(f"  {one}" for one in cures) if len(cures) == len(found) else cure
    raise DamagedCheckpoint(f"the checkpoint {files.path()} is damaged, and was not changed:\n{lines}\n{what}")


def damaged_files(files: CheckpointFiles, *, has_state: bool = True, thorough: bool = False) -> Iterator[DamagedFile]:
    """Yields the damaged files that the next start needs.

    Args:
        has_state: The query keeps state.
        thorough: Reads the files of snapshots, too, which may be large.
    """
    planned, committed = _numbers(files, "offsets"), _numbers(files, "commits")
    newest, done = max(planned, default=-1), max(committed, default=-1)
    if newest < done or (newest < 0 and files.names("state")):
        what = f"the entries of micro-batches up to {done}" if done >= 0 else "all entries"
        name = f"offsets/{done}" if done >= 0 else "offsets"
        yield DamagedFile(name=name, damage=f"missing, with {what}" if newest < 0 else "missing", holds=_offsets_of(done))
        return
    for number in range(max(newest - 1, 0), newest + 1):
        if damage := _damage(files, f"offsets/{number}", is_entry):
            yield DamagedFile(name=f"offsets/{number}", damage=damage, holds=_offsets_of(number))
            if number == newest:
                return
    if done >= 0 and (damage := _damage(files, f"commits/{done}", lambda data: data.startswith(b"v"))):
        again = f"micro-batch {done} is executed once more, with the same output, and nothing is lost"
        cure = f"remove it, and .{done}.crc beside it: {again}"
        yield DamagedFile(name=f"commits/{done}", damage=damage, holds=f"the mark that micro-batch {done} is complete", cure=cure)
    yield from _damaged_metadata(files)
    if newest >= 0 and has_state:
        yield from _damaged_state(files, version=newest + 1 if newest == done else newest, thorough=thorough)


def _damaged_metadata(files: CheckpointFiles) -> Iterator[DamagedFile]:
    checks: list[tuple[str, Callable[[bytes], bool], str]] = [("metadata", _is_json, "the id of the query")]
    checks += [(f"sources/{source}/0", bool, "where the query began") for source in files.names("sources")]
    checks.append((_REPARTITION, bytes.isdigit, "into how many state partitions the sessions were being divided"))
    for name, is_whole, holds in checks:
        if files.read(name) is not None and (damage := _damage(files, name, is_whole)):
            yield DamagedFile(name=name, damage=damage, holds=holds)


def _damaged_state(files: CheckpointFiles, *, version: int, thorough: bool) -> Iterator[DamagedFile]:
    partitions = recorded_state_partitions(files)
    if version == 0 or partitions is None or not str(recorded_conf(files).get(_PROVIDER, "")).endswith(_ROCKSDB):
        return
    names = {number: files.names(f"{_STATE}/{number}") for number in range(partitions)}
    if any(_OTHER_LAYOUT.fullmatch(name) for found in names.values() for name in found):
        return
    if not any(names.values()):
        yield DamagedFile(name="state", damage="missing", holds="all sessions, their queues and timers")
        return
    for partition, found in names.items():
        yield from _damaged_partition(files, partition, found, version, thorough=thorough)


def _damaged_partition(
    files: CheckpointFiles, partition: int, names: list[str], version: int, *, thorough: bool
) -> Iterator[DamagedFile]:
    """Looks for a snapshot with all changelogs after it; the newest is the one that Spark reads."""
    folder = f"{_STATE}/{partition}"
    if not names:
        holds = f"the sessions of state partition {partition}"
        yield DamagedFile(name=folder, damage="missing", holds=holds)
        return
    versions = {(int(match[1]), match[2]) for name in names if (match := _VERSION_FILE.fullmatch(name))}
    snapshots = sorted((number for number, kind in versions if kind == "zip" and number <= version), reverse=True)
    spoilt: list[DamagedFile] = []
    for passed, base in enumerate([*snapshots, 0]):
        found = list(_damaged_chain(files, folder, base, version, thorough=thorough))
        spoilt = spoilt or found
        if not found:
            removed = " and ".join(f"{folder}/{number}.zip" for number in snapshots[:passed])
            cure = f"remove {removed}: the same sessions are in an older snapshot and its changelogs, and nothing is lost"
            yield from (replace(file, cure=cure) for file in spoilt)
            return
        if any(file.name.endswith(".changelog") for file in found):
            break  # an older snapshot needs the same changelogs
    yield from spoilt


def _damaged_chain(files: CheckpointFiles, folder: str, base: int, version: int, *, thorough: bool) -> Iterator[DamagedFile]:
    """Yields what is damaged of a snapshot and the changelogs after it.

    Args:
        base: The version of the snapshot; 0 = no snapshot.
    """
    partition = folder.rpartition("/")[2]
    if base:
        holds = f"the sessions of state partition {partition} after micro-batch {base - 1}"
        if damage := _damage(files, f"{folder}/{base}.zip", lambda data: _snapshot_files(data) is not None):
            yield DamagedFile(name=f"{folder}/{base}.zip", damage=damage, holds=holds)
            return
        for name, size in _snapshot_files(files.read(f"{folder}/{base}.zip") or b"") or ():
            path = f"{folder}/SSTs/{name}"
            if damage := _damage_of_table(files, path, size, thorough=thorough):
                yield DamagedFile(name=path, damage=damage, holds=holds)
    for number in range(base + 1, version + 1):
        name = f"{folder}/{number}.changelog"
        if damage := _damage(files, name, bool):
            holds = f"the changes of micro-batch {number - 1} to the sessions of state partition {partition}"
            yield DamagedFile(name=name, damage=damage, holds=holds)


def _snapshot_files(data: bytes) -> list[tuple[str, int]] | None:
    """Returns names and sizes of RocksDB's tables in a snapshot; None if it is no snapshot."""
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            described: Any = json.loads(archive.read("metadata").partition(b"\n")[2])
        return [(file["dfsSstFileName"], file["sizeBytes"]) for file in described["sstFiles"]]
    except (zipfile.BadZipFile, zlib.error, KeyError, TypeError, ValueError, EOFError):
        return None


def _damage_of_table(files: CheckpointFiles, name: str, size: int, *, thorough: bool) -> str | None:
    found = files.size(name)
    if found is None:
        return "missing"
    if found != size:
        return f"has {found} of {size} bytes"
    return _damage(files, name, bool) if thorough else None


def _damage(files: CheckpointFiles, name: str, is_whole: Callable[[bytes], bool]) -> str | None:
    """Returns what is wrong with a file, for people; None = nothing."""
    data = files.read(name)
    if data is None:
        return "missing"
    if not data:
        return "empty"
    if (differs := _difference(data, files.read(_checksum_of(name)))) is not None:
        return differs
    return None if is_whole(data) else "unreadable"


def _difference(data: bytes, checksums: bytes | None) -> str | None:
    """Compares with Hadoop's checksums. Returns None if there are none."""
    if checksums is None or not checksums.startswith(_CRC_HEADER) or len(checksums) < 8:
        return None
    (size,) = struct.unpack(">i", checksums[4:8])
    if size <= 0:
        return None
    found = b"".join(struct.pack(">I", zlib.crc32(data[start : start + size])) for start in range(0, len(data), size))
    written = checksums[8:]
    if found == written:
        return None
    return f"cut after {len(data)} bytes" if len(found) < len(written) else "not what was written (its checksum differs)"


def _checksum_of(name: str) -> str:
    folder, _, file = name.rpartition("/")
    return f"{folder}/.{file}.crc" if folder else f".{file}.crc"


def _numbers(files: CheckpointFiles, folder: str) -> list[int]:
    return [int(name) for name in files.names(folder) if name.isdigit()]


def _offsets_of(number: int) -> str:
    return f"the offsets up to which micro-batch {number} reads" if number >= 0 else "up to where the topics were read"


def _is_json(data: bytes) -> bool:
    try:
        return isinstance(json.loads(data), dict)
    except ValueError:
        return False
