"""Gives each JVM of Spark a temporary directory of its own, and removes those whose processes were killed.

Spark and its libraries unpack 19 MB per start. A clean exit deletes them, SIGKILL cannot. So the next start on the same
checkpoint removes what an earlier one has left, after two checks: nobody holds the lock, and no running process has the directory
in its command line. A JVM may outlive the Python process that held the lock.
"""

import atexit
import fcntl
import hashlib
import os
import shutil
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final

from streaming.spark_internals.jvm_launch import await_jvm_exit

_LOCK: Final = "in-use"
_NEW: Final = "new-"
_EXIT_TIMEOUT_S: Final = 10.0
_PROCESSES: Final = Path("/proc")


@cache
def temporary_directory(checkpoint_location: str) -> Path:
    """Makes the directory of this process for Spark on a checkpoint, and removes abandoned ones. It lives until the exit."""
    remove_abandoned(checkpoint_location)
    prefix = _prefix(checkpoint_location)
    made = Path(tempfile.mkdtemp(prefix=f"{_NEW}{prefix}"))
    lock = os.open(made / _LOCK, os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)  # held until this process ends, however it ends
    # It gets the name by which others find it only with its lock.
    directory = made.rename(made.with_name(made.name.removeprefix(_NEW)))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    atexit.register(await_jvm_exit, _EXIT_TIMEOUT_S)  # what is registered last is called first
    return directory


def remove_abandoned(checkpoint_location: str) -> None:
    """Removes the directories of dead processes on this checkpoint. What cannot be removed stays."""
    for directory in Path(tempfile.gettempdir()).glob(f"{_prefix(checkpoint_location)}*"):
        with suppress(OSError):
            if directory.is_dir() and not directory.is_symlink() and directory.stat().st_uid == os.getuid():
                _remove_if_abandoned(directory)


def _prefix(checkpoint_location: str) -> str:
    # Short: sockets of Python workers are in it, and the path of a socket has at most 107 bytes.
    return f"inflight-{hashlib.sha256(checkpoint_location.encode()).hexdigest()[:8]}-"


def _remove_if_abandoned(directory: Path) -> None:
    lock = os.open(directory / _LOCK, os.O_RDWR)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises BlockingIOError
        if not _is_named_by_a_process(directory):
            shutil.rmtree(directory, ignore_errors=True)
    finally:
        os.close(lock)


def _is_named_by_a_process(directory: Path) -> bool:
    """Returns True if a command line has the directory, like that of a JVM; on systems without /proc the lock decides."""
    name = os.fsencode(directory)
    for command_line in _PROCESSES.glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if name in command_line.read_bytes():
                return True
    return False
