"""Configures logging: structlog to standard error, one line each, plain or JSON.

Libraries log from `warning` on, and repeated messages are limited. While Kafka is unreachable its clients would log a hundred a
second, with tracebacks.
"""

import contextlib
import io
import logging
import re
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, TextIO, cast

import structlog

from sinks.escaping import escaped


class _StandardError(io.TextIOBase):
    """Writes to standard error. A failure, as of a file on a full disk, is ignored: logging must not stop the process."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


_MAX_PER_SPAN: Final = 3
_SPAN_S: Final = 10.0
_MAX_KINDS: Final = 1_000
_NUMBER: Final = re.compile(r"0x[0-9a-f]+|\d+")
_WARN_IN_VAIN: Final = ("kafka.net.selector", "kafka.coordinator.consumer")
"""Parts of kafka-python that warn whenever a task had to wait for a processor, and of options that we chose."""


class RepeatFilter(logging.Filter):
    """Limits how often a library logs the same kind of message. The next one that passes says how many were suppressed.

    A kind is a logger and a message before its arguments are inserted, whatever numbers it has.

    Args:
        clock: Seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str], list[float]] = {}
        """Counts of each kind: start of the time span in seconds, number that passed in it, number suppressed since."""

    def filter(self, record: logging.LogRecord) -> bool:
        with self._lock:
            suppressed = self._suppressed_before(record)
        if suppressed:
            record.msg, record.args = f"{record.getMessage()} (and {suppressed:,} like this, suppressed)", None
        return suppressed is not None

    def _suppressed_before(self, record: logging.LogRecord) -> int | None:
        """Returns how many of this kind were suppressed since the last one that passed; None = suppress this one."""
        now = self._clock()
        if len(self._kinds) >= _MAX_KINDS:
            self._kinds.clear()
        kind = self._kinds.setdefault((record.name, _NUMBER.sub("#", str(record.msg))), [now, 0, 0])
        if now - kind[0] >= _SPAN_S:
            kind[:2] = now, 0
        if kind[1] >= _MAX_PER_SPAN:
            kind[2] += 1
            return None
        kind[1] += 1
        suppressed, kind[2] = int(kind[2]), 0
        return suppressed


class _Quoted:
    """A text that is not printable, shown by `repr` as structlog shows a text with blanks."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return repr(self._text)


def _escape_values(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    """Escapes the texts of an event. Other values are shown by `repr`, which escapes too."""
    return {name: _escaped_value(name, value) for name, value in event.items()}


def _escaped_value(name: str, value: object) -> object:
    if not isinstance(value, str) or value.isprintable():
        return value
    match name:
        case "event":
            return escaped(value)
        case "exception":
            return escaped(value, keep="\n")
        case _:
            return _Quoted(value)


def configure_logging(*, json: bool = False, process: int | None = None) -> None:
    """Configures logging. Call it once at the start of a process.

    Args:
        json: Write JSON for log collectors.
        process: The process's number, if there are several.
    """

    def numbered(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return event if process is None else {**event, "process": process}

    shared: list[structlog.typing.Processor] = [
        numbered,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    # JSON is ASCII, so it needs no escaping; on a line for people every text is one line.
    formatted: list[structlog.typing.Processor] = [structlog.processors.format_exc_info]
    if not json:
        formatted.append(_escape_values)
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    structlog.configure(
        processors=[*shared, *formatted, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
        logger_factory=structlog.WriteLoggerFactory(cast(TextIO, _StandardError())),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *formatted,
                renderer,
            ],
        )
    )
    handler.addFilter(RepeatFilter())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
    for name in _WARN_IN_VAIN:
        logging.getLogger(name).setLevel(logging.ERROR)
