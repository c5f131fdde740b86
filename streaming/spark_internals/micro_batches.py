"""Lets the engine act between the micro-batches of a running query: wait, set a clock, limit what the next one reads.

Theory of operation. Spark's `ProcessingTimeExecutor` runs a micro-batch, asks its clock to wait until the next multiple of the
trigger interval, and continues. The clock is an interface of three methods; a query started by PySpark has the system's clock.
Two private fields are replaced after the first micro-batch, by reflection because they have no setter:

- `clock` of the executor. Py4J calls ours on the query's own thread, as it does for `foreachBatch`.
- `triggerClock` of the execution, from which micro-batches take their time. Spark's reports keep the system's clock.

Spark asks each source for the end of the next micro-batch with a `ReadLimit`. It keeps these limits in `uniqueSources`, filled
from `maxOffsetsPerTrigger` at the start and read for every micro-batch. That variable has a public setter in Java. A limit that
is set between two micro-batches, on the query's thread, holds for the next one.

Tried with PySpark 4.2.0. Where another version has these fields elsewhere, the setters return the reason and `ReadLimits`
raises. The query then keeps the system's clock, Spark's trigger and the limits of its start; the caller logs the reason.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery

from streaming.spark_internals.checkpoint import Offsets, parse_offsets

_PAUSE_FIELD: Final = "clock"
_TIME_FIELD: Final = "triggerClock"


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRead:
    """The records that a micro-batch read from one topic.

    Attributes:
        records: How many it read.
        left: How many it knew of and did not read.
        end: By partition, the first offset that it did not read.
    """

    records: int
    left: int
    end: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedBatch:
    """The newest micro-batch that has ended.

    Attributes:
        did_something: It read records, or called a session.
    """

    batch_id: int
    did_something: bool
    topics: Mapping[str, TopicRead]

    @property
    def end(self) -> Offsets:
        return {topic: read.end for topic, read in self.topics.items()}

    @property
    def left(self) -> int:
        """Returns how many records it knew of and did not read."""
        return sum(read.left for read in self.topics.values())


def last_committed_batch(query: StreamingQuery) -> CommittedBatch:
    """Reads the query's newest report field by field; the whole report as JSON would take milliseconds."""
    progress: Any = query._jsq.lastProgress()
    topics: dict[str, TopicRead] = {}
    for source in progress.sources():
        latest = parse_offsets(source.latestOffset() or "{}")
        for topic, end in parse_offsets(source.endOffset() or "{}").items():
            left = sum(max(0, offset - end.get(number, 0)) for number, offset in latest.get(topic, {}).items())
            topics[topic] = TopicRead(records=source.numInputRows(), left=left, end=end)
    did_something = progress.numInputRows() > 0 or any(
        operator.numRowsUpdated() > 0 or operator.numRowsRemoved() > 0 for operator in progress.stateOperators()
    )
    return CommittedBatch(batch_id=progress.batchId(), did_something=did_something, topics=topics)


def set_pause(query: StreamingQuery, pause: Callable[[int], None]) -> str | None:
    """Makes the query call `pause` between its micro-batches, after the first of which this must be called.

    Args:
        pause: Gets the milliseconds until the trigger would start the next micro-batch; that starts when it returns. It runs on
            the query's thread, and must not raise: an exception would end the query.

    Returns:
        Why that is impossible with this PySpark, None if it is done.
    """
    clock = _Clock(lambda: time.time_ns() // 1_000_000, pause)
    return _set_field(lambda: query._jsq.streamingQuery().triggerExecutor(), _PAUSE_FIELD, clock)


def set_batch_time(query: StreamingQuery, now_ms: Callable[[], int]) -> str | None:
    """Makes micro-batches take their time (ms since 1970) from `now_ms`. Returns why that is impossible, None if it is done."""
    return _set_field(lambda: query._jsq.streamingQuery(), _TIME_FIELD, _Clock(now_ms))


class ReadLimits:
    """How many records of each topic the next micro-batch of a query reads. Raises on another Spark whatever Py4J raises.

    The query must have run its first micro-batch.
    """

    def __init__(self, query: StreamingQuery) -> None:
        jvm: Any = SparkContext._jvm
        self._read_limit = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit
        self._execution: Any = query._jsq.streamingQuery()
        self._set: dict[str, int] = {}
        sources = self._execution.uniqueSources().keys().toSeq()
        self._sources = {_topic_of(str(source)): source for source in (sources.apply(n) for n in range(sources.size()))}

    def set(self, limits: Mapping[str, int]) -> None:
        """Sets the limits by topic, at least 1 each. Topics that are no source of this query are ignored."""
        wanted = {topic: limit for topic, limit in limits.items() if topic in self._sources}
        if wanted == self._set:
            return
        changed = self._execution.uniqueSources()
        for topic, limit in wanted.items():
            changed = changed.updated(self._sources[topic], self._read_limit.maxRows(limit))
        getattr(self._execution, "uniqueSources_$eq")(changed)
        self._set = wanted


class _Clock:
    """A clock of Spark. Py4J shows the JVM the interface that the class `Java` names.

    Args:
        pause: Waits so many milliseconds, or longer.
    """

    class Java:
        implements = ("org.apache.spark.util.Clock",)

    def __init__(self, now_ms: Callable[[], int], pause: Callable[[int], None] = lambda wait_ms: None) -> None:
        self.getTimeMillis = now_ms
        self._pause = pause

    def nanoTime(self) -> int:  # noqa: N802 - Spark's name
        return time.monotonic_ns()

    def waitTillTime(self, target_ms: int) -> int:  # noqa: N802 - Spark's name
        self._pause(target_ms - self.getTimeMillis())
        return self.getTimeMillis()


def _set_field(find: Callable[[], Any], name: str, clock: object) -> str | None:
    try:
        target = find()
        from pyspark.java_gateway import ensure_callback_server_started

        ensure_callback_server_started(SparkContext._gateway)  # type: ignore[no-untyped-call]
        owner = target.getClass()
        while all(field.getName() != name for field in owner.getDeclaredFields()):
            owner = owner.getSuperclass()
        field = owner.getDeclaredField(name)
        field.setAccessible(True)
        field.set(target, clock)
    except Exception as error:  # noqa: BLE001 - another Spark
        return repr(error)
    return None


def _topic_of(source: str) -> str:
    """Reads the name of Kafka's source: KafkaV2[Subscribe[TOPIC]] or KafkaV2[Assign[TOPIC-0, TOPIC-1]]."""
    how, _, what = source.removeprefix("KafkaV2[").partition("[")
    first = what.rstrip("]").partition(", ")[0]
    return first.rpartition("-")[0] if how == "Assign" else first
