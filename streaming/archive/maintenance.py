"""Keeps the tables fast and of limited size: compaction, retention, and deletion of unused files.

Once an hour it does for each table, in this order:
1. sort days that are over by the column that people look up (Z-order), once; the table remembers up to which day;
2. compact the small files of the running days;
3. delete days beyond `archive.retention`;
4. remove files that no version of the last day has.
It runs inside the archive's micro-batch, so nothing else writes the tables meanwhile.
"""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Final

import structlog
from pyspark.sql import SparkSession

from sinks.delta.spec import TableSpec
from sinks.delta.tables import compact, drop_days_before, properties, set_property, vacuum
from state.setting import NEVER_MS

if TYPE_CHECKING:
    from streaming.settings import ArchiveSettings

SORTED_UNTIL: Final = "inflight.sortedUntil"
"""Property of a table: the first day (ISO) that has not been sorted."""

_INTERVAL_S: Final = 3_600.0
"""Small files of an hour cost a reader little; a run costs each table some seconds of one core."""
_FIRST_DAY: Final = "1970-01-01"
_log: Final = structlog.get_logger(__name__)


class Maintenance:
    """Runs when it is due, first an hour after the start.

    Args:
        locations: The locations of the tables, by name.
    """

    def __init__(self, tables: Sequence[TableSpec], locations: Mapping[str, str], settings: "ArchiveSettings") -> None:
        self._tables = tables
        self._locations = locations
        self._settings = settings
        self._due_s: float | None = None

    def run_if_due(self, spark: SparkSession, *, now_s: float) -> bool:
        """Runs if it is due and returns whether it ran.

        Args:
            now_s: In seconds since 1970.
        """
        if self._due_s is None:
            self._due_s = now_s + _INTERVAL_S
        if now_s < self._due_s:
            return False
        self._due_s = now_s + _INTERVAL_S
        self.run(spark, today=datetime.fromtimestamp(now_s, UTC).date())
        return True

    def run(self, spark: SparkSession, *, today: date) -> None:
        """Runs all steps for all tables."""
        for spec in self._tables:
            started = time.monotonic()
            self._maintain(spark, spec, self._locations[spec.name], today)
            _log.info("archive: table maintained", table=spec.name, seconds=round(time.monotonic() - started, 1))

    def _maintain(self, spark: SparkSession, spec: TableSpec, location: str, today: date) -> None:
        # Yesterday gets rows after midnight too, because clocks differ and micro-batches wait. The day before is over.
        over = (today - timedelta(days=1)).isoformat()
        done = properties(spark, location).get(SORTED_UNTIL, _FIRST_DAY)
        if done < over:  # step 1
            compact(spark, location, from_date=done, until_date=over, cluster_by=spec.cluster_by)
            set_property(spark, location, SORTED_UNTIL, over)
        compact(spark, location, from_date=over, until_date=(today + timedelta(days=2)).isoformat(), cluster_by=None)  # step 2
        if self._settings.retention < NEVER_MS:
            drop_days_before(spark, location, (today - timedelta(milliseconds=self._settings.retention)).isoformat())  # step 3
        vacuum(spark, location)  # step 4
