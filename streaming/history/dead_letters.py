"""Lists dead letters and plans their replay: without Spark where that is quick (plain_letters.py), else from the tables."""

from collections.abc import Callable, Iterable
from typing import Any

from pyspark.sql import functions as F  # noqa: N812 - Spark's own convention

from streaming.archive.tables import DEAD_LETTERS
from streaming.history import plain_letters, replay
from streaming.history.plain_letters import only, with_text_headers
from streaming.history.session import HistorySession
from streaming.history.sources.source import Row, Source


class DeadLetters:
    """The dead letters of a source. Methods raise BadQuestion and NoArchive.

    Args:
        spark: Starts Spark: for a condition in SQL, for the archive, and for very many.

    `where` is a condition in SQL, None = all. `matches` says the same of a row, for a source that needs no Spark; without it
    a condition does.
    """

    def __init__(self, source: Source, spark: Callable[[], HistorySession]) -> None:
        self._source = source
        self._spark = spark

    def listed(
        self,
        *,
        limit: int,
        where: str | None = None,
        matches: Callable[[Row], bool] | None = None,
        payload_bytes: int | None = None,
    ) -> list[dict[str, Any]]:
        """Returns the newest first, at most `limit`.

        Args:
            payload_bytes: Cuts each payload; None = all of it.
        """
        if where is None or matches is not None:
            found = plain_letters.listed(self._source, limit=limit, matches=matches, payload_bytes=payload_bytes)
            if found is not None:
                return found
        history = self._spark()
        rows = history.where(history.table(DEAD_LETTERS.name), where)
        if payload_bytes is not None:
            rows = rows.withColumns({name: F.substring(name, 1, payload_bytes) for name in ("payload", "payload_text")})
        return history.collected(rows.orderBy(F.col("died_ms").desc(), F.col("kafka_offset").desc()).limit(limit))

    def one(self, dead_letter_id: str) -> dict[str, Any]:
        """Returns the dead letter whose id begins so, its headers as text where they are text. Raises NothingFound."""
        if (found := plain_letters.one(self._source, dead_letter_id)) is not None:
            return found
        history = self._spark()
        rows = history.table(DEAD_LETTERS.name).where(F.startswith(F.col("dead_letter_id"), F.lit(dead_letter_id)))
        return with_text_headers(only(history.collected(rows.limit(2)), dead_letter_id))

    def candidates(
        self, options: replay.ReplayOptions, matches: Callable[[Row], bool] | None = None, *, limit: int | None = None
    ) -> Iterable[dict[str, Any]]:
        """Returns what a replay considers, oldest first, with `skip`: None = to be sent.

        Args:
            limit: How many Spark reads.
        """
        if options.where is None or matches is not None:
            found = plain_letters.candidates(self._source, options, matches)
            if found is not None:
                return found
        return replay.candidates(self._spark(), options, limit=limit)
