"""Finds copies of publications of QoS 2 in `inflight.uplink`: of records with one `inflight-id` only the first one is routed.

A gateway that dies after a PUBLISH may have handed it on or not. Whoever reads the repetition of the device hands it on under the
same `inflight-id` (state/inbound/inbound.py). All such records have the device as their key, so they are in one partition. Its
owner can tell which one is the first:

1. A record with `may-be-copy-since` is looked for among the records before it, from that time on.
2. One with `connection-id`, too, is the first attempt. Another is before it only if the client has had a later connection. The
   mark of that is in the log before the device has CONNACK, and the tables are read behind a barrier (kafka_matcher.py).

Records of such a search are remembered for the next one: after the end of a gateway many devices repeat what they had published.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import structlog

from sinks.routing.log_ends import Partition
from sinks.routing.session_table import SessionTable
from state.errors import UnreadableRecord
from state.records.uplink import CLIENT_ID, CONNECTION_ID, INFLIGHT_ID, MAY_BE_COPY_SINCE

_log: Final = structlog.get_logger(__name__)
MARGIN_MS: Final = 10_000
"""A search begins so much before `may-be-copy-since`: clocks of brokers differ, and topics may have times of producers."""
MOST_SEARCHED: Final = 1_000_000
"""Records that are searched at most, the newest ones."""
_MOST_REMEMBERED: Final = 200_000
_REMEMBERED_S: Final = 60.0

Headers = Iterable[tuple[str, bytes | None]]


class RecordWithHeaders(Protocol):
    """A record that was read from Kafka."""

    @property
    def headers(self) -> Headers:
        """Raises UnreadableRecord."""


class Doubt(NamedTuple):
    """A record that may be a copy.

    Attributes:
        inflight_id: That of the first record, too.
        since_ms: No record with this id is older, by the brokers' time.
    """

    inflight_id: bytes
    since_ms: int


def doubt_of(record: RecordWithHeaders, sessions: SessionTable) -> Doubt | None:
    """Returns None if the record is no copy, as far as its headers and the marks say."""
    try:
        named = dict(record.headers)
    except UnreadableRecord:
        return None
    since = named.get(MAY_BE_COPY_SINCE)
    if since is None or not since.isdigit() or len(since) > 20:
        return None
    connection_id = named.get(CONNECTION_ID)
    if connection_id is not None:
        mark = sessions.get(named.get(CLIENT_ID) or b"")
        if mark is not None and b"%d" % mark.connection_id == connection_id:
            return None
    return Doubt(named.get(INFLIGHT_ID) or b"", int(since))


@dataclass(slots=True)
class _Searched:
    """Remembers a part of a partition: the records from `first` up to `end`, those of QoS 2 by their `inflight-id`."""

    first: int
    end: int
    used_s: float
    offsets: dict[bytes, int] = field(default_factory=dict)


class CopyFinder:
    """Searches partitions of `inflight.uplink`. One thread calls it, and waits.

    Args:
        offset_at: Returns the first offset of a partition whose record is not older than a time, in ms; None = there is none.
        read: Yields offset and `inflight-id` of the records of QoS 2 in a partition between two offsets.
    """

    def __init__(
        self,
        offset_at: Callable[[Partition, int], int | None],
        read: Callable[[Partition, int, int], Iterable[tuple[int, bytes]]],
    ) -> None:
        self._offset_at = offset_at
        self._read = read
        self._searched: dict[Partition, _Searched] = {}

    def is_copy(self, partition: Partition, offset: int, doubt: Doubt, now_s: float) -> bool:
        """Returns True if a record before this one has the same `inflight-id`.

        Args:
            offset: Of the record.
            now_s: A time of `time.monotonic`.
        """
        begin = self._offset_at(partition, doubt.since_ms - MARGIN_MS)
        begin = offset if begin is None else min(begin, offset)
        if offset - begin > MOST_SEARCHED:
            _log.warning("search_for_copies_cut", partition=partition[1], since_ms=doubt.since_ms, records=offset - begin)
            begin = offset - MOST_SEARCHED
        searched = self._searched.get(partition)
        if searched is None or searched.end < begin or offset < searched.first or len(searched.offsets) > _MOST_REMEMBERED:
            searched = self._searched[partition] = _Searched(begin, begin, now_s)
        searched.used_s = now_s
        if begin < searched.first:
            self._search(partition, begin, searched.first, searched)
            searched.first = begin
        if searched.end < offset:
            self._search(partition, searched.end, offset, searched)
            searched.end = offset
        found = searched.offsets.get(doubt.inflight_id)
        return found is not None and found < offset

    def _search(self, partition: Partition, first: int, end: int, searched: _Searched) -> None:
        for offset, inflight_id in self._read(partition, first, end):
            searched.offsets[inflight_id] = min(offset, searched.offsets.get(inflight_id, offset))

    def forget_unused(self, now_s: float) -> None:
        """Frees the memory of searches that are over."""
        for partition in [each for each, searched in self._searched.items() if now_s - searched.used_s > _REMEMBERED_S]:
            del self._searched[partition]
