"""Asks the tables for what the report shows, as plain numbers. Each question is one pass over the days of the report."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, Window
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.archive.tables import DEAD_LETTERS, LEDGER, RECEIPTS
from streaming.history.session import HistorySession

BUCKETS: Final = 60
_WIDTHS_S: Final = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1_800, 3_600, 7_200, 14_400, 21_600, 43_200, 86_400, 604_800)
_LOOKBACK_MS: Final = 86_400_000
_WORST: Final = 10
_WAITING: Final = ("accepted", "returned", "queued")
_IN_WINDOW: Final = ("sent", "fast_sent", "resent", "replayed", "pubrec", "pubrel_sent")


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


def measure(history: HistorySession, *, since_ms: int, until_ms: int) -> Report:
    """Asks the tables about a period, in ms since 1970. Raises NoArchive.

    The report covers the part of the period in which something happened.
    """
    ledger = history.table(LEDGER.name)
    inside = ledger.where(F.col("date") >= _day(since_ms)).where(F.col("batch_ms").between(since_ms, until_ms))
    found = inside.agg(
        F.min("batch_ms").alias("first"), F.max("batch_ms").alias("last"), F.countDistinct("client_id").alias("clients")
    ).first()
    first_ms, last_ms = (
        (since_ms, until_ms) if found is None or found["first"] is None else (found["first"], found["last"] + 1_000)
    )
    width_s = _width_s(last_ms - first_ms)
    start_ms = first_ms - first_ms % (width_s * 1_000)
    count = max(1, -(-(last_ms - start_ms) // (width_s * 1_000)))
    bucket = F.floor((F.col("batch_ms") - start_ms) / (width_s * 1_000)).cast("int").alias("bucket")

    flow = _by_bucket(
        inside.groupBy(bucket)
        .agg(
            _count(F.col("transition") == "accepted").alias("accepted"),
            _count(F.col("outcome").isin("delivered", "sent")).alias("delivered"),
            _count(F.col("transition").isin("resent", "replayed")).alias("resends"),
        )
        .collect()
    )
    receipts = (
        history.table(RECEIPTS.name).where(F.col("date") >= _day(since_ms)).where(F.col("outcome_ms").between(since_ms, until_ms))
    )
    delivered = receipts.where(F.col("outcome") == "delivered")
    quantiles = F.percentile_approx("latency_ms", [0.5, 0.95, 0.99]).alias("quantiles")
    arrival = F.floor((F.col("outcome_ms") - start_ms) / (width_s * 1_000)).cast("int").alias("bucket")
    latency = _by_bucket(delivered.groupBy(arrival).agg(quantiles).collect())
    overall = delivered.agg(quantiles).first()
    whole = [None] * 3 if overall is None or overall["quantiles"] is None else list(overall["quantiles"])
    depth = _depth(ledger, since_ms=start_ms, until_ms=until_ms, bucket=bucket)
    letters = (
        history.table(DEAD_LETTERS.name)
        .where(F.col("date") >= _day(since_ms))
        .where(F.col("died_ms").between(since_ms, until_ms))
    )

    def by_bucket(rows: dict[int, Row], value: Callable[[Row], Any], otherwise: Any) -> list[Any]:
        return [value(rows[number]) if number in rows else otherwise for number in range(count)]

    return Report(
        since=_utc(start_ms),
        until=_utc(start_ms + count * width_s * 1_000),
        width_s=width_s,
        times=[_utc(start_ms + number * width_s * 1_000) for number in range(count)],
        accepted=by_bucket(flow, lambda row: row["accepted"], 0),
        delivered=by_bucket(flow, lambda row: row["delivered"], 0),
        resends=by_bucket(flow, lambda row: row["resends"], 0),
        latency_p50_ms=by_bucket(latency, lambda row: row["quantiles"][0], None),
        latency_p95_ms=by_bucket(latency, lambda row: row["quantiles"][1], None),
        latency_p99_ms=by_bucket(latency, lambda row: row["quantiles"][2], None),
        in_window=_running_total(depth, "in_window", count),
        waiting=_running_total(depth, "waiting", count),
        dead_letters={
            row["reason"] or "unknown": row["count"]
            for row in letters.groupBy("reason").count().orderBy(F.col("count").desc(), "reason").collect()
        },
        worst=_worst(inside, letters, delivered),
        overall_p50_ms=whole[0],
        overall_p95_ms=whole[1],
        overall_p99_ms=whole[2],
        clients=0 if found is None else found["clients"],
    )


def _depth(ledger: DataFrame, *, since_ms: int, until_ms: int, bucket: Column) -> dict[int, Row]:
    """Returns, by bucket, how the numbers of messages in windows and of waiting messages change. Bucket −1 is all time before.

    The newest transition of a message says where it is. A message from more than a day before the report is not counted.
    """
    rows = (
        ledger.where(F.col("date") >= _day(since_ms - _LOOKBACK_MS))
        .where(F.col("batch_ms").between(since_ms - _LOOKBACK_MS, until_ms) & F.col("message_id").isNotNull())
        .where(F.col("transition").isin(*_WAITING, *_IN_WINDOW, "refused", "finished"))
    )
    # A QoS 0 message is sent and finished at once, so it is never in the window.
    in_window = F.col("transition").isin(*_IN_WINDOW) & F.col("packet_id").isNotNull()
    waiting = F.col("transition").isin(*_WAITING) | ((F.col("transition") == "refused") & F.col("outcome").isNull())
    life = Window.partitionBy("client_id", "message_id").orderBy("batch_ms", "kafka_partition", "kafka_offset", "row_index")
    changes = rows.select(
        F.when(F.col("batch_ms") < since_ms, F.lit(-1)).otherwise(bucket).alias("bucket"),
        (in_window.cast("int") - F.coalesce(F.lag(in_window.cast("int")).over(life), F.lit(0))).alias("in_window"),
        (waiting.cast("int") - F.coalesce(F.lag(waiting.cast("int")).over(life), F.lit(0))).alias("waiting"),
    )
    return _by_bucket(
        changes.groupBy("bucket").agg(F.sum("in_window").alias("in_window"), F.sum("waiting").alias("waiting")).collect()
    )


def _worst(inside: DataFrame, letters: DataFrame, delivered: DataFrame) -> list[WorstClient]:
    resends = inside.groupBy("client_id").agg(_count(F.col("transition").isin("resent", "replayed")).alias("resends"))
    dead = letters.groupBy("client_id").agg(F.count(F.lit(1)).alias("dead_letters"))
    arrived = delivered.groupBy("client_id").agg(
        F.count(F.lit(1)).alias("delivered"), F.percentile_approx("latency_ms", 0.99).alias("latency_p99_ms")
    )
    clients = (
        resends.join(dead, "client_id", "full")
        .join(arrived, "client_id", "full")
        .na.fill(0, ["resends", "dead_letters", "delivered"])
        .where((F.col("resends") + F.col("dead_letters") > 0) & (F.col("client_id") != ""))
        .orderBy(F.col("dead_letters").desc(), F.col("resends").desc(), "client_id")
        .limit(_WORST)
    )
    return [WorstClient(**row.asDict()) for row in clients.collect()]


def _running_total(changes: dict[int, Row], name: str, count: int) -> list[int]:
    total = changes[-1][name] if -1 in changes else 0
    totals = []
    for number in range(count):
        total += changes[number][name] if number in changes else 0
        totals.append(max(0, total))
    return totals


def _width_s(span_ms: int) -> int:
    """Returns the smallest round width that gives at most `BUCKETS`."""
    return next((width for width in _WIDTHS_S if width * BUCKETS * 1_000 >= span_ms), _WIDTHS_S[-1])


def _by_bucket(rows: list[Row]) -> dict[int, Row]:
    return {row["bucket"]: row for row in rows}


def _count(condition: Column) -> Column:
    return F.coalesce(F.sum(condition.cast("int")), F.lit(0)).cast("bigint")


def _day(milliseconds: int) -> Column:
    return F.lit(_utc(milliseconds).date())


def _utc(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1_000, UTC)
