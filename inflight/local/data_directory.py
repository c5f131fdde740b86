"""Checks and makes the data directory: whether it can be written, and that only its user can read it.

It has the payloads of all messages, so its mode is 0700. A directory that somebody else has filled keeps its mode.
"""

import fcntl
import os
import shutil
import stat
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from inflight.local.errors import DataDirectoryInUse

_MODE: Final = 0o700
_LOCK: Final = "lock"
_LEAST_FREE_BYTES: Final = 4 << 20
"""Repeats a value of streaming/engine/watching/full_disk.py, because that module needs PySpark and gateways do not."""
_LAST_OF_JAVA: Final = "\uffff"
"""Spark's launcher breaks characters that Java stores as two."""
_PARTS: Final = ("kafka", "kafka/data", "logs")


def data_directory_faults(directory: Path) -> Iterator[str]:
    """Yields what is wrong with a data directory, and what to do. Leaves nothing behind."""
    if fault := directory_fault(directory):
        yield fault
        return
    for part in _PARTS:
        if (directory / part).exists() and (fault := directory_fault(directory / part)):
            yield fault


def directory_fault(directory: Path) -> str:
    """Says why a directory cannot be made or written, and what to do; empty if it can. Leaves nothing behind."""
    advice = "give a directory that this user may write"
    text = str(directory)
    if not text.isprintable() or max(text) > _LAST_OF_JAVA:
        return f"{text!a} has control characters or emoji, which Java or terminals break: {advice}, without them"
    directory = directory.absolute()
    try:
        existing = next(path for path in (directory, *directory.parents) if path.exists() or path.is_symlink())
        if not existing.is_dir():
            return f"{existing} is not a directory: {advice}, or move that file away"
        # Only an attempt shows read-only file systems, quotas and the rights of root.
        Path(tempfile.mkdtemp(prefix=".inflight-", dir=existing)).rmdir()
        if shutil.disk_usage(existing).free < _LEAST_FREE_BYTES:
            return f"the disk of {existing} is full: make room there, or {advice}. Nothing that Kafka has confirmed is lost"
    except OSError as error:
        return f"{directory} cannot be written: {error.strerror or error}: {advice}"
    return ""


@contextmanager
def locked(data_dir: Path, *, say: Callable[[str], None]) -> Iterator[None]:
    """Makes the data directory, and holds DATA_DIR/lock. The kernel releases it when the process ends, however it ends.

    Args:
        say: Told a warning, for people.

    Raises:
        DataDirectoryInUse: Another `inflight up` holds it.
    """
    if warning := _make_private(data_dir):
        say(f"warning: {warning}")
    with (data_dir / _LOCK).open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.seek(0)
            raise DataDirectoryInUse(
                f"{data_dir} is in use by another `inflight up` (process {file.read().strip() or 'unknown'}). "
                "Stop that one, or give another --data-dir."
            ) from None
        file.truncate(0)
        file.write(f"{os.getpid()}\n")
        file.flush()
        yield


def is_in_use(data_dir: Path) -> bool:
    """Returns True if an `inflight up` runs on the data directory."""
    try:
        with (data_dir / _LOCK).open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _make_private(directory: Path) -> str:
    """Makes a data directory that only its user can enter. Raises OSError.

    Returns:
        A warning for people: others can read a directory that is not ours alone; empty = nobody else can.
    """
    directory.mkdir(mode=_MODE, parents=True, exist_ok=True)
    status = directory.stat()
    if not status.st_mode & 0o077:
        return ""
    is_ours = status.st_uid == os.geteuid() and not status.st_mode & stat.S_ISVTX
    if is_ours and ((directory / _LOCK).exists() or not any(directory.iterdir())):
        directory.chmod(_MODE)
        return ""
    return (
        f"others can read {directory}, which holds the payloads of messages, and which had other files before: "
        "give a --data-dir of its own, or remove their permissions (chmod 700)"
    )
