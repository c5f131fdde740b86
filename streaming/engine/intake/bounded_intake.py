"""Micro-batches take no more bytes than they may: the limit of each is set when the one before it has ended.

1. Without knowledge a micro-batch takes `safe_limit` records of a topic: so many fit if all are as large as can be. This is the
   limit of a query's first micro-batch, too.
2. When the last one took as many, or left some, there may be more: then the records that wait are looked at (look_ahead.py), and
   all that fit are taken.
3. Looking costs time before each micro-batch. So if what was looked at last was small, up to `UNSEEN` times the safe limit are
   taken without a look, for `TRUSTED_S`. A sudden change to the largest records makes one micro-batch of so many times the bytes.
4. When one topic is looked at, the others are, too: what devices answer to many messages is many events.
5. When looking fails, 1 holds.

A micro-batch that was planned before a crash is executed as it was planned, within the same bound.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from streaming.engine.intake.look_ahead import LookAhead, Records

UNSEEN: Final = 8
SMALL: Final = 4
"""Records were small if so many times their bytes would fit, `UNSEEN` times the safe limit of them."""
TRUSTED_S: Final = 10.0

_log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Of a micro-batch, for each topic. largest_bytes: of a record."""

    max_records: int
    max_bytes: int
    largest_bytes: int

    @property
    def safe_limit(self) -> int:
        """So many records fit whatever they are."""
        return max(1, min(self.max_records, self.max_bytes // self.largest_bytes))


@dataclass(frozen=True, slots=True, kw_only=True)
class Taken:
    """Of one topic by the last micro-batch. end: by partition, the first record that it did not take. left: how many it knew of
    and did not take.
    """

    records: int
    left: int
    end: Mapping[int, int] = field(default_factory=dict)


class Limits(Protocol):
    """Where the limits go (read_limits.py)."""

    def set(self, limits: Mapping[str, int]) -> None:
        """limits: by topic."""


class BoundedIntake:
    """Of the engine, until `close`; `adjust` is called between the micro-batches of whatever query runs, and never raises."""

    def __init__(self, bounds: Bounds, records: Records, *, monotonic_s: Callable[[], float] = time.monotonic) -> None:
        self._bounds = bounds
        self._records = records
        self._monotonic_s = monotonic_s
        self._ahead: dict[str, LookAhead] = {}
        self._failed = False
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._records.close()

    def adjust(self, taken: Mapping[str, Taken], limits: Limits) -> None:
        """Sets the limits of the next micro-batch. taken: by topic."""
        looks = any(self._may_be_more(topic, last) for topic, last in taken.items())
        wanted = {topic: self._looked_at(topic, last) if looks else self._unseen(topic) for topic, last in taken.items()}
        try:
            limits.set(wanted)
        except Exception as error:  # noqa: BLE001 - the query must not die of it
            self._report("limits_not_set", error)

    def _may_be_more(self, topic: str, last: Taken) -> bool:
        """Than is taken without a look."""
        safe = self._bounds.safe_limit
        if self._closed or safe == self._bounds.max_records:
            return False
        enough = self._unseen(topic) if self._is_trusted(topic) else safe
        return bool(last.left) or last.records >= enough

    def _looked_at(self, topic: str, last: Taken) -> int:
        bounds = self._bounds
        ahead = self._ahead.get(topic)
        if ahead is None:
            ahead = self._ahead[topic] = LookAhead(
                topic,
                self._records,
                max_records=bounds.max_records,
                max_bytes=bounds.max_bytes,
                largest_bytes=bounds.largest_bytes,
                monotonic_s=self._monotonic_s,
            )
        try:
            limit = ahead.limit(last.end)
        except Exception as error:  # noqa: BLE001 - whatever it was, the safe limit is the way on
            self._report("waiting_records_unknown", error)
            return bounds.safe_limit
        self._failed = False
        # Beyond what waits is what arrives until the micro-batch is planned.
        return max(limit, self._unseen(topic)) if ahead.takes_all else limit

    def _unseen(self, topic: str) -> int:
        """How many records a micro-batch may take of which nothing is known but those that were looked at last."""
        bounds, ahead = self._bounds, self._ahead.get(topic)
        limit = min(UNSEEN * bounds.safe_limit, bounds.max_records)
        mean_bytes = None if ahead is None else ahead.mean_bytes
        is_small = mean_bytes is not None and SMALL * limit * mean_bytes <= bounds.max_bytes
        return limit if is_small and not self._closed else bounds.safe_limit

    def _is_trusted(self, topic: str) -> bool:
        ahead = self._ahead.get(topic)
        return ahead is not None and self._monotonic_s() - ahead.looked_s < TRUSTED_S

    def _report(self, event: str, error: Exception) -> None:
        """Once, until it works again: micro-batches come several times a second."""
        if not self._failed and not self._closed:
            _log.warning(event, error=repr(error), action=f"micro-batches take {self._bounds.safe_limit} records meanwhile")
        self._failed = True
