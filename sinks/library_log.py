"""Logs of code that runs in a backend's process too, whose standard output is the backend's own."""

import logging
from typing import Any, Final

import structlog


class LibraryLogger:
    """Writes by structlog where that is configured, as in every program of Inflight; else to the standard library's logger.

    The latter writes warnings to standard error if the backend configures nothing. structlog writes to standard output then.
    """

    def __init__(self, name: str) -> None:
        self._name: Final = name

    def debug(self, event: str, **fields: object) -> None:
        self._write(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        self._write(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        self._write(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        self._write(logging.ERROR, event, fields)

    def _write(self, level: int, event: str, fields: dict[str, Any]) -> None:
        if structlog.is_configured():
            structlog.get_logger(self._name).log(level, event, **fields)
        else:
            text = "".join(f" {name}={value!r}" for name, value in fields.items())
            logging.getLogger(self._name).log(level, "%s%s", event, text)
