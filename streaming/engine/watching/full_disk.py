"""The disks of the engine: how much is left, and one sentence with what to do when nothing is, whatever has failed for it."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

from py4j.protocol import Py4JError

from streaming.config.settings import Settings
from streaming.config.units import format_size
from streaming.engine.errors import DiskFull, QueryFailed

FULL_BYTES: Final = 4 << 20
"""Less is left after a file that did not fit."""
_NO_SPACE: Final = ("No space left on device", "Disk quota exceeded")


def free_disk_of(location: str) -> Callable[[], int | None]:
    """Measures the free bytes of the disk under a local checkpoint; None for HDFS and object stores, which watch themselves."""
    url = urlparse(location)
    if url.scheme not in ("", "file"):
        return lambda: None
    path = Path(url.path if url.scheme else location).absolute()

    def measure() -> int | None:
        existing = next((directory for directory in (path, *path.parents) if directory.exists()), None)
        return None if existing is None else shutil.disk_usage(existing).free

    return measure


def is_full(location: str) -> bool:
    """Of a local directory, which need not exist."""
    free_bytes = free_disk_of(location)()
    return free_bytes is not None and free_bytes < FULL_BYTES


@contextmanager
def naming_full_disks(settings: Settings) -> Iterator[None]:
    """Raises DiskFull in place of what Spark, Java or Python raise when a disk of the engine is full; all else goes through."""
    try:
        yield
    except (QueryFailed, Py4JError, OSError) as error:
        if not any(text in str(error) for text in _NO_SPACE) and not is_full(settings.checkpoint_location):
            raise
        raise DiskFull(_what_is_left(settings)) from error


def _what_is_left(settings: Settings) -> str:
    places = {
        "the checkpoint": settings.checkpoint_location,
        "the data directory": str(settings.engine.data_dir.absolute()),
        "temporary files": tempfile.gettempdir(),
    }
    left = [
        f"{format_size(free_bytes)} for {what} in {location}"
        for what, location in places.items()
        if (free_bytes := free_disk_of(location)()) is not None
    ]
    return (
        f"a disk of the engine is full; what is left: {', '.join(left)}. Make room there: nothing is lost, and the engine "
        "goes on where it was when it is started again"
    )
