"""Notices changes of the configuration file, and reads it."""

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import structlog

from streaming.config.errors import ConfigurationError
from streaming.config.settings import Settings

_POLL_S: Final = 1.0
_log: Final = structlog.get_logger(__name__)


class ConfigurationWatch:
    """Compares the content of the file once a second. Make it before the process reads the settings that it starts with."""

    def __init__(self, path: Path, load: Callable[[], Settings], *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        """
        Args:
            load: Reads the configuration, overridden by `--set` and the environment; raises ConfigurationError.
        """
        self.load = load
        self._path = path
        self._monotonic_s = monotonic_s
        self._in_force = self._seen = self._digest()
        self._poll_at_s = monotonic_s() + _POLL_S
        self._is_asked = False

    def ask(self) -> None:
        """Makes the next `changed` read the file even if it has not changed. A signal handler may call this."""
        self._is_asked = True

    def changed(self) -> Settings | None:
        """Returns new settings; None if nothing is new, or the file is wrong, which is logged.

        A changed file counts when two polls a second apart find the same content: an editor may be just writing it.
        """
        if not self._is_asked and self._monotonic_s() < self._poll_at_s:
            return None
        self._poll_at_s = self._monotonic_s() + _POLL_S
        before, self._seen = self._seen, self._digest()
        is_stable = self._seen is not None and self._seen == before
        if not self._is_asked and (not is_stable or self._seen == self._in_force):
            return None
        self._is_asked = False
        self._in_force = self._seen
        try:
            return self.load()
        except ConfigurationError as error:
            _log.error("settings_not_taken", file=str(self._path), problems=str(error), action="those before it stay in force")
            return None

    def _digest(self) -> bytes | None:
        """Returns None if there is no such file now."""
        try:
            return hashlib.sha256(self._path.read_bytes()).digest()
        except OSError:
            return None
