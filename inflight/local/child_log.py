"""Writes the log of a child, and rotates it while the child runs: LOG, and LOG.1 with what came before.

The child writes to a pipe. While this process is stopped (Ctrl-Z), a child that has filled the pipe waits at its next line.
"""

import contextlib
import fcntl
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Final

_LIMIT_BYTES: Final = 16 << 20
_READ_BYTES: Final = 64 << 10
_PIPE_BYTES: Final = 1 << 20
_LONGEST_LINE_BYTES: Final = 1 << 20
_NEWLINE: Final = b"\n"


class ChildLog:
    """The log file of a child, at most two times `limit_bytes` long. Several threads may write.

    A failure, as on a full disk, loses what was to be written, and nothing else. `path` is the newest file.
    """

    def __init__(self, path: Path, *, limit_bytes: int = _LIMIT_BYTES) -> None:
        self.path = path
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._file: IO[bytes] | None = None
        self._reader: threading.Thread | None = None

    def write(self, lines: bytes) -> None:
        """Appends whole lines."""
        with self._lock, contextlib.suppress(OSError):
            size = os.fstat(self._opened().fileno()).st_size
            if size and size + len(lines) > self._limit_bytes:
                self._rotate()
            self._opened().write(lines)

    @contextmanager
    def standard_error(self) -> Iterator[int]:
        """Gives a file descriptor whose data goes to the log, for the standard error of a child.

        A thread reads it until the child and all that it has started have closed it, also after the block.
        """
        with self._lock:
            if self._file is not None:  # somebody may have moved it away since the last start
                self._file.close()
                self._file = None
        reading, writing = os.pipe()
        # A large pipe, so that a child need not wait while this process is busy. Only Linux has the call, and its user a limit.
        with contextlib.suppress(OSError, AttributeError):
            fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._reader = reader = threading.Thread(target=self._copy, args=(reading,), name=f"log {self.path.name}", daemon=True)
        reader.start()
        try:
            yield writing
        finally:
            os.close(writing)

    def join(self, timeout_s: float) -> None:
        """Waits until the newest child's standard error is in the log, if it has ended."""
        if self._reader is not None:
            self._reader.join(timeout_s)

    def _copy(self, reading: int) -> None:
        started = b""
        try:
            while data := os.read(reading, _READ_BYTES):
                lines, newline, rest = (started + data).rpartition(_NEWLINE)
                # Lines of another thread come between two writes, so a started line waits for its end.
                if len(rest) > _LONGEST_LINE_BYTES:
                    lines, newline, rest = lines + newline, rest, b""
                if lines or newline:
                    self.write(lines + newline)
                started = rest
        finally:
            os.close(reading)
            if started:
                self.write(started + _NEWLINE)

    def _opened(self) -> IO[bytes]:
        if self._file is None:
            self._file = self.path.open("ab", buffering=0)
        return self._file

    def _rotate(self) -> None:
        self._opened().close()
        self._file = None
        self.path.replace(self.path.with_name(f"{self.path.name}.1"))
