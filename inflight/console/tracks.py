"""Keeps measurements of a time in bounded memory: one for each step of it."""

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from msgspec import structs

from inflight.status.measurements import Measurements, rates
from streaming.engine.progress import BatchProgress


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One measurement.

    Attributes:
        at_s: Seconds since 1970.
        records: Records appended per second since the sample before, by topic.
        metrics: Metrics by name, summed over the processes.
    """

    at_s: float
    seen: Measurements
    records: Mapping[str, float] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)


class SampleTrack:
    """Keeps the newest sample, and of those before it at most one for each step.

    Args:
        window_s: Age at which samples are dropped.
        step_s: 0 = every sample is kept.
    """

    def __init__(self, *, window_s: float, step_s: float = 0.0) -> None:
        self._window_s = window_s
        self._step_s = step_s
        self._samples: deque[Sample] = deque()

    @property
    def samples(self) -> tuple[Sample, ...]:
        """The samples, oldest first."""
        return tuple(self._samples)

    def add(self, sample: Sample) -> None:
        """Adds a sample that is newer than the others. Its rates become means since the kept sample before it, so that a step
        hides no record."""
        kept = self._samples
        if len(kept) > 1 and kept[-1].at_s - kept[-2].at_s < self._step_s:
            kept.pop()
        if kept:
            sample = replace(sample, records=rates(kept[-1].seen.kafka, sample.seen.kafka))
        kept.append(sample)
        while kept[0].at_s < sample.at_s - self._window_s:
            kept.popleft()


class BatchTrack:
    """Keeps the longest micro-batch of each step, with the resends of all of them."""

    def __init__(self, *, window_s: float, step_s: float) -> None:
        self._steps: Final = round(window_s / step_s)
        self._step_s = step_s
        self._longest: dict[int, BatchProgress] = {}
        self._newest_s = 0.0

    @property
    def batches(self) -> tuple[BatchProgress, ...]:
        """The micro-batches, oldest first."""
        return tuple(self._longest[step] for step in sorted(self._longest))

    def add(self, batches: Iterable[BatchProgress]) -> None:
        """Adds those that ended after all that were added before.

        Args:
            batches: Oldest first; may contain the same as in the call before.
        """
        for batch in batches:
            if (at_s := ended_s(batch)) > self._newest_s:
                self._newest_s = at_s
                step = int(at_s // self._step_s)
                self._longest[step] = _longer(self._longest.get(step), batch)
        first = int(self._newest_s // self._step_s) - self._steps
        self._longest = {step: batch for step, batch in self._longest.items() if step >= first}


def ended_s(batch: BatchProgress) -> float:
    """Returns when a micro-batch ended, in seconds since 1970."""
    return datetime.fromisoformat(batch.started).timestamp() + batch.duration_ms / 1_000


def _longer(before: BatchProgress | None, batch: BatchProgress) -> BatchProgress:
    if before is None:
        return structs.replace(batch, end_offsets={})
    resends = dict(Counter(before.resends) + Counter(batch.resends))
    longer = before if before.duration_ms >= batch.duration_ms else batch
    return structs.replace(longer, end_offsets={}, resends=resends)
