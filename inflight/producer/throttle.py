"""Says what publications wait for: a throttle of all clients, and a matcher that waits with their partition.

A single throttled client is no reason, because nobody knows who will get them.
"""

from collections.abc import Callable

from sinks.kafka.partitioning import partition_of
from sinks.kafka.throttles import ThrottleTable
from state.model import ClientId
from state.records.throttle import EVERYBODY, Throttle


class ThrottleOfPublications:
    """Says why a publication may not be sent now.

    Args:
        topic: The topic of publications.
        partitions: Returns how many partitions it has; None = this is not known yet.
    """

    def __init__(self, table: ThrottleTable, topic: str, partitions: Callable[[], int | None]) -> None:
        self._table = table
        self._topic = topic
        self._partitions = partitions

    def of(self, client_id: ClientId) -> Throttle | None:
        """Implements Throttles for the keys of publications."""
        of_all, table = self._table.of(EVERYBODY), self._table
        if of_all is not None or not table.waits_any_partition or not (partitions := self._partitions()):
            return of_all
        key = client_id.encode(errors="surrogateescape")
        return table.of_partition(self._topic, partition_of(key, partitions))
