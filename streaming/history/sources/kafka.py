"""Gives Kafka's topics as the source of a trace: everything that Inflight has written and that the topics still keep."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from streaming.archive.tables import DEAD_LETTERS, LEDGER, RECEIPTS, topics_of
from streaming.history.sources.generation import messages_generation
from streaming.history.sources.kafka_ranges import OffsetRange, described
from streaming.history.sources.kafka_reader import reading
from streaming.history.sources.kafka_rows import RowsOfMessage
from streaming.history.sources.source import MessageRows, SourceLimits

if TYPE_CHECKING:
    from streaming.config.settings import Settings


class KafkaSource:
    """The topics of Kafka.

    Args:
        on_progress: Called repeatedly with (records read, records to read) while `of_message` reads.
    """

    def __init__(
        self, settings: "Settings", limits: SourceLimits, on_progress: Callable[[int, int], None] = lambda done, total: None
    ) -> None:
        self._settings = settings
        self._limits = limits
        self._on_progress = on_progress
        self._topics = topics_of(settings)
        self._read: dict[str, list[OffsetRange]] = {}

    def of_message(self, message_id: str) -> MessageRows:
        topics = self._settings.topics
        names = [*self._topics[LEDGER.name], *self._topics[DEAD_LETTERS.name], *self._topics[RECEIPTS.name], topics.messages]
        # Backends choose the key of a publication, so with a client only what that client published can be found.
        of_routing = [topics.uplink] if self._limits.client_id else [topics.uplink, topics.publications]
        with reading(self._settings) as reader:
            is_position = message_id.startswith(f"{topics.messages}-")
            generation = messages_generation(self._settings, reader) if is_position else 0
            found = RowsOfMessage(message_id, topics, self._limits.client_id, generation=generation)
            if self._settings.routing.enabled:
                names += [name for name in of_routing if reader.has(name)]
            ranges = reader.ranges(names, self._limits)
            self._remember(ranges)
            for record in reader.records(ranges, self._on_progress):
                found.add(record)
        return found.rows

    def described(self) -> Sequence[str]:
        servers = self._settings.kafka.bootstrap_servers
        return (f"from the topics of Kafka at {servers}:", *(f"  {described(ranges)}" for ranges in self._read.values()))

    def not_found(self, what: str) -> str:
        return f"no {what} in the topics of Kafka:\n" + "\n".join(self.described()[1:])

    def _remember(self, ranges: list[OffsetRange]) -> None:
        for topic in dict.fromkeys(one.topic for one in ranges):
            self._read[topic] = [one for one in ranges if one.topic == topic]
