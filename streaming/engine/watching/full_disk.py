"""Measures the free disk of the engine, and replaces any error of a full disk by one that says what to do."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

from streaming.config.settings import Settings
from streaming.config.units import format_size
from streaming.engine.errors import DiskFull, QueryFailed
from streaming.spark_internals.jvm import SPARK_ERRORS
from streaming.spark_internals.locations import is_local_path, local_path

FULL_BYTES: Final = 4 << 20
"""After a file that did not fit, less than this is free."""
_NO_SPACE: Final = ("No space left on device", "Disk quota exceeded")


def free_disk_of(location: str) -> Callable[[], int | None]:
    """Returns a function that measures the free bytes under a local checkpoint.

    The function returns None for HDFS and object stores, whose own tools watch them.
    """
    if not is_local_path(location):
        return lambda: None
    path = local_path(location).absolute()

    def measure() -> int | None:
        existing = next((directory for directory in (path, *path.parents) if directory.exists()), None)
        return None if existing is None else shutil.disk_usage(existing).free

    return measure


def is_full(location: str) -> bool:
    """Returns True if the disk of a local directory, which need not exist, is full."""
    free_bytes = free_disk_of(location)()
    return free_bytes is not None and free_bytes < FULL_BYTES


@contextmanager
def naming_full_disks(settings: Settings) -> Iterator[None]:
    """Raises DiskFull instead of what Spark, Java or Python raise when a disk of the engine is full. Other errors pass."""
    try:
        yield
    except (QueryFailed, OSError, *SPARK_ERRORS) as error:
        if not any(text in str(error) for text in _NO_SPACE) and not is_full(settings.checkpoint_location):
            raise
        raise DiskFull(_free_disks(settings)) from error


def _free_disks(settings: Settings) -> str:
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
