"""`inflight replay` skips dead letters that are older than the ledger."""

from types import SimpleNamespace
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from streaming.history.replay import ReplayOptions, SkipReason, candidates

T0 = 1_790_000_000_000
LETTERS = "dead_letter_id STRING, client_id STRING, message_id STRING, died_ms BIGINT, replays INT, kafka_partition INT, "
LETTERS += "kafka_offset BIGINT, headers ARRAY<STRUCT<key: STRING, value: BINARY>>"


def skips(spark: SparkSession, ledger_since_ms: int | None, options: ReplayOptions) -> dict[str, str | None]:
    """Returns skips by dead letter: `old` died before T0; `new` and `done` after it, and `done` was replayed."""
    letters = [
        (name, "c", name, died, 0, 0, at, []) for at, (name, died) in enumerate([("old", T0 - 1), ("new", T0), ("done", T0)])
    ]
    tables = {
        "dead_letters": spark.createDataFrame(letters, LETTERS),
        "ledger": spark.createDataFrame([("dead_letter_replayed", "done sent again to c")], "transition STRING, detail STRING"),
    }

    def table(name: str, *, containing: str | None = None) -> DataFrame:
        return tables[name]

    def documents(rows: DataFrame) -> list[dict[str, Any]]:
        return [row.asDict(recursive=True) for row in rows.collect()]

    source = SimpleNamespace(complete_since_ms=lambda name: ledger_since_ms)
    history = SimpleNamespace(table=table, where=lambda rows, condition: rows, source=source, documents=documents)
    found = candidates(history, options, limit=3)  # type: ignore[arg-type]
    return {letter["dead_letter_id"]: letter["skip"] for letter in found}


def test_a_dead_letter_older_than_the_ledger_is_sent_only_with_force(spark: SparkSession) -> None:
    options = ReplayOptions(where=None)
    assert skips(spark, T0, options) == {"old": SkipReason.NOT_KNOWN.name, "new": None, "done": SkipReason.REPLAYED_BEFORE.name}
    assert skips(spark, None, options) == {"old": None, "new": None, "done": SkipReason.REPLAYED_BEFORE.name}
    assert skips(spark, T0, ReplayOptions(where=None, again=True)) == {"old": None, "new": None, "done": None}
