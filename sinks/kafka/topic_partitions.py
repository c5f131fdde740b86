"""Learns how many partitions the topics of a process have, and watches that the numbers stay."""

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol

from sinks.kafka.librdkafka import KafkaFailed
from state.errors import InflightError

_METADATA_TIMEOUT_S: Final = 5.0
_METADATA_PAUSE_S: Final = 0.2
_WATCH_INTERVAL_S: Final = 30.0


class Describing(Protocol):
    """Describes topics. Both methods block, and raise KafkaFailed when no broker answers."""

    def partition_counts(self) -> Mapping[str, int]:
        """Returns the number of each topic that may be described."""

    def partition_count(self, topic: str) -> int:
        """Returns the number of one topic; 0 = it does not exist, or may not be described."""


class TopicMissing(InflightError):
    """A topic does not exist, or may not be described."""


class PartitionsAdded(InflightError):
    """A topic has more partitions than when this process started. Keys would have to change their partition."""


class TopicPartitions:
    """Keeps the numbers of the start, so that the order of a key is kept.

    Args:
        on_added: Called once, on the loop, when a topic has another number; `check` raises from then on.
    """

    def __init__(self, on_added: Callable[[], None]) -> None:
        self._on_added = on_added
        self._added: PartitionsAdded | None = None
        self._counts: dict[str, int] = {}
        self._watching: asyncio.Task[None] | None = None

    def learn(self, client: Describing, topics: Iterable[str]) -> None:
        """Learns the numbers; blocks. Call once, before everything else. A topic that was just created is given some seconds.

        Raises KafkaFailed, TopicMissing.
        """
        deadline = time.monotonic() + _METADATA_TIMEOUT_S
        while True:
            # Not topic by topic: a broker may create those that it is asked for.
            known = client.partition_counts()
            missing = [topic for topic in topics if not known.get(topic)]
            if not missing:
                self._counts = {topic: known[topic] for topic in topics}
                return
            if time.monotonic() > deadline:
                raise TopicMissing(
                    f"topic {missing[0]} does not exist, or may not be described; create it with `inflight topics` and start "
                    "again"
                )
            time.sleep(_METADATA_PAUSE_S)

    def ask(self, client: Describing) -> None:
        """Blocks until the client has an answer to a question about the topics. Raises KafkaFailed."""
        for topic in self._counts:
            client.partition_count(topic)

    def count(self, topic: str) -> int:
        return self._counts[topic]

    def watch(self, client: Callable[[], Describing | None]) -> None:
        """Watches the numbers, on the loop, until `stop`.

        Args:
            client: Returns the client to ask; None = there is none now.
        """
        self._watching = asyncio.get_running_loop().create_task(self._watch(client))

    def stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()

    def check(self) -> None:
        """Raises PartitionsAdded."""
        if self._added is not None:
            raise self._added

    async def _watch(self, client: Callable[[], Describing | None]) -> None:
        while self._added is None:
            await asyncio.sleep(_WATCH_INTERVAL_S)
            asked = client()
            if asked is not None:
                await self._compare(asked)

    async def _compare(self, client: Describing) -> None:
        for topic, count in self._counts.items():
            try:
                now = await asyncio.to_thread(client.partition_count, topic)
            except KafkaFailed:
                return
            if now not in (0, count):
                self._added = PartitionsAdded(
                    f"{topic} has {now} partitions now, and had {count} when this process started. It stops, so that the order "
                    "of each client's records is kept; start it again (docs/operate/partitions.md, Adding partitions)"
                )
                self._on_added()
                return
