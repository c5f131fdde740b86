"""Lists dead letters, from the table `dead_letters`."""

import base64
from typing import Any, Final

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.archive.tables import DEAD_LETTERS
from streaming.history.errors import NothingFound
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
    found = history.collected(rows.limit(2))
    if not found:
        raise NothingFound(f"there is no dead letter {dead_letter_id!r}: `inflight dead-letters` lists them with their ids")
    if len(found) > 1:
        raise NothingFound(f"several dead letters begin with {dead_letter_id!r}: give more of the id")
    letter = found[0]
    letter["headers"] = [{"key": header["key"], "value": as_text(header["value"])} for header in letter["headers"]]
    return letter


def as_text(encoded: str | None) -> str:
    """Converts bytes in base64 to text, or to `base64:…` where they are no UTF-8."""
    try:
        return base64.b64decode(encoded or "").decode()
    except UnicodeDecodeError:
        return f"base64:{encoded}"
