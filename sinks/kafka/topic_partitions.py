"""How many partitions the topics have that a process appends to, and that it stays so."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

from kafka.errors import KafkaError

from state.errors import InflightError

METADATA_AGE_MS: Final = 30_000
"""How often kafka-python asks for what it knows about the topics."""
_METADATA_TIMEOUT_S: Final = 5.0
_METADATA_PAUSE_S: Final = 0.2
_LOOK_S: Final = 5.0


class TopicMissing(InflightError):
    """A topic does not exist, or may not be described."""


class PartitionsAdded(InflightError):
    """A topic has more partitions than when this process started: keys would have to change their partition under way."""


class TopicPartitions:
    """The numbers of the start, so that the order of a key is kept.

    on_added: called once, on the loop, when a topic has another number; `check` raises from then on.
    """

    def __init__(self, on_added: Callable[[], None]) -> None:
        self._on_added = on_added
        self._added: PartitionsAdded | None = None
        self._counts: dict[str, int] = {}
        self._look: asyncio.TimerHandle | None = None

    def learn(self, producer: Any, topics: Iterable[str]) -> None:
        """Blocks. Once, before everything else. Raises TopicMissing."""
        self._counts = {topic: _partition_count(producer, topic) for topic in topics}

    def fetch(self, producer: Any) -> None:
        """Blocks. The producer asks for what it has to know about the topics before it sends."""
        for topic in self._counts:
            with contextlib.suppress(KafkaError):
                producer.partitions_for(topic)

    def count(self, topic: str) -> int:
        return self._counts[topic]

    def watch(self, producer: Callable[[], Any]) -> None:
        """On the loop, until `stop`. producer: whom to ask, None while there is none."""
        self._look = asyncio.get_running_loop().call_later(_LOOK_S, self._compare, producer)

    def stop(self) -> None:
        if self._look is not None:
            self._look.cancel()

    def check(self) -> None:
        """Raises PartitionsAdded."""
        if self._added is not None:
            raise self._added

    def _compare(self, producer: Callable[[], Any]) -> None:
        for topic, count in self._counts.items():
            now = _known_partitions(producer(), topic)
            if now is not None and now != count:
                self._added = PartitionsAdded(
                    f"{topic} has {now} partitions now, and had {count} when this process started. It stops, so that the order "
                    "of each client's records is kept; start it again (docs/operations.md, Adding partitions)"
                )
                self._on_added()
                return
        self.watch(producer)


def _known_partitions(producer: Any, topic: str) -> int | None:
    """What kafka-python knows without asking; it asks by itself every METADATA_AGE_MS."""
    if producer is None:
        return None
    try:
        return len(producer.partitions_for(topic) or ()) or None
    except KafkaError:
        return None


def _partition_count(producer: Any, topic: str) -> int:
    """Blocks. A topic that was created a moment ago is given some seconds."""
    deadline = time.monotonic() + _METADATA_TIMEOUT_S
    while True:
        try:
            if partitions := producer.partitions_for(topic):
                return len(partitions)
        except KafkaError as error:
            cause = error
        else:
            cause = None
        if time.monotonic() > deadline:
            raise TopicMissing(
                f"topic {topic} does not exist, or may not be described; create it with `inflight topics` and start again"
            ) from cause
        time.sleep(_METADATA_PAUSE_S)
