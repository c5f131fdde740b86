"""Notices that the configuration file has changed, and reads it."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from streaming.config.errors import ConfigurationError
from streaming.config.settings import Settings

_LOOK_S: Final = 1.0
_log: Final = structlog.get_logger(__name__)


class ConfigurationWatch:
    """Compares the content of the file once a second. Make it before the settings are read that the process starts with.

    load: reads the configuration, with `--set` and the environment over it; raises ConfigurationError.
    """

    def __init__(self, path: Path, load: Callable[[], Settings], *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self.load = load
        self._path = path
        self._monotonic_s = monotonic_s
        self._in_force = self._seen = self._digest()
        self._look_at_s = monotonic_s() + _LOOK_S
        self._is_asked = False

    def ask(self) -> None:
        """Read the file at the next `changed`, whether it has changed or not. May be called by a signal handler."""
        self._is_asked = True

    def changed(self) -> Settings | None:
        """The new settings; None = nothing is new, or what is new is wrong, which the log then says.

        A file has to be the same in two looks, a second apart: an editor may be in the middle of writing it.
        """
        if not self._is_asked and self._monotonic_s() < self._look_at_s:
            return None
        self._look_at_s = self._monotonic_s() + _LOOK_S
        before, self._seen = self._seen, self._digest()
        stands = self._seen is not None and self._seen == before
        if not self._is_asked and (not stands or self._seen == self._in_force):
            return None
        self._is_asked = False
        self._in_force = self._seen
        try:
            return self.load()
        except ConfigurationError as error:
            _log.error("settings_not_taken", file=str(self._path), problems=str(error), action="those before it stay in force")
            return None

    def _digest(self) -> bytes | None:
        """None = there is no such file now."""
        try:
            return hashlib.sha256(self._path.read_bytes()).digest()
        except OSError:
            return None
