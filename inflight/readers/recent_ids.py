"""Remembers the newest ids of a stream, so that a record that Kafka has twice is given out once."""

from collections.abc import Hashable
from typing import Final

WINDOW: Final = 10_000
"""This many ids are remembered by a reader. A copy follows its original within one micro-batch."""


class RecentIds:
    """A set of at most `most` ids. The oldest one makes room for a new one."""

    def __init__(self, most: int = WINDOW) -> None:
        self._most = most
        self._ids: dict[Hashable, None] = {}

    def is_new(self, identity: Hashable) -> bool:
        """Remembers the id. Returns False if it is remembered already."""
        if identity in self._ids:
            return False
        if len(self._ids) >= self._most:
            del self._ids[next(iter(self._ids))]
        self._ids[identity] = None
        return True
