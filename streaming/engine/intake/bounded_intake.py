"""Keeps micro-batches within a number of bytes: the limit of each is set when the one before it has ended.

1. Without knowledge a micro-batch reads `safe_limit` records of a topic: so many fit if all have the largest size. This is the
   limit of a query's first micro-batch, too.
2. When the last one read as many, or left some, more may wait; in a burst (burst.py) more do. Then the waiting records are
   measured (look_ahead.py), and all that fit are read.
3. Measuring takes time before each micro-batch. So if the records measured last were small, up to `UNSEEN` times the safe limit
   are read without measuring, for `TRUSTED_S`. A sudden change to the largest size makes one micro-batch that is so many times
   too large.
4. When one topic is measured, the others are, too: the answers of devices to many messages are many events.
5. When measuring fails, rule 1 holds.

A micro-batch that was planned before a crash is executed as it was planned, within the same bound.
"""

import time
from collections.abc import Callable, Mapping
from typing import Final

import structlog

from streaming.engine.intake.batch_size import BatchBounds
from streaming.engine.intake.burst import BURST, await_burst
from streaming.engine.intake.look_ahead import LookAhead
from streaming.engine.intake.waiting_records import WaitingRecords
from streaming.spark_internals.micro_batches import TopicRead

UNSEEN: Final = 8
SMALL: Final = 4
"""Records are small if this many times the bytes of `UNSEEN` safe limits of them would fit."""
TRUSTED_S: Final = 10.0

_log: Final = structlog.get_logger(__name__)


class BoundedIntake:
    """Sets the limits of an engine's micro-batches. `adjust` is called between the micro-batches of the query that runs."""

    def __init__(
        self, bounds: BatchBounds, records: WaitingRecords, *, monotonic_s: Callable[[], float] = time.monotonic
    ) -> None:
        self._bounds = bounds
        self._records = records
        self._monotonic_s = monotonic_s
        self._ahead: dict[str, LookAhead] = {}
        self._failed = False
        self._closed = False

    def close(self) -> None:
        self._closed = True
        self._records.close()

    def await_burst(self, read: Mapping[str, TopicRead], rest: Callable[[float], None], *, is_urgent: bool) -> bool:
        """Returns when a burst that began in a pause has come in (burst.py): True if there is one. Never raises.

        Args:
            read: What the last micro-batch read, by topic.
            rest: Waits for so many seconds.
            is_urgent: The burst has ended the pause. Otherwise more must wait than may be read without measuring: so it is no
                burst when steady messages, which nobody waits for, have collected in the pause.
        """

        def waiting() -> int:
            return sum(
                sum(self._records.ends(topic, sorted(last.end)).values()) - sum(last.end.values()) for topic, last in read.items()
            )

        least = BURST if is_urgent else 1 + sum(self._unseen(topic) for topic in read)
        try:
            return await_burst(waiting, rest, least=least)
        except Exception as error:  # noqa: BLE001 - whatever failed, the micro-batch begins now
            self._report("waiting_records_unknown", error)
            return False

    def adjust(
        self, read: Mapping[str, TopicRead], set_limits: Callable[[Mapping[str, int]], None], *, is_burst: bool = False
    ) -> None:
        """Sets the limits of the next micro-batch with `set_limits`, which may raise. Never raises.

        Args:
            read: What the last micro-batch read, by topic.
            is_burst: More wait than it may have read.
        """
        measures = any(self._may_be_more(topic, last, is_burst=is_burst) for topic, last in read.items())
        wanted = {topic: self._measured(topic, last) if measures else self._unseen(topic) for topic, last in read.items()}
        try:
            set_limits(wanted)
        except Exception as error:  # noqa: BLE001 - the query must not die of it
            self._report("limits_not_set", error)

    def _may_be_more(self, topic: str, last: TopicRead, *, is_burst: bool) -> bool:
        """Returns True if more may wait than may be read without measuring."""
        safe = self._bounds.safe_limit
        if self._closed or safe == self._bounds.max_records:
            return False
        return is_burst or bool(last.left) or last.records >= (self._unseen(topic) if self._is_trusted(topic) else safe)

    def _measured(self, topic: str, last: TopicRead) -> int:
        ahead = self._ahead.get(topic)
        if ahead is None:
            ahead = self._ahead[topic] = LookAhead(topic, self._records, self._bounds, monotonic_s=self._monotonic_s)
        try:
            limit = ahead.limit(last.end)
        except Exception as error:  # noqa: BLE001 - whatever failed, the safe limit holds
            self._report("waiting_records_unknown", error)
            return self._bounds.safe_limit
        self._failed = False
        # More records arrive before the micro-batch is planned.
        return max(limit, self._unseen(topic)) if ahead.covers_all else limit

    def _unseen(self, topic: str) -> int:
        """Returns how many records may be read without measuring them."""
        bounds, ahead = self._bounds, self._ahead.get(topic)
        limit = min(UNSEEN * bounds.safe_limit, bounds.max_records)
        mean_bytes = None if ahead is None else ahead.mean_bytes
        is_small = mean_bytes is not None and SMALL * limit * mean_bytes <= bounds.max_bytes
        return limit if is_small and not self._closed else bounds.safe_limit

    def _is_trusted(self, topic: str) -> bool:
        ahead = self._ahead.get(topic)
        return ahead is not None and self._monotonic_s() - ahead.measured_s < TRUSTED_S

    def _report(self, event: str, error: Exception) -> None:
        """Logs once until it works again: micro-batches come several times a second."""
        if not self._failed and not self._closed:
            _log.warning(event, error=repr(error), action=f"micro-batches take {self._bounds.safe_limit} records meanwhile")
        self._failed = True
