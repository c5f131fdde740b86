"""Asks the tables for what the report shows, as plain numbers. Each question is one pass over the days of the report."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import Any, Final, TypeVar

from streaming.archive.tables import DEAD_LETTERS, LEDGER, RECEIPTS
from streaming.history.store import Store

BUCKETS: Final = 60
_WIDTHS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400, 604_800)
LOOKBACK_HOURS: Final = 24
"""A message that moved last so long before the report is in no window and no queue of it."""
_DEPTH: Final = """
WITH moves AS (
    SELECT batch_ms, client_id, message_id, kafka_partition, kafka_offset, row_index,
        -- A QoS 0 message is sent and finished at once, so it is never in the window.
        (packet_id IS NOT NULL
            AND transition IN ('sent', 'fast_sent', 'resent', 'replayed', 'pubrec', 'pubrel_sent'))::INT AS sent,
        (transition IN ('accepted', 'returned', 'queued') OR transition = 'refused' AND outcome IS NULL)::INT AS waits
    FROM ledger
    WHERE date >= $1 AND batch_ms BETWEEN $2 AND $3 AND message_id IS NOT NULL AND transition IN (
        'accepted', 'returned', 'queued', 'refused', 'finished',
        'sent', 'fast_sent', 'resent', 'replayed', 'pubrec', 'pubrel_sent')
), changes AS (
    SELECT greatest(-1, floor((batch_ms - $4) / $5)::BIGINT) AS bucket,
        sent - coalesce(lag(sent) OVER life, 0) AS in_window, waits - coalesce(lag(waits) OVER life, 0) AS waiting
    FROM moves
    WINDOW life AS (PARTITION BY client_id, message_id ORDER BY batch_ms, kafka_partition, kafka_offset, row_index)
)
SELECT bucket, sum(in_window), sum(waiting) FROM changes GROUP BY bucket
"""
"""Changes of the numbers of messages in windows and of waiting messages, by bucket; bucket −1 is all time before.

The newest transition of a message says where it is.
"""
_WORST: Final = """
WITH resends AS (
    SELECT client_id, count(*) FILTER (transition IN ('resent', 'replayed')) AS resends FROM ledger
    WHERE date >= $1 AND batch_ms BETWEEN $2 AND $3 GROUP BY client_id
), dead AS (
    SELECT client_id, count(*) AS dead FROM dead_letters WHERE date >= $1 AND died_ms BETWEEN $2 AND $3 GROUP BY client_id
), arrived AS (
    SELECT client_id, count(*) AS delivered, quantile_disc(latency_ms, 0.99) AS latency_p99_ms FROM receipts
    WHERE date >= $1 AND outcome_ms BETWEEN $2 AND $3 AND outcome = 'delivered' GROUP BY client_id
)
SELECT client_id, coalesce(resends, 0), coalesce(dead, 0), coalesce(delivered, 0), latency_p99_ms
FROM resends FULL JOIN dead USING (client_id) FULL JOIN arrived USING (client_id)
WHERE client_id != '' AND coalesce(resends, 0) + coalesce(dead, 0) > 0
ORDER BY coalesce(dead, 0) DESC, coalesce(resends, 0) DESC, client_id LIMIT 10
"""
_FLOW: Final = """
SELECT floor((batch_ms - $4) / $5)::BIGINT AS bucket, count(*) FILTER (transition = 'accepted'),
    count(*) FILTER (outcome IN ('delivered', 'sent')), count(*) FILTER (transition IN ('resent', 'replayed'))
FROM ledger WHERE date >= $1 AND batch_ms BETWEEN $2 AND $3 GROUP BY bucket
"""
_LATENCY: Final = """
SELECT floor((outcome_ms - $4) / $5)::BIGINT AS bucket, quantile_disc(latency_ms, [0.5, 0.95, 0.99])
FROM receipts WHERE date >= $1 AND outcome_ms BETWEEN $2 AND $3 AND outcome = 'delivered' GROUP BY GROUPING SETS ((bucket), ())
"""
"""The bucket null is the whole period."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class WorstClient:
    """A client with many resends or dead letters.

    Attributes:
        latency_p99_ms: The latency of its deliveries; None = it had none.
    """

    client_id: str
    resends: int
    dead_letters: int
    delivered: int
    latency_p99_ms: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The numbers of the report, by buckets of `width_s` seconds. Each list is as long as `times`.

    Attributes:
        latency_p50_ms, latency_p95_ms, latency_p99_ms: None = nothing was delivered in the bucket.
        in_window, waiting: Messages at the end of the bucket.
    """

    since: datetime
    until: datetime
    width_s: int
    times: list[datetime]
    accepted: list[int]
    delivered: list[int]
    resends: list[int]
    latency_p50_ms: list[int | None]
    latency_p95_ms: list[int | None]
    latency_p99_ms: list[int | None]
    in_window: list[int]
    waiting: list[int]
    dead_letters: Mapping[str, int] = field(default_factory=dict)
    worst: list[WorstClient] = field(default_factory=list)
    overall_p50_ms: int | None = None
    overall_p95_ms: int | None = None
    overall_p99_ms: int | None = None
    clients: int = 0

    @property
    def is_empty(self) -> bool:
        return not (sum(self.accepted) + sum(self.delivered) + sum(self.dead_letters.values()))


def measure(store: Store, *, since_ms: int, until_ms: int) -> Report:
    """Asks the tables about a period, in ms since 1970. Raises what the store raises.

    The report covers the part of the period in which something happened.
    """
    store.load(LEDGER.name, RECEIPTS.name, DEAD_LETTERS.name)
    inside = (_day(since_ms), since_ms, until_ms)
    query = (
        "SELECT min(batch_ms), max(batch_ms), count(DISTINCT client_id) FROM ledger "
        "WHERE date >= $1 AND batch_ms BETWEEN $2 AND $3"
    )
    ((oldest_ms, newest_ms, clients),) = store.rows(query, inside)
    first_ms, last_ms = (since_ms, until_ms) if oldest_ms is None else (oldest_ms, newest_ms + 1_000)
    width_s = _width_s(last_ms - first_ms)
    width_ms = width_s * 1_000
    start_ms = first_ms - first_ms % width_ms
    count = max(1, -(-(last_ms - start_ms) // width_ms))
    flow = _by_bucket(store.rows(_FLOW, (*inside, start_ms, width_ms)))
    latency = _by_bucket(store.rows(_LATENCY, (*inside, start_ms, width_ms)))
    whole = (latency.get(None) or ([],))[0] or [None] * 3
    lookback_ms = start_ms - LOOKBACK_HOURS * 3_600_000
    depth = _by_bucket(store.rows(_DEPTH, (_day(lookback_ms), lookback_ms, until_ms, start_ms, width_ms)))
    reasons = (
        "SELECT coalesce(reason, 'unknown'), count(*) FROM dead_letters "
        "WHERE date >= $1 AND died_ms BETWEEN $2 AND $3 GROUP BY ALL ORDER BY ALL"
    )
    letters = sorted(store.rows(reasons, inside), key=lambda row: -int(row[1]))

    def column(rows: Mapping[int | None, tuple[Any, ...]], index: int, otherwise: T) -> list[T]:
        return [rows[number][index] if number in rows else otherwise for number in range(count)]

    def quantile(index: int) -> list[int | None]:
        found = {number: row[0] for number, row in latency.items()}
        return [found[number][index] if found.get(number) else None for number in range(count)]

    return Report(
        since=_utc(start_ms),
        until=_utc(start_ms + count * width_ms),
        width_s=width_s,
        times=[_utc(start_ms + number * width_ms) for number in range(count)],
        accepted=column(flow, 0, 0),
        delivered=column(flow, 1, 0),
        resends=column(flow, 2, 0),
        latency_p50_ms=quantile(0),
        latency_p95_ms=quantile(1),
        latency_p99_ms=quantile(2),
        in_window=_running_total(depth, 0, count),
        waiting=_running_total(depth, 1, count),
        dead_letters=dict(letters),
        worst=[
            WorstClient(client_id=client_id, resends=resends, dead_letters=dead, delivered=delivered, latency_p99_ms=p99_ms)
            for client_id, resends, dead, delivered, p99_ms in store.rows(_WORST, inside)
        ],
        overall_p50_ms=whole[0],
        overall_p95_ms=whole[1],
        overall_p99_ms=whole[2],
        clients=clients,
    )


def _running_total(changes: Mapping[int | None, tuple[Any, ...]], index: int, count: int) -> list[int]:
    total = int(changes[-1][index]) if -1 in changes else 0
    totals = []
    for number in range(count):
        total += int(changes[number][index]) if number in changes else 0
        totals.append(max(0, total))
    return totals


def _width_s(span_ms: int) -> int:
    """Returns the smallest round width that gives at most `BUCKETS`."""
    return next((width for width in _WIDTHS_S if width * BUCKETS * 1_000 >= span_ms), _WIDTHS_S[-1])


def _by_bucket(rows: Iterable[tuple[Any, ...]]) -> dict[int | None, tuple[Any, ...]]:
    return {row[0]: row[1:] for row in rows}


def _day(milliseconds: int) -> date:
    return _utc(milliseconds).date()


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC)
