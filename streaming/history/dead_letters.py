"""Lists dead letters, from the table `dead_letters`."""

from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.archive.tables import DEAD_LETTERS
from streaming.history.plain_letters import only, with_text_headers
from streaming.history.session import HistorySession

LISTED: Final = (
    "time",
    "dead_letter_id",
    "client_id",
    "message_id",
    "reason",
    "deaths",
    "replays",
    "topic",
    "payload",
    "payload_text",
    "detail",
)


def listed(history: HistorySession, *, where: str | None, limit: int, payload_bytes: int | None = None) -> DataFrame:
    """Returns the newest dead letters first, at most `limit`. payload_bytes: cuts each payload; None = all of it.

    Raises BadQuestion, NoArchive.
    """
    rows = history.where(history.table(DEAD_LETTERS.name), where)
    if payload_bytes is not None:
        rows = rows.withColumns({name: F.substring(name, 1, payload_bytes) for name in ("payload", "payload_text")})
    return rows.orderBy(F.col("died_ms").desc(), F.col("kafka_offset").desc()).limit(limit)


def one(history: HistorySession, dead_letter_id: str) -> dict[str, Any]:
    """Returns the dead letter whose id begins so, its headers as text where they are text. Raises NothingFound."""
    rows = history.table(DEAD_LETTERS.name).where(F.startswith(F.col("dead_letter_id"), F.lit(dead_letter_id)))
    return with_text_headers(only(history.collected(rows.limit(2)), dead_letter_id))
