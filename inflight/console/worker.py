"""Runs slow queries one after the other on one thread: what needs Spark or much of a topic must not run twice at once.

A page calls `ask` and shows the progress. The same key returns the same result until that is too old. A limited number of
results is kept; the queries bound their sizes.
"""

import queue
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Final, Generic, Self, TypeAlias, TypeVar

import structlog

from state.errors import InflightError

T = TypeVar("T")
Key: TypeAlias = tuple[str, ...]
Progress: TypeAlias = Callable[[int, int], None]
"""Called with (records done, records in total)."""

MAX_AGE_S: Final = 600.0
_MAX_WAITING: Final = 8
_KEPT: Final = 32
_JOIN_S: Final = 5.0
_log: Final = structlog.get_logger(__name__)


class TooManyQueries(InflightError):
    """Too many queries are waiting already."""


class Stage(StrEnum):
    WAITING = "waiting"
    WORKING = "working"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult(Generic[T]):
    """The state of a query.

    Attributes:
        since_s: Time in this stage.
        value: The result; while the query runs again, the one before. None = there is none yet.
        age_s: Age of the result; None = there is none.
        problem: A text for people when FAILED.
        progress: (records done, records in total).
    """

    stage: Stage
    since_s: float
    value: T | None = None
    age_s: float | None = None
    problem: str = ""
    progress: tuple[int, int] | None = None

    @property
    def is_pending(self) -> bool:
        return self.stage in (Stage.WAITING, Stage.WORKING)


class _Job(Generic[T]):
    def __init__(self, key: Key, query: Callable[[Progress], T], before: "_Job[T] | None" = None) -> None:
        """Makes a query that waits for its turn.

        Args:
            before: The earlier run of the same query. Its result is shown until there is a newer one.
        """
        self.key = key
        self.query = query
        self.value: T | None = None if before is None else before.value
        self.read_s: float | None = None if before is None else before.read_s
        self.problem = ""
        self.progress: tuple[int, int] | None = None
        self.enter(Stage.WAITING)

    def enter(self, stage: Stage) -> None:
        self.stage = stage
        self.since_s = time.monotonic()

    def show_progress(self, done: int, of: int) -> None:
        self.progress = done, of

    def finish(self, value: T) -> None:
        self.value, self.read_s = value, time.monotonic()

    def answer(self) -> QueryResult[T]:
        now_s = time.monotonic()
        return QueryResult(
            stage=self.stage,
            since_s=now_s - self.since_s,
            value=self.value,
            age_s=None if self.read_s is None else now_s - self.read_s,
            problem=self.problem,
            progress=self.progress,
        )


class QueryWorker:
    """Runs queries until the end of the `with` block."""

    def __init__(self) -> None:
        self._jobs: OrderedDict[Key, _Job[object]] = OrderedDict()
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[_Job[object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="console-worker", daemon=True)

    def ask(self, key: Key, query: Callable[[Progress], T], *, max_age_s: float = MAX_AGE_S) -> QueryResult[T]:
        """Returns the state of the query, and queues it if there is no result or it is too old; an old result stays in it.

        Raises:
            TooManyQueries: Too many queries are waiting.
        """
        with self._lock:
            job = before = self._jobs.get(key)
            if job is not None and not job.answer().is_pending and job.answer().since_s > max_age_s:
                job = None
            if job is None:
                if sum(other.stage is Stage.WAITING for other in self._jobs.values()) >= _MAX_WAITING:
                    raise TooManyQueries("others have asked before, and one question is worked on at a time: try again soon")
                job = self._jobs[key] = _Job(key, query, before)
                self._waiting.put(job)
                self._forget_oldest()
            self._jobs.move_to_end(key)
            return job.answer()  # type: ignore[return-value] # the key determines the type

    def get(self, key: Key) -> QueryResult[object] | None:
        """Returns the state of a query; None = it was not asked, or its result was discarded."""
        with self._lock:
            job = self._jobs.get(key)
            return None if job is None else job.answer()

    def forget(self, key: Key) -> None:
        """Discards a result, so that the next `ask` runs the query again. A pending query stays."""
        with self._lock:
            job = self._jobs.get(key)
            if job is not None and not job.answer().is_pending:
                del self._jobs[key]

    def run_pending(self) -> None:
        """Runs the waiting queries on the calling thread."""
        while not self._waiting.empty():
            if (job := self._waiting.get()) is not None:
                self._answer(job)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._waiting.put(None)
        self._thread.join(_JOIN_S)

    def _forget_oldest(self) -> None:
        done = [key for key, job in self._jobs.items() if not job.answer().is_pending]
        for key in done[: max(0, len(self._jobs) - _KEPT)]:
            del self._jobs[key]

    def _run(self) -> None:
        while (job := self._waiting.get()) is not None:
            self._answer(job)

    def _answer(self, job: _Job[object]) -> None:
        job.enter(Stage.WORKING)
        try:
            job.finish(job.query(job.show_progress))
        except InflightError as error:
            job.value, job.problem = None, str(error)
        except Exception as error:  # noqa: BLE001 - a failed query must not end the thread
            _log.exception("query_failed", kind=job.key[0], action="please report this")
            job.value, job.problem = None, f"{type(error).__name__}; the log of the console says more"
        job.enter(Stage.FAILED if job.problem else Stage.DONE)
