"""Sets how many records of each topic the next micro-batch of a running query takes.

Theory of operation. Spark asks each source for the end of the next micro-batch with a `ReadLimit`. It keeps these limits, by
source, in a variable of the query's execution (`uniqueSources`), which it fills at the start, from `maxOffsetsPerTrigger`, and
reads anew for every micro-batch. The variable has a public setter in Java. A limit that is set between two micro-batches, on the
query's own thread, counts for the next.

On a version of Spark without it the limit of the start stays, which is a safe one (`safe_limit`), and the log says so.
"""

from collections.abc import Mapping
from typing import Any

from pyspark import SparkContext
from pyspark.sql.streaming.query import StreamingQuery


class ReadLimits:
    """Of one query, which has run its first micro-batch. Whatever goes wrong is raised (Py4JError and others)."""

    def __init__(self, query: StreamingQuery) -> None:
        jvm = SparkContext._jvm
        if jvm is None:
            raise RuntimeError("Spark is not running")
        self._read_limit: Any = jvm.org.apache.spark.sql.connector.read.streaming.ReadLimit
        self._execution: Any = query._jsq.streamingQuery()
        self._set: dict[str, int] = {}
        sources = self._execution.uniqueSources().keys().toSeq()
        self._sources = {topic_of(source): source for source in (sources.apply(index) for index in range(sources.size()))}

    def set(self, limits: Mapping[str, int]) -> None:
        """limits: by topic, at least 1; of a topic that is no source of this query they mean nothing."""
        wanted = {topic: limit for topic, limit in limits.items() if topic in self._sources}
        if wanted == self._set:
            return
        changed = self._execution.uniqueSources()
        for topic, limit in wanted.items():
            changed = changed.updated(self._sources[topic], self._read_limit.maxRows(limit))
        getattr(self._execution, "uniqueSources_$eq")(changed)
        self._set = wanted


def topic_of(source: Any) -> str:
    """Kafka's source calls itself KafkaV2[Subscribe[TOPIC]], or KafkaV2[Assign[TOPIC-0, TOPIC-1]]."""
    how, _, what = str(source.toString()).removeprefix("KafkaV2[").partition("[")
    first = what.rstrip("]").partition(", ")[0]
    return first.rpartition("-")[0] if how == "Assign" else first
