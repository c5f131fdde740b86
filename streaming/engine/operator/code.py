"""Identifies the code version that executes micro-batches; records of commands carry it as `code` (state/commands.py)."""

import hashlib
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import Final

CODE_LENGTH: Final = 12
_PACKAGES: Final = ("state", "streaming.engine.operator", "streaming.spark_internals")
"""Everything between the records of a micro-batch and its output. A change that does not alter the output costs a device a
reconnect, and only if an engine was killed in a micro-batch."""


@cache
def code_identity() -> str:
    """Returns a digest of the sources in hexadecimal digits, the same in every process that runs the same sources."""
    digest = hashlib.sha256()
    for package in _PACKAGES:
        for path, data in _sources(files(package), package):
            digest.update(f"{path} {len(data)} ".encode())
            digest.update(data)
    return digest.hexdigest()[:CODE_LENGTH]


def _sources(folder: Traversable, path: str) -> Iterator[tuple[str, bytes]]:
    """Yields path and content of the modules, from a directory or a zip file."""
    for entry in sorted(folder.iterdir(), key=lambda entry: entry.name):
        name = f"{path}/{entry.name}"
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _sources(entry, name)
        elif entry.name.endswith((".py", ".pyc")):
            yield name, entry.read_bytes()
