"""Counts for the driver what sessions write in a micro-batch, in an accumulator of Spark.

Outcomes are counted by receipts, so with `engine.receipts` off there are none; resends by rows of the ledger, so with
`engine.ledger` off there are none. A task that is executed again reports the same once more.
"""

import re
import threading
from collections import Counter
from collections.abc import Iterable
from typing import Final, TypeAlias

from pyspark import SparkContext
from pyspark.accumulators import Accumulator, AccumulatorParam

from state.commands import Transition
from state.dead_letters.quarantine import ROW_VERSION
from state.records.record import SinkRecord
from state.settings import Topics

CLIENTS_QUARANTINED: Final = "clients_quarantined"
# Values are not parsed: within a value of their JSON, such as an id, the quotes would be escaped.
_OUTCOME: Final = re.compile(rb'"outcome":"([^"]+)"')
_RESENDS: Final = {one.value: f'"transition":"{one}"'.encode() for one in (Transition.RESENT, Transition.REPLAYED)}
_lock: Final = threading.Lock()
"""Spark's thread adds while the driver pops."""

Counts: TypeAlias = Counter[str]
"""Messages by outcome and by the transition of a resend, and `CLIENTS_QUARANTINED`."""
CountsAccumulator: TypeAlias = Accumulator[Counts]


def counts_of(records: Iterable[SinkRecord], topics: Topics) -> Counts:
    """Returns what the output of an activation counts."""
    counts: Counts = Counter()
    for record in records:
        value = record.value or b""
        if record.topic == topics.receipts:
            counts.update(outcome.decode() for outcome in _OUTCOME.findall(value))
        elif record.topic == topics.ledger:
            for transition, text in _RESENDS.items():
                if found := value.count(text):
                    counts[transition] += found
        elif record.topic == topics.dead_letters and _is_quarantine(record):
            counts[CLIENTS_QUARANTINED] += 1
    return counts


def _is_quarantine(record: SinkRecord) -> bool:
    """Returns True for the copy of a session. It is no MQTT message, so the header with the topic, its first one, is empty."""
    headers = record.headers or ()
    return any(header.key == ROW_VERSION for header in headers) and headers[0].value == b""


class _SumOfCounts(AccumulatorParam[Counts]):
    def zero(self, value: Counts) -> Counts:
        return Counter()

    def addInPlace(self, value1: Counts, value2: Counts) -> Counts:  # noqa: N802 - Spark's name
        with _lock:
            value1.update(value2)
        return value1


class ReportedCounts:
    """The driver's side. accumulator: tasks add their counts to it."""

    def __init__(self, context: SparkContext) -> None:
        self._sum: Counts = Counter()
        self.accumulator: CountsAccumulator = context.accumulator(self._sum, _SumOfCounts())

    def pop(self) -> Counts:
        """Returns the counts since the last call. A running micro-batch may add at the same time."""
        with _lock:
            popped = self._sum.copy()
            self._sum.clear()
        return popped
