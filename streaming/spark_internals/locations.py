"""Tells paths of this machine from other locations of checkpoints and tables. Imports no PySpark."""

import atexit
import re
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Final
from urllib.parse import urlparse

_UNESCAPED: Final = re.compile(r"[\w/.,;:$&+=@!~*'()-]*")
"""Characters that java.net.URI leaves as they are in a path."""


def is_local_path(location: str) -> bool:
    """Returns True for a path of this machine's file system, False for HDFS and object stores."""
    return urlparse(location).scheme in ("", "file")


def local_path(location: str) -> Path:
    """Returns the path of a location for which `is_local_path` is True."""
    url = urlparse(location)
    return Path(url.path if url.scheme else location)


def has_no_batch(checkpoint: str) -> bool:
    """Returns True for a checkpoint on a local path without a completed micro-batch. Of others, only Spark knows."""
    if not is_local_path(checkpoint):
        return False
    try:
        return not any(file.name.isdigit() for file in (local_path(checkpoint) / "commits").iterdir())
    except FileNotFoundError:
        return True
    except OSError:
        return False


@cache
def location_without_escapes(location: str) -> str:
    """Returns a name of a local checkpoint for Spark's state reader, which escapes spaces, quotes and the like twice.

    It is a symbolic link in a directory of this process, which removes it at its end.
    """
    if not is_local_path(location) or urlparse(location).scheme or _UNESCAPED.fullmatch(location):
        return location
    directory = tempfile.mkdtemp(prefix="inflight-checkpoint-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    link = Path(directory) / "link"
    link.symlink_to(Path(location).absolute())
    return str(link)
