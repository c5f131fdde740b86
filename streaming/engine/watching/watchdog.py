"""Ends an engine whose query hangs (streaming/engine/watching/hang.py), with the exit status `HUNG`.

Nothing has to be saved: what is not committed is executed again from the checkpoint by the next start, which is the business of
whoever supervises the process. Steps of an end:
1. say why, in the log;
2. write the count and the reason to DATA_DIR/hangs.json, from which the next start takes the metric and says it again;
3. kill what the engine has started: a JVM that lives on would hold the checkpoint's lock;
4. exit at once: what hangs would make an orderly end hang.
"""

import contextlib
import datetime
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import structlog

from streaming.config.settings import Settings
from streaming.engine.watching.hang import HUNG, HangRule, Hangs, Signs
from streaming.engine.watching.processes import descendants, processor_seconds

_log: Final = structlog.get_logger(__name__)


class Watchdog:
    """Watches from `__enter__` to `__exit__`, on a thread of its own, unless `engine.hangs_after_ms` is 0.

    Call `observe` after each micro-batch and `look` often, both on the thread that looks after the query: when that thread waits
    for Spark for ever, nothing new is seen. kafka_answers: whether Kafka has answered lately. end: called with the reason.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        kafka_answers: Callable[[], bool],
        end: Callable[[str], None] | None = None,
    ) -> None:
        self._rule = HangRule(settings.engine) if settings.engine.hangs_after_ms else None
        self._kafka_answers = kafka_answers
        self._end = end or (lambda reason: end_process(settings.engine.data_dir, reason))
        self._batches = 0
        self._work: object = None
        self._work_seen_s = 0.0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="inflight-watchdog", daemon=True)

    def observe(self) -> None:
        """A micro-batch was committed."""
        self._batches += 1

    def look(self, work: Callable[[], object]) -> None:
        """work: asked now and then. What it raises tells nothing."""
        now_s = time.monotonic()
        if self._rule is not None and now_s - self._work_seen_s >= self._rule.look_s:
            self._work_seen_s = now_s
            with contextlib.suppress(Exception):
                self._work = work()

    def __enter__(self) -> Self:
        if self._rule is not None:
            self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping.set()

    def _run(self) -> None:
        assert self._rule is not None
        while not self._stopping.wait(self._rule.look_s):
            signs = Signs(
                batches=self._batches,
                work=self._work,
                processor_s=processor_seconds(os.getpid()),
                kafka_answers=self._kafka_answers(),
            )
            if (reason := self._rule.judge(signs)) is not None:
                self._end(reason)
                return


def end_process(data_dir: Path, reason: str) -> None:
    """Does not return."""
    _log.error(  # 1
        "query_hangs",
        reason=reason,
        action="the engine ends, and goes on from its checkpoint when it is started again; if that happens again, look at "
        "logs/spark.log and docs/operations.md, and raise engine.hangs_after_ms if it was only slow",
    )
    before = Hangs.read(data_dir)
    at = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    try:
        Hangs(count=before.count + 1, at=at, reason=reason).write(data_dir)  # 2
    except OSError as error:
        _log.warning("hang_not_counted", error=repr(error), action="the metric of the next start misses this one")
    for pid in descendants(os.getpid()):  # 3
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    sys.stderr.flush()
    os._exit(HUNG)  # 4


def say_hangs(data_dir: Path) -> Hangs:
    """What engines before this one have ended for; said in the log."""
    hangs = Hangs.read(data_dir)
    if hangs.count:
        _log.warning("engines_have_hung", count=hangs.count, last_at=hangs.at, last_reason=hangs.reason)
    return hangs
