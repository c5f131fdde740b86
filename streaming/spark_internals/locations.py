"""Tells paths of this machine from other locations of checkpoints and tables. Imports no PySpark."""

from pathlib import Path
from urllib.parse import urlparse


def is_local_path(location: str) -> bool:
    """Returns True for a path of this machine's file system, False for HDFS and object stores."""
    return urlparse(location).scheme in ("", "file")


def local_path(location: str) -> Path:
    """Returns the path of a location for which `is_local_path` is True."""
    url = urlparse(location)
    return Path(url.path if url.scheme else location)
