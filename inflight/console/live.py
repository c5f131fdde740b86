"""Measures the running system in the background, and keeps the last minutes and the last hour: every two seconds while a page is
open, else every ten, so that the plots of the next visitor have no gaps."""

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Final, Self

import structlog

from inflight.console.tracks import BatchTrack, Sample, SampleTrack
from inflight.status.findings import Finding, findings
from inflight.status.measurements import KafkaStatus, Measurements
from inflight.status.observer import Observer
from streaming.engine.progress import BatchProgress

WINDOW_S: Final = 300.0
"""Age at which samples of the last minutes are dropped."""
HOUR_S: Final = 3_600.0
STEP_S: Final = 15.0
"""One sample is kept for each step of the last hour."""
DEAD_LETTERS_S: Final = 3_600.0
"""The time in which new dead letters are counted."""
_INTERVAL_S: Final = 2.0
_IDLE_INTERVAL_S: Final = 10.0
_IDLE_AFTER_S: Final = 30.0
_JOIN_S: Final = 10.0
_log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDeadLetters:
    """Messages that have died within `within_s`: an hour, or less if the console runs for less."""

    count: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The samples and what is wrong.

    Attributes:
        samples: Of the last minutes, oldest first; empty before the first measurement.
        hour: Samples of the last hour, without their processes.
        hour_batches: The longest micro-batch of each step of the last hour.
        found: Findings of the newest sample.
        dead_letters: None before two measurements.
    """

    samples: tuple[Sample, ...] = ()
    hour: tuple[Sample, ...] = ()
    hour_batches: tuple[BatchProgress, ...] = ()
    found: tuple[Finding, ...] = ()
    dead_letters: NewDeadLetters | None = None

    @property
    def newest(self) -> Sample | None:
        return self.samples[-1] if self.samples else None


class Live:
    """Measures on a thread of its own until the end of the `with` block.

    Args:
        read_batches: Returns the newest micro-batches, oldest first.
        dead_letters_topic: Its records are counted.
        interval_s, idle_interval_s: While a page is open, and while none is.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        read_batches: Callable[[], Sequence[BatchProgress]] = tuple,
        dead_letters_topic: str = "",
        interval_s: float = _INTERVAL_S,
        idle_interval_s: float = _IDLE_INTERVAL_S,
    ) -> None:
        self._observer = observer
        self._read_batches = read_batches
        self._dead_letters_topic = dead_letters_topic
        self._interval_s = interval_s
        self._idle_interval_s = idle_interval_s
        self._dead_letters: deque[tuple[float, int]] = deque()
        self._minutes = SampleTrack(window_s=WINDOW_S)
        self._hour = SampleTrack(window_s=HOUR_S, step_s=STEP_S)
        self._hour_batches = BatchTrack(window_s=HOUR_S, step_s=STEP_S)
        self._view = View()
        self._wanted_until_s = 0.0
        self._wanted = threading.Event()
        self._stopping = False
        self._thread = threading.Thread(target=self._run, name="console-live", daemon=True)

    def view(self) -> View:
        """Returns the newest view. Each call makes measurements frequent for half a minute."""
        self._wanted_until_s = time.monotonic() + _IDLE_AFTER_S
        self._wanted.set()
        return self._view

    def update(self) -> None:
        """Measures once, which takes seconds at most."""
        kafka = self._observer.probe_kafka()
        seen = self._observer.measure(kafka)
        now_s = time.time()
        sample = Sample(at_s=now_s, seen=seen, metrics=_summed_metrics(seen))
        self._minutes.add(sample)
        self._hour.add(replace(sample, seen=replace(seen, processes=())))
        self._hour_batches.add(self._read_batches())
        self._view = View(
            samples=self._minutes.samples,
            hour=self._hour.samples,
            hour_batches=self._hour_batches.batches,
            found=tuple(findings(seen)),
            dead_letters=self._new_dead_letters(kafka, now_s),
        )

    def _new_dead_letters(self, kafka: KafkaStatus, now_s: float) -> NewDeadLetters | None:
        counts = self._dead_letters
        end = next((topic.end for topic in kafka.topics if topic.name == self._dead_letters_topic), None)
        if end is not None:
            if counts and end < counts[-1][1]:
                counts.clear()  # the topic was made anew
            counts.append((now_s, end))
        # The count before the hour is kept: it is the one at its beginning.
        while len(counts) > 1 and counts[1][0] <= now_s - DEAD_LETTERS_S:
            counts.popleft()
        if not counts or counts[0] is counts[-1]:  # a difference needs two
            return None
        (began_s, first), (_, last) = counts[0], counts[-1]
        return NewDeadLetters(count=last - first, within_s=now_s - began_s)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._stopping = True
        self._wanted.set()
        self._thread.join(_JOIN_S)

    def _run(self) -> None:
        while True:
            began_s = time.monotonic()
            try:
                self.update()
            except Exception:  # noqa: BLE001 - the page shows the age of its numbers
                _log.exception("measuring_failed", action="please report this")
            self._wanted.clear()  # before the next lines: what is wanted after them ends the pause
            if self._stopping:
                return
            is_idle = time.monotonic() > self._wanted_until_s
            pause_s = began_s + (self._idle_interval_s if is_idle else self._interval_s) - time.monotonic()
            if is_idle:
                self._wanted.wait(max(0.0, pause_s))
            else:
                time.sleep(max(0.01, pause_s))


def _summed_metrics(seen: Measurements) -> Mapping[str, float]:
    """Returns the metrics of all processes, summed by name."""
    found: dict[str, float] = {}
    for process in seen.processes:
        for name, value in process.values.items():
            found[name] = found.get(name, 0.0) + value
    return found
