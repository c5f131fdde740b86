"""Reads the newest changes of clients' connections from `inflight.presence`, for a page that shows who comes and goes."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from inflight.presence import ClientPresence
from inflight.presence.table import read_presence
from state.errors import UNDECODABLE, UnreadableRecord
from streaming.history.sources.kafka_ranges import described
from streaming.history.sources.kafka_reader import reading
from streaming.history.sources.source import SourceLimits

if TYPE_CHECKING:
    from streaming.config.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class PresenceEvents:
    """The newest changes of clients' connections.

    Attributes:
        changes: Newest first.
        source: Where the changes are from and how far back it reaches, for people.
    """

    changes: tuple[ClientPresence, ...]
    source: str


def newest_changes(
    settings: "Settings", prefix: str, *, max_records: int, most: int, on_progress: Callable[[int, int], None]
) -> PresenceEvents:
    """Returns the newest changes. Raises KafkaUnreachable, NothingFound.

    Args:
        prefix: Only of clients whose ids begin so; empty = of all.
        max_records: How many of the newest records are read.
        most: How many changes are returned.
    """
    with reading(settings) as reader:
        ranges = reader.ranges([settings.topics.presence], SourceLimits(max_records=max_records))
        changes = changes_in(reader.records(ranges, on_progress), prefix)
        found = sorted(changes, key=lambda change: change.since_ms)
    return PresenceEvents(changes=tuple(found[::-1][:most]), source=described(ranges))


def changes_in(records: Iterable[Any], prefix: str = "") -> Iterator[ClientPresence]:
    """Yields the changes that records of the topic tell, in their order, without copies and without what cannot be read."""
    newest: dict[str, ClientPresence] = {}
    for record in records:
        try:
            change = read_presence((record.key or b"").decode(), record.value, record.headers)
        except (UnreadableRecord, *UNDECODABLE):
            continue
        client_id = change.client_id
        if client_id.startswith(prefix) and newest.get(client_id) != change:
            newest[client_id] = change
            yield change
