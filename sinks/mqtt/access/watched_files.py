"""Detects changed files."""

from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias

_Stamp: TypeAlias = tuple[int, int, int] | None


class WatchedFiles:
    """Files whose content is in use. Make it before they are read.

    They count as changed when two polls see the same files, different from those in use: their writer may be in the middle of it.
    """

    def __init__(self, paths: Iterable[str]) -> None:
        self._paths = tuple(Path(path) for path in paths if path)
        self._in_force = self._seen = self._stamps()

    def changed(self) -> bool:
        """Polls the files; call it about once a second."""
        before, self._seen = self._seen, self._stamps()
        if self._seen != before or self._seen == self._in_force:
            return False
        self._in_force = self._seen
        return True

    def are_newer(self) -> bool:
        """Returns True if the files are others than those in use, which `changed` has not said yet."""
        return self._stamps() != self._in_force

    def _stamps(self) -> tuple[_Stamp, ...]:
        return tuple(_stamp(path) for path in self._paths)


def _stamp(path: Path) -> _Stamp:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_size, status.st_ino
