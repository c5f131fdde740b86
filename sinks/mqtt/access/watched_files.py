"""Notices that files have changed."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

_Stamp: TypeAlias = tuple[int, int, int] | None


class WatchedFiles:
    """Make it before the files are read. They count as changed when they are the same in two looks, and others than before:
    who writes them may be in the middle of it."""

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(Path(path) for path in paths if path)
        self._in_force = self._seen = self._look()

    def changed(self) -> bool:
        """Ask about once a second."""
        before, self._seen = self._seen, self._look()
        if self._seen != before or self._seen == self._in_force:
            return False
        self._in_force = self._seen
        return True

    def _look(self) -> tuple[_Stamp, ...]:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: Path) -> _Stamp:
    """None = there is no such file now."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
