"""How the processes log: structlog to standard error, one line each, plain or JSON.

Foreign libraries are heard from `warning` on, and each of their sentences a few times in ten seconds only. While Kafka is away
its clients say a hundred a second, with tracebacks.
"""

import contextlib
import io
import logging
import sys
import threading
import time
from collections.abc import Callable
from typing import Final, TextIO, cast

import structlog


class _StandardError(io.TextIOBase):
    """What cannot be written, because it is a file on a full disk, is left out, and fails nobody."""

    def write(self, text: str) -> int:
        with contextlib.suppress(OSError):
            sys.stderr.write(text)
        return len(text)

    def flush(self) -> None:
        with contextlib.suppress(OSError):
            sys.stderr.flush()


_FEW: Final = 3
_SPAN_S: Final = 10.0
_MOST_KINDS: Final = 1_000


class FewOfAKind(logging.Filter):
    """A record's kind is its logger and its sentence before anything is put in. The next one that is written counts what was left
    out. clock: seconds, never going back.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._lock = threading.Lock()
        self._kinds: dict[tuple[str, str], list[float]] = {}
        """Begin of the span, written in it, left out since."""

    def filter(self, record: logging.LogRecord) -> bool:
        with self._lock:
            left_out = self._left_out(record)
        if left_out:
            record.msg, record.args = f"{record.getMessage()} (and {left_out:,} like this, left out)", None
        return left_out is not None

    def _left_out(self, record: logging.LogRecord) -> int | None:
        """How many since the last one of its kind; None = this one, too."""
        now = self._clock()
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        kind = self._kinds.setdefault((record.name, str(record.msg)), [now, 0, 0])
        if now - kind[0] >= _SPAN_S:
            kind[:2] = now, 0
        if kind[1] >= _FEW:
            kind[2] += 1
            return None
        kind[1] += 1
        left_out, kind[2] = int(kind[2]), 0
        return left_out


def configure_logging(*, json: bool = False, process: int | None = None) -> None:
    """Call once at the start of a process. json: for machines that collect logs. process: its number, when there are several."""

    def numbered(_logger: object, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
        return event if process is None else {**event, "process": process}

    shared: list[structlog.typing.Processor] = [
        numbered,
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: structlog.typing.Processor = (
        structlog.processors.JSONRenderer() if json else structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=0)
    )
    structlog.configure(
        processors=[*shared, structlog.processors.format_exc_info, renderer],
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
                structlog.processors.format_exc_info,
                renderer,
            ],
        )
    )
    handler.addFilter(FewOfAKind())
    logging.basicConfig(handlers=[handler], level=logging.WARNING, force=True)
