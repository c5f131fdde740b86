"""Measures the running system in the background, and keeps the last minutes: every two seconds while a page is open, else every
ten, so that the plots of the next visitor have no gaps."""

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

import structlog

from inflight.status.findings import Finding, findings
from inflight.status.measurements import KafkaStatus, Measurements, rates
from inflight.status.observer import Observer

WINDOW_S: Final = 300.0
"""Age at which samples are dropped."""
DEAD_LETTERS_S: Final = 3_600.0
"""The time in which new dead letters are counted."""
_INTERVAL_S: Final = 2.0
_IDLE_INTERVAL_S: Final = 10.0
_IDLE_AFTER_S: Final = 30.0
_JOIN_S: Final = 10.0
_log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement.

    Attributes:
        at_s: Seconds since 1970.
        records: Records appended per second, by topic.
        metrics: Metrics by name, summed over the processes.
    """

    at_s: float
    seen: Measurements
    records: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class NewDeadLetters:
    """Messages that have died within `within_s`: an hour, or less if the console runs for less."""

    count: int
    within_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """The samples and what is wrong.

    Attributes:
        samples: Oldest first; empty before the first measurement.
        found: Findings of the newest sample.
        dead_letters: None before two measurements.
    """

    samples: tuple[Sample, ...] = ()
    found: tuple[Finding, ...] = ()
    dead_letters: NewDeadLetters | None = None

    @property
    def newest(self) -> Sample | None:
        return self.samples[-1] if self.samples else None


class Live:
    """Measures on a thread of its own until the end of the `with` block.

    Args:
        dead_letters_topic: Its records are counted.
        interval_s, idle_interval_s: While a page is open, and while none is.
    """

    def __init__(
        self,
        observer: Observer,
        *,
        dead_letters_topic: str = "",
        interval_s: float = _INTERVAL_S,
        idle_interval_s: float = _IDLE_INTERVAL_S,
    ) -> None:
        self._observer = observer
        self._dead_letters_topic = dead_letters_topic
        self._interval_s = interval_s
        self._idle_interval_s = idle_interval_s
        self._dead_letters: deque[tuple[float, int]] = deque()
        self._samples: deque[Sample] = deque()
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
        before = self._samples[-1].seen.kafka if self._samples else kafka
        sample = Sample(at_s=now_s, seen=seen, records=rates(before, kafka), metrics=_summed_metrics(seen))
        self._samples.append(sample)
        while self._samples[0].at_s < now_s - WINDOW_S:
            self._samples.popleft()
        self._view = View(
            samples=tuple(self._samples), found=tuple(findings(seen)), dead_letters=self._new_dead_letters(kafka, now_s)
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
